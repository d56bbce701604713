"""Operations on many jobs at once: count, cancel, requeue; the list of kinds; requests to workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.client import validate_calls
from holdfast.domain import limits, validation
from holdfast.domain.errors import UnknownKind
from holdfast.domain.failures import FailureClass
from holdfast.domain.job import State
from holdfast.domain.kinds import Kind, Publication
from holdfast.domain.results import CancelReport, JobFilter, Requeued, Tally, WorkerInfo
from holdfast.domain.validation import Duration
from holdfast.operations import admin as admin_operations
from holdfast.operations import jobs as job_operations
from holdfast.storage.runners import Runner


class AdminOperations:
    """The part of `Operations` that acts on many jobs, on kinds and on workers."""

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
        """Count the matching jobs by lane, kind and state; the options are those of `jobs`.

        This reads every job: do not call it in a hot loop.
        """
        job_filter = validate_calls.job_filter(
            state=state, kind=kind, lane=lane, tenant=tenant, failure_class=failure_class, older_than=older_than
        )
        return await self.runner.read(job_operations.tally, job_filter)

    async def kinds(self) -> list[Kind]:
        """Return every kind that was used, published by a worker, or retired, sorted by name."""
        return await self.runner.read(admin_operations.kinds)

    async def drain_worker(self, worker: str) -> list[WorkerInfo]:
        """Request a worker to claim no more jobs; it finishes those it holds and keeps running.

        Return every registered start of the worker, or raise `WorkerNotFound`. A live worker receives the request at
        once if a notification reaches it, else with its next heartbeat, within ten seconds.
        """
        return await self.runner.write(job_operations.request_worker, validation.name(worker, "worker"), "drain")

    async def stop_worker(self, worker: str) -> list[WorkerInfo]:
        """Request a worker to shut down as on SIGTERM: it waits for running handlers up to its grace period.

        Return every registered start of the worker, or raise `WorkerNotFound`.
        """
        return await self.runner.write(job_operations.request_worker, validation.name(worker, "worker"), "stop")

    async def kind(self, name: str) -> Kind:
        """Return one kind with its published options and schema, or raise `UnknownKind`."""
        found = await self.runner.read(admin_operations.kind, validation.name(name, "name"))
        if found is None:
            raise UnknownKind(name, "never used, published or retired")
        return found

    async def publish_kinds(self, publications: Mapping[str, Publication], published_by: str) -> None:
        """Publish tasks in the catalog of kinds, for a worker; only read the catalog if nothing has changed."""
        changed = await self.runner.read(admin_operations.changed_publications, publications)
        if changed:
            await self.runner.write(admin_operations.publish_kinds, changed, published_by)

    async def cancel_many(
        self, job_ids: Sequence[str], *, force: bool = False, tenant: str | None = None
    ) -> CancelReport:
        """Cancel many jobs in one transaction, each as `cancel` does; report those that cannot be cancelled."""
        validate_calls.count(job_ids, "job_ids", limits.REQUEUE_MANY_MAX)
        ids = [validation.name(job_id, f"job_ids[{index}]") for index, job_id in enumerate(job_ids)]
        force, tenant = validation.flag(force, "force"), validate_calls.tenant(tenant)
        return await self.runner.write(admin_operations.cancel_many, ids, tenant, force=force)

    async def requeue_many(self, job_ids: Sequence[str], *, tenant: str | None = None) -> Requeued:
        """Requeue many jobs in several transactions; report those that cannot be requeued with the reason."""
        validate_calls.count(job_ids, "job_ids", limits.REQUEUE_MANY_MAX)
        ids = [validation.name(job_id, f"job_ids[{index}]") for index, job_id in enumerate(job_ids)]
        tenant = validate_calls.tenant(tenant)
        total = Requeued([], [])
        for start in range(0, len(ids), limits.CHUNK):
            chunk = ids[start : start + limits.CHUNK]
            _add(total, await self.runner.write(admin_operations.requeue_many, chunk, tenant))
        return total

    async def requeue_failed(
        self,
        *,
        transient_only: bool = False,
        kind: str | None = None,
        lane: str | None = None,
        tenant: str | None = None,
    ) -> Requeued:
        """Requeue every matching failed job, in bounded chunks; report those that cannot be requeued."""
        job_filter = JobFilter(
            states=("failed",),
            kind=validation.optional_name(kind, "kind"),
            lane=validation.optional_name(lane, "lane"),
            tenant=validate_calls.tenant(tenant),
            failure_class="transient" if validation.flag(transient_only, "transient_only") else None,
        )
        total, after = Requeued([], []), None
        while True:
            page = await self.runner.read(job_operations.jobs, job_filter, after, limits.CHUNK)
            found = [job.id for job in page]
            _add(total, await self.runner.write(admin_operations.requeue_many, found, job_filter.tenant))
            after = page.cursor
            if after is None:
                return total


def _add(total: Requeued, part: Requeued) -> None:
    total.requeued.extend(part.requeued)
    total.skipped.extend(part.skipped)
