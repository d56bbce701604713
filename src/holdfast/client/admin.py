"""What operators do to many jobs at once: count, cancel and requeue them, and list kinds."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.client import validate_calls
from holdfast.domain import limits, validation
from holdfast.domain.failures import FailureClass
from holdfast.domain.job import State
from holdfast.domain.results import CancelReport, JobFilter, Kind, Requeued, Tally
from holdfast.domain.validation import Duration
from holdfast.operations import admin as admin_operations
from holdfast.operations import jobs as job_operations
from holdfast.storage.runners import Runner


class AdminOperations:
    """The operations of this page; `Operations` has them all."""

    runner: Runner

    async def tally(
        self,
        *,
        state: State | Sequence[State] | None = None,
        kind: str | None = None,
        lane: str | None = None,
        tenant: str | None = None,
        failure_class: FailureClass | None = None,
        older_than: Duration | None = None,
    ) -> list[Tally]:
        """Count the jobs that match, by lane, kind and state; the options are those of `jobs`.

        This reads every job: not for a hot loop.
        """
        wanted = validate_calls.job_filter(
            state=state, kind=kind, lane=lane, tenant=tenant, failure_class=failure_class, older_than=older_than
        )
        return await self.runner.read(job_operations.tally, wanted)

    async def kinds(self) -> list[Kind]:
        """Return every kind that was ever used or is retired, by name."""
        return await self.runner.read(admin_operations.kinds)

    async def cancel_many(
        self, job_ids: Sequence[str], *, force: bool = False, tenant: str | None = None
    ) -> CancelReport:
        """Cancel many jobs in one transaction, each as `cancel` does; those that cannot be are reported."""
        validate_calls.count(job_ids, "job_ids", limits.REQUEUE_MANY_MAX)
        ids = [validation.name(job_id, f"job_ids[{index}]") for index, job_id in enumerate(job_ids)]
        force, tenant = validation.flag(force, "force"), validate_calls.tenant(tenant)
        return await self.runner.write(admin_operations.cancel_many, ids, tenant, force=force)

    async def requeue_many(self, job_ids: Sequence[str], *, tenant: str | None = None) -> Requeued:
        """Requeue many jobs, a few in each transaction; those that cannot be are reported with the reason."""
        validate_calls.count(job_ids, "job_ids", limits.REQUEUE_MANY_MAX)
        asked = [validation.name(job_id, f"job_ids[{index}]") for index, job_id in enumerate(job_ids)]
        tenant = validate_calls.tenant(tenant)
        total = Requeued([], [])
        for at in range(0, len(asked), limits.CHUNK):
            _add(total, await self.runner.write(admin_operations.requeue_many, asked[at : at + limits.CHUNK], tenant))
        return total

    async def requeue_failed(
        self,
        *,
        transient_only: bool = False,
        kind: str | None = None,
        lane: str | None = None,
        tenant: str | None = None,
    ) -> Requeued:
        """Requeue every failed job that matches, in bounded bites; those that cannot be are reported."""
        wanted = JobFilter(
            states=("failed",),
            kind=validation.optional_name(kind, "kind"),
            lane=validation.optional_name(lane, "lane"),
            tenant=validate_calls.tenant(tenant),
            failure_class="transient" if validation.flag(transient_only, "transient_only") else None,
        )
        total, after = Requeued([], []), None
        while True:
            page = await self.runner.read(job_operations.jobs, wanted, after, limits.CHUNK)
            found = [job.id for job in page]
            _add(total, await self.runner.write(admin_operations.requeue_many, found, wanted.tenant))
            after = page.cursor
            if after is None:
                return total


def _add(total: Requeued, part: Requeued) -> None:
    total.requeued.extend(part.requeued)
    total.skipped.extend(part.skipped)
