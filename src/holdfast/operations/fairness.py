"""The positions from which tenants take turns: a hint in the store, shared by claimers that come and go."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.domain.job import Job
from holdfast.storage.contract import ReadyJobs, Transaction


async def remember_fair_key(tx: Transaction, selected: ReadyJobs, jobs: Sequence[Job]) -> None:
    """Remember the fairness key served last, if tenants take turns and it has changed."""
    if selected.fair_scope is None or not jobs or jobs[-1].fair_key == selected.last_fair_key:
        return
    first = selected.last_fair_key is None
    await tx.set_last_fair_key(selected.fair_scope, jobs[-1].fair_key, await tx.now(), first=first)
