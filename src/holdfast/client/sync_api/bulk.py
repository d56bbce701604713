# Generated from client/async_api/bulk.py by scripts/make-sync; do not edit.
"""Bulk actions in pages: cancel or requeue the jobs that match a filter, for the command line and the dashboard."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from holdfast.client.sync_api.queue import Queue
from holdfast.domain.results import CancelReport, Requeued

PAGE: Final = 1_000


def cancel_page(
    queue: Queue, filters: Mapping[str, Any], after: str | None, *, force: bool = False
) -> tuple[CancelReport, str | None]:
    """Cancel a page of the jobs that match; return what was done, and the cursor from which to continue."""
    ids, cursor = _page(queue, filters, after)
    if not ids:
        return CancelReport([], [], []), cursor
    return queue.admin.cancel_many(ids, force=force, tenant=filters.get("tenant")), cursor


def requeue_page(queue: Queue, filters: Mapping[str, Any], after: str | None) -> tuple[Requeued, str | None]:
    """Requeue a page of the jobs that match; return what was done, and the cursor from which to continue."""
    ids, cursor = _page(queue, filters, after)
    if not ids:
        return Requeued([], []), cursor
    return queue.admin.requeue_many(ids, tenant=filters.get("tenant")), cursor


def _page(queue: Queue, filters: Mapping[str, Any], after: str | None) -> tuple[list[str], str | None]:
    page = queue.jobs(**filters, after=after, limit=PAGE)
    return [job.id for job in page], page.cursor
