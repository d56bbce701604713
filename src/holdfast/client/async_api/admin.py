"""`queue.admin`: calls on many jobs at once, on workers and on the store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.client import validate_calls
from holdfast.client.async_api.namespace import AsyncNamespace
from holdfast.client.async_api.tokens import AsyncTokens
from holdfast.domain import limits, new_job, results, strict_json, validation
from holdfast.domain.access import AuditEntry
from holdfast.domain.failures import FailureClass
from holdfast.domain.job import FINISHED, State
from holdfast.domain.overview import Overview
from holdfast.domain.results import (
    Backlog,
    CancelReport,
    FailurePattern,
    Pruned,
    Requeued,
    StoreReport,
    Tally,
    WorkerInfo,
)
from holdfast.domain.serving import Unserved
from holdfast.domain.strict_json import Json
from holdfast.domain.validation import Duration
from holdfast.operations import (
    access as access_operations,
    admin as admin_operations,
    failures as failure_operations,
    jobs as job_operations,
    maintenance,
    overview as overview_operations,
)

if TYPE_CHECKING:
    from holdfast.client.async_api.queue import AsyncJobMethods

_BEYOND = 1 << 62
# How long to wait for events that open transactions hold back, before pruning without them.
_HELD_BACK_SECONDS = 0.5


class AsyncAdmin(AsyncNamespace):
    """Counts, cancels, requeues and deletes many jobs, and manages workers and tokens: `queue.admin`."""

    tokens: AsyncTokens
    """Tokens of the HTTP service."""

    def __init__(self, queue: AsyncJobMethods) -> None:
        super().__init__(queue)
        self.tokens = AsyncTokens(queue)

    # --- read ------------------------------------------------------------------------------------------------------

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
        """Count the matching jobs by lane, kind and state; the options are those of `queue.jobs`.

        This reads every job: do not call it in a hot loop.
        """
        job_filter = validate_calls.job_filter(
            state=state, kind=kind, lane=lane, tenant=tenant, failure_class=failure_class, older_than=older_than
        )
        return await self._runner.read(job_operations.tally, job_filter)

    async def backlog(self) -> Backlog:
        """Count waiting and running jobs, up to a limit, so that it may be called every few seconds."""
        return await self._runner.read(job_operations.backlog)

    async def unserved(self) -> list[Unserved]:
        """Return counts of ready jobs that no live worker serves, by lane, kind and requirements, with the reason."""
        return await self._runner.read(job_operations.unserved)

    async def overview(self) -> Overview:
        """Return what the first screen of an operator shows: what needs attention, flow per minute, lanes, workers.

        All counts have a bound, so that it may be called every few seconds.
        """
        return await self._runner.read(overview_operations.overview)

    async def failures(
        self,
        *,
        fingerprint: str | None = None,
        kind: str | None = None,
        tenant: str | None = None,
        limit: int = 100,
    ) -> list[FailurePattern]:
        """Return failed jobs by the pattern in which they failed, those with the newest failure first.

        *fingerprint*, *kind* and *tenant* select the failures. At most *limit* patterns are read, counted by tenant
        and lane; `queue.jobs(fingerprint=…)` lists the jobs of one.
        """
        fingerprint, kind = validate_calls.failure_fingerprint(fingerprint), validation.optional_name(kind, "kind")
        limit = validation.integer(limit, "limit", 1, limits.PAGE_MAX)
        tenant = validate_calls.tenant(tenant)
        return await self._runner.read(failure_operations.patterns, fingerprint, tenant, kind, limit)

    async def report(self) -> StoreReport:
        """Return findings about the health of the store and its jobs."""
        return await self._runner.read(job_operations.report)

    # --- audit log -------------------------------------------------------------------------------------------------

    async def record_action(
        self, action: str, target: str, *, actor: str | None = None, detail: dict[str, Json] | None = None
    ) -> None:
        """Append an operator's action to the audit log; call it before the action is carried out.

        *action* is a name such as `jobs.cancel`, *target* what it is done to, *detail* its options. *actor* is by
        default `user@host` of this process.
        """
        action, target = validation.name(action, "action"), validation.name(target, "target", limits.URL_CHARS_MAX)
        strict_json.encode(detail, "detail", limits.PAYLOAD_BYTES_MAX)
        await self._runner.write(access_operations.record, validate_calls.actor(actor), action, target, detail or {})

    async def audit_log(self, *, before: int | None = None, limit: int = 100) -> list[AuditEntry]:
        """Return the newest entries of the audit log, newest first, up to *limit*.

        *before* is the number of an entry: continue with those before it.
        """
        before = _BEYOND if before is None else validation.integer(before, "before", 0, _BEYOND)
        return await self._runner.read(
            access_operations.audit_log, before, validation.integer(limit, "limit", 1, limits.PAGE_MAX)
        )

    # --- workers ---------------------------------------------------------------------------------------------------

    async def workers(self, *, limit: int = 100) -> list[WorkerInfo]:
        """Return the workers that were active last, up to *limit*, as they last reported."""
        limit = validation.integer(limit, "limit", 1, limits.PAGE_MAX)
        return await self._runner.read(job_operations.newest_workers, limit)

    async def drain_worker(self, worker: str) -> list[WorkerInfo]:
        """Request a worker to claim no more jobs; it finishes those it holds and keeps running.

        Return every registered start of the worker, or raise `WorkerNotFound`. A live worker receives the request at
        once if a notification reaches it, else with its next heartbeat, within ten seconds.
        """
        return await self._runner.write(job_operations.request_worker, validation.name(worker, "worker"), "drain")

    async def stop_worker(self, worker: str) -> list[WorkerInfo]:
        """Request a worker to shut down as on SIGTERM: it waits for running handlers up to its grace period.

        Return every registered start of the worker, or raise `WorkerNotFound`.
        """
        return await self._runner.write(job_operations.request_worker, validation.name(worker, "worker"), "stop")

    # --- change many jobs ------------------------------------------------------------------------------------------

    async def cancel_many(
        self, job_ids: Sequence[str], *, force: bool = False, tenant: str | None = None
    ) -> CancelReport:
        """Cancel many jobs in one transaction, each as `queue.cancel` does; report those that cannot be cancelled.

        With *force* running jobs are taken from their workers. With *tenant*, jobs of other tenants are not found.
        """
        checked = _job_ids(job_ids)
        force, tenant = validation.flag(force, "force"), validate_calls.tenant(tenant)
        return await self._runner.write(admin_operations.cancel_many, checked, tenant, force=force)

    async def requeue_many(self, job_ids: Sequence[str], *, tenant: str | None = None) -> Requeued:
        """Requeue many jobs in several transactions; report those that cannot be requeued with the reason.

        With *tenant*, jobs of other tenants are not found.
        """
        checked, tenant = _job_ids(job_ids), validate_calls.tenant(tenant)
        total = Requeued([], [])
        for start in range(0, len(checked), limits.CHUNK):
            chunk = checked[start : start + limits.CHUNK]
            _add(total, await self._runner.write(admin_operations.requeue_many, chunk, tenant))
        return total

    async def requeue_failed(
        self,
        *,
        transient_only: bool = False,
        kind: str | None = None,
        lane: str | None = None,
        tenant: str | None = None,
    ) -> Requeued:
        """Requeue every matching failed job, in bounded chunks; report those that cannot be requeued.

        *kind*, *lane* and *tenant* select the jobs. With *transient_only*, jobs that failed permanently are left out.
        """
        job_filter = results.JobFilter(
            states=("failed",),
            kind=validation.optional_name(kind, "kind"),
            lane=validation.optional_name(lane, "lane"),
            tenant=validate_calls.tenant(tenant),
            failure_class="transient" if validation.flag(transient_only, "transient_only") else None,
        )
        total, after = Requeued([], []), None
        while True:
            page = await self._runner.read(job_operations.jobs, job_filter, after, limits.CHUNK)
            found = [job.id for job in page]
            _add(total, await self._runner.write(admin_operations.requeue_many, found, job_filter.tenant))
            after = page.cursor
            if after is None:
                return total

    # --- delete ----------------------------------------------------------------------------------------------------

    async def prune(
        self,
        *,
        older_than: Duration,
        states: Sequence[State] = ("done", "failed", "cancelled", "retired"),
        events_older_than: Duration | None = None,
        message_ids_older_than: Duration = 604_800.0,
        dry_run: bool = False,
    ) -> Pruned:
        """Delete jobs that finished more than *older_than* seconds ago, with all their data, in bounded chunks.

        *states* are the final states of the jobs to delete. Also delete failures of that age with failed jobs, events
        older than *events_older_than* seconds, by default *older_than*, expired uploads and dedupe keys, and the
        message ids of entries that were deleted more than *message_ids_older_than* seconds ago, by default 7 days.
        With *dry_run* delete nothing and return how many jobs and events would be deleted.
        """
        message_ids_age_ms = validation.duration_ms(message_ids_older_than, "message_ids_older_than")
        age_ms = validation.duration_ms(older_than, "older_than")
        events_age_ms = (
            age_ms if events_older_than is None else validation.duration_ms(events_older_than, "events_older_than")
        )
        chosen = [validation.one_of(state, f"states[{index}]", FINISHED) for index, state in enumerate(states)]
        if validation.flag(dry_run, "dry_run"):
            return await self._prunable(tuple(chosen), age_ms, events_age_ms)
        jobs = events = 0
        for state in chosen:
            count, after = await self._runner.write(admin_operations.prune_jobs, state, age_ms)
            while count:
                jobs += count
                count, after = await self._runner.write(admin_operations.prune_jobs, state, age_ms, after)
        while "failed" in chosen and await self._runner.write(failure_operations.prune, age_ms):
            pass
        while await self._runner.write(maintenance.delete_expired):
            pass
        while await self._runner.write(admin_operations.prune_message_ids, message_ids_age_ms):
            pass
        left = _HELD_BACK_SECONDS
        with self._runner.listen() as listener:
            while True:
                count, held_back = await self._runner.write(admin_operations.prune_events, events_age_ms)
                events += count
                if held_back and left > 0:
                    left -= await listener.wait(_HELD_BACK_SECONDS / 50)
                elif not count:
                    return Pruned(jobs, events)

    async def _prunable(self, states: tuple[State, ...], age_ms: int, events_age_ms: int) -> Pruned:
        found: list[Tally] = []
        if states:
            for lane in (None, new_job.SYSTEM_LANE):
                wanted = results.JobFilter(states=states, age_ms=age_ms, lane=lane)
                found += await self._runner.read(job_operations.tally, wanted)
        left = _HELD_BACK_SECONDS
        with self._runner.listen() as listener:
            while True:
                events, held_back = await self._runner.read(admin_operations.count_prunable_events, events_age_ms)
                if not held_back or left <= 0:
                    return Pruned(sum(one.jobs for one in found), events)
                left -= await listener.wait(_HELD_BACK_SECONDS / 50)


def _job_ids(job_ids: Sequence[str]) -> list[str]:
    validate_calls.count(job_ids, "job_ids", limits.REQUEUE_MANY_MAX)
    return [validation.name(job_id, f"job_ids[{index}]") for index, job_id in enumerate(job_ids)]


def _add(total: Requeued, part: Requeued) -> None:
    total.requeued.extend(part.requeued)
    total.skipped.extend(part.skipped)
