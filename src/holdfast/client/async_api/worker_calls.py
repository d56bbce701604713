"""The calls that only workers make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.domain.claims import LeaseUpdate, Renewal
from holdfast.domain.errors import HoldfastError
from holdfast.domain.kinds import Publication
from holdfast.domain.results import Finding, WorkerInfo, WorkerRequest
from holdfast.operations import admin as admin_operations
from holdfast.operations import jobs as job_operations
from holdfast.operations import lease as lease_operations
from holdfast.storage.runners import AsyncRunner
from holdfast.storage.store import AsyncTarget


class AsyncWorkerCalls:
    """Lease renewals, the registry of workers and the catalog of kinds, for a worker."""

    def __init__(self, target: AsyncTarget) -> None:
        self._runner = AsyncRunner(target)

    async def renew_many(self, held: Sequence[LeaseUpdate]) -> list[Renewal | HoldfastError]:
        """Extend many leases as `heartbeat_many` does, and write progress and acknowledgements in the same commit."""
        leases = [(one.claim.fence, one.claim.lease_ms) for one in held]
        notes = {one.claim.job.number: one.note for one in held if one.note is not None}
        started = {one.claim.job.number for one in held if one.started}
        return await self._runner.write(lease_operations.heartbeat, leases, notes, started)

    async def beat(self, worker: WorkerInfo) -> WorkerRequest | None:
        """Write the registry row of one start of a worker; return what was requested of it."""
        return await self._runner.write(job_operations.write_worker, worker)

    async def leave(self, worker: str, incarnation: str) -> None:
        """Delete the registry row of a worker that stops."""
        await self._runner.write(job_operations.delete_worker, worker, incarnation)

    async def publish_kinds(self, publications: Mapping[str, Publication], published_by: str) -> None:
        """Publish tasks in the catalog of kinds; only read the catalog if nothing has changed."""
        changed = await self._runner.read(admin_operations.changed_publications, publications)
        if changed:
            await self._runner.write(admin_operations.publish_kinds, changed, published_by)

    async def problems(self) -> list[Finding]:
        """Return the findings of `queue.admin.report` that concern jobs; they may be read often."""
        return await self._runner.read(job_operations.problems)
