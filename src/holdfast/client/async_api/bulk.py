"""Bulk actions in pages: cancel or requeue the jobs that match a filter, for the command line and the dashboard."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from holdfast.client.async_api.queue import AsyncQueue
from holdfast.domain.results import CancelReport, Requeued

PAGE: Final = 1_000


async def cancel_page(
    queue: AsyncQueue, filters: Mapping[str, Any], after: str | None, *, force: bool = False
) -> tuple[CancelReport, str | None]:
    """Cancel a page of the jobs that match; return what was done, and the cursor from which to continue."""
    ids, cursor = await _page(queue, filters, after)
    if not ids:
        return CancelReport([], [], []), cursor
    return await queue.admin.cancel_many(ids, force=force, tenant=filters.get("tenant")), cursor


async def requeue_page(
    queue: AsyncQueue, filters: Mapping[str, Any], after: str | None
) -> tuple[Requeued, str | None]:
    """Requeue a page of the jobs that match; return what was done, and the cursor from which to continue."""
    ids, cursor = await _page(queue, filters, after)
    if not ids:
        return Requeued([], []), cursor
    return await queue.admin.requeue_many(ids, tenant=filters.get("tenant")), cursor


async def _page(queue: AsyncQueue, filters: Mapping[str, Any], after: str | None) -> tuple[list[str], str | None]:
    page = await queue.jobs(**filters, after=after, limit=PAGE)
    return [job.id for job in page], page.cursor
