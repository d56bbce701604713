"""All operations of a queue, each written once: validate the options, then run transactions.

The methods are coroutines. `Queue`, `AsyncQueue` and their transactions expose them as sync or async methods with the
same signatures and docstrings. A sync runner never suspends, so a sync method can run the coroutine directly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Unpack, cast, overload

from holdfast.client import ids, validate_calls
from holdfast.client.admin import AdminOperations
from holdfast.client.middleware import AttemptObserver, Middleware
from holdfast.client.sessions import SessionOperations
from holdfast.client.validate_calls import Held
from holdfast.domain import limits, validation
from holdfast.domain.claims import (
    Claim,
    ClaimOptions,
    ClaimRequest,
    LeaseUpdate,
    Renewal,
    Settlement,
    check_claim,
    lease_ms,
)
from holdfast.domain.errors import HoldfastError, InvalidInput, UnknownKind, WaitTimeout
from holdfast.domain.events import EventPage
from holdfast.domain.failures import FailureClass
from holdfast.domain.job import FINISHED, Attempt, Job, State
from holdfast.domain.new_job import JobLike, JobOptions, NewJob, check_job
from holdfast.domain.outcomes import Artifact, Outcome, check_artifacts
from holdfast.domain.results import (
    ArtifactInfo,
    Backlog,
    CountBy,
    Enqueued,
    Finding,
    JobFilter,
    JobPage,
    Pruned,
    StoreReport,
    Tally,
    WorkerInfo,
    WorkerRequest,
)
from holdfast.domain.serving import Unserved
from holdfast.domain.session_claims import SessionClaim
from holdfast.domain.validation import Duration
from holdfast.operations import admin as admin_operations
from holdfast.operations import claim as claim_operations
from holdfast.operations import jobs as job_operations
from holdfast.operations import lease as lease_operations
from holdfast.operations import maintenance
from holdfast.storage.notifications import job_topic, lane_topic
from holdfast.storage.runners import AsyncRunner, Runner, SyncRunner
from holdfast.storage.store import AsyncTarget, SyncTarget
from holdfast.tasks.task import TaskRegistry

COUNT_BY: tuple[CountBy, ...] = ("state", "kind", "lane", "tenant", "failure_class")

# How often `wait` polls if no notification comes: frequently at first, then less often.
_POLL_SECONDS_FIRST = 0.02
_POLL_SECONDS_LAST = 0.5
# How long to wait for events that open transactions hold back, before reading or pruning without them.
_HELD_BACK_SECONDS = 0.5
# How often a waiting claim polls.
_CLAIM_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class SettledAndClaimed:
    """The results of `settle_and_claim`."""

    settlements: list[Settlement]
    claims: list[Claim]


@dataclass
class Shared:
    """The state shared by all operations of one queue, for every runner."""

    claimer: ClaimOptions
    """The worker and incarnation of claims that do not give them: one start of this process."""
    middleware: Middleware
    """Enqueues, claims and settles jobs; tracing replaces it."""
    observers: tuple[AttemptObserver, ...] = ()
    """The objects that workers notify of their attempts."""
    tasks: TaskRegistry = field(default_factory=TaskRegistry)
    """The tasks of the queue; their options and signatures apply to jobs of their kinds."""


class Operations(AdminOperations, SessionOperations):
    """The operations of a queue: they validate the options, then run transactions."""

    def __init__(self, runner: Runner, shared: Shared) -> None:
        super().__init__(runner, shared.claimer)
        self.shared = shared

    def for_tasks(self, tasks: TaskRegistry) -> Operations:
        """Return the same operations for a queue with *tasks*."""
        return Operations(self.runner, replace(self.shared, tasks=tasks))

    def on(self, runner: Runner) -> Operations:
        """Return the same operations with another runner."""
        return Operations(runner, self.shared)

    def sync_on(self, target: SyncTarget) -> Operations:
        """Return the same operations for sync callers, who run them with `run_sync`."""
        return self.on(SyncRunner(target))

    def async_on(self, target: AsyncTarget) -> Operations:
        """Return the same operations for async callers."""
        return self.on(AsyncRunner(target))

    @property
    def middleware(self) -> Middleware:
        """Enqueues, claims and settles jobs."""
        return self.shared.middleware

    @property
    def observers(self) -> tuple[AttemptObserver, ...]:
        """The objects that workers notify of their attempts."""
        return self.shared.observers

    @property
    def tasks(self) -> TaskRegistry:
        """The tasks of the queue; their options and signatures apply to jobs of their kinds."""
        return self.shared.tasks

    # --- enqueue ---------------------------------------------------------------------------------------------------

    async def enqueue(self, kind: str, payload: Any = None, **options: Unpack[JobOptions]) -> Enqueued:
        """Store one job and return it once it is durable; `created` is false if it is a duplicate.

        See `JobOptions` for the options. If this queue declares a task for *kind*, the options of the task are the
        defaults, and *payload* must fit its signature. Raises `InvalidInput` before anything is stored, `Conflict`
        if the id exists with other content or the duplicate cannot be replaced, `LaneDraining` and `KindRetired`.
        """
        new = self.tasks.complete(NewJob(kind, payload, **options))
        checked = check_job(new, fresh_id=ids.uuid7())
        return await self.middleware.enqueue_one(self.runner, checked)

    async def enqueue_many(self, jobs: Sequence[JobLike]) -> list[Enqueued]:
        """Store many jobs, all or none, and return them in order.

        Each is a `NewJob` or a dict with the options of `enqueue`. If one is refused, the whole call fails, and the
        error names it: `jobs[3].payload`.
        """
        return await self.middleware.enqueue(self.runner, validate_calls.jobs(jobs, self.tasks))

    # --- claim and lease -------------------------------------------------------------------------------------------

    async def claim(self, **options: Unpack[ClaimOptions]) -> Claim | None:
        """Lease the next job, or return None if there is none; see `ClaimOptions` for the options."""
        if "limit" in options:
            raise InvalidInput("limit", "cannot be given to claim, which takes one job; use claim_many(limit=…)")
        found = await self.claim_many(limit=1, **options)
        return found[0] if found else None

    async def claim_many(self, *, limit: int = 100, **options: Unpack[ClaimOptions]) -> list[Claim]:
        """Lease up to *limit* ready jobs to one worker, in claim order; see `ClaimOptions` for the options."""
        return await self._claim(self._claim_request(limit, options))

    async def heartbeat(self, claim: Claim | SessionClaim, *, lease: Duration | None = None) -> Renewal:
        """Extend the lease by *lease*, by default its original length, or raise `LeaseLost`.

        A session claim is extended as a whole or not at all.
        """
        if isinstance(claim, SessionClaim):
            return await self._heartbeat_session(claim, lease)
        [answer] = await self.heartbeat_many([claim], lease=lease)
        if isinstance(answer, HoldfastError):
            raise answer
        return answer

    async def heartbeat_many(
        self, claims: Sequence[Claim], *, lease: Duration | None = None
    ) -> list[Renewal | HoldfastError]:
        """Extend many leases in one commit; return the `Renewal` or `LeaseLost` of each, in order."""
        validate_calls.count(claims, "claims", limits.SETTLE_MANY_MAX)
        given_ms = None if lease is None else lease_ms(lease)
        held = [
            (claim.lease, claim.lease_ms if given_ms is None else given_ms)
            for claim in map(validate_calls.claim, claims)
        ]
        return await self.runner.write(lease_operations.heartbeat, held)

    async def acknowledge(self, claim: Claim) -> Renewal:
        """Record that the handler of a claimed job starts and extend the lease, or raise `LeaseLost`.

        A claim acknowledges its jobs itself, unless its option `acknowledged` leaves some of them out. A lease that
        expires unacknowledged uses up no attempt, except the third time in a row.
        """
        held = validate_calls.claim(claim)
        leases = [(held.lease, held.lease_ms)]
        [answer] = await self.runner.write(lease_operations.heartbeat, leases, None, (held.job.number,))
        if isinstance(answer, HoldfastError):
            raise answer
        return answer

    async def renew_many(self, held: Sequence[LeaseUpdate]) -> list[Renewal | HoldfastError]:
        """Extend many leases as `heartbeat_many` does, and write progress and acknowledgements in the same commit."""
        leases = [(one.claim.lease, one.claim.lease_ms) for one in held]
        notes = {one.claim.job.number: one.note for one in held if one.note is not None}
        started = {one.claim.job.number for one in held if one.started}
        return await self.runner.write(lease_operations.heartbeat, leases, notes, started)

    async def progress(self, claim: Claim, *, phase: str | None = None, percent: float | None = None) -> Job:
        """Store the progress of a running job, or raise `LeaseLost`; an option not given keeps its value."""
        phase = validation.optional_name(phase, "phase", limits.PHASE_CHARS_MAX)
        percent = None if percent is None else validation.number(percent, "percent", 0, 100)
        return await self.runner.write(lease_operations.progress, validate_calls.claim(claim).lease, phase, percent)

    async def attach(self, claim: Claim, artifacts: Sequence[Artifact]) -> None:
        """Store artifacts of a running job, or raise `LeaseLost`; replace those with the same name."""
        checked = check_artifacts(artifacts)
        await self.runner.write(lease_operations.attach, validate_calls.claim(claim).lease, checked)

    # --- settle ----------------------------------------------------------------------------------------------------

    @overload
    async def settle(self, claim: Claim, outcome: Outcome) -> Job: ...

    @overload
    async def settle(self, claim: SessionClaim, outcome: Outcome | Sequence[Outcome]) -> list[Job]: ...

    async def settle(self, claim: Claim | SessionClaim, outcome: Outcome | Sequence[Outcome]) -> Job | list[Job]:
        """Record the outcome of an attempt and return the settled job, or raise `LeaseLost`.

        Follow-ups, artifacts and events commit together with it. Repeating the same call succeeds. A session claim
        takes one outcome for all of its entries or one for each; all are settled in one commit, or none.
        """
        if isinstance(claim, SessionClaim):
            return await self._settle_session(claim, outcome)
        # settle_many refuses a list of outcomes for a single claim.
        [settlement] = await self.settle_many([(claim, cast(Outcome, outcome))])
        if settlement.error is not None:
            raise settlement.error
        assert settlement.job is not None  # noqa: S101  # without an error there is a job
        return settlement.job

    async def settle_many(self, settlements: Sequence[Held]) -> list[Settlement]:
        """Record many outcomes in one commit; return a `Settlement` for each, in order.

        If the follow-ups have more than 256 dedupe keys and chosen ids in total, there are several commits; inside
        the caller's transaction the call raises `InvalidInput`. A refused settlement does not affect the others. An
        invalid outcome raises `InvalidInput` and settles nothing.
        """
        return await self.middleware.settle(self.runner, validate_calls.settlements(settlements))

    async def settle_and_claim(
        self,
        settlements: Sequence[Held],
        *,
        limit: int = 100,
        started: Sequence[Claim] = (),
        **options: Unpack[ClaimOptions],
    ) -> SettledAndClaimed:
        """Settle as `settle_many` does and claim as `claim_many` does, in one commit.

        Acknowledge the claims in *started* that are still held.
        """
        checked = validate_calls.settlements(settlements)
        validate_calls.count(started, "started", limits.SETTLE_MANY_MAX)
        leases = [claim.lease for claim in map(validate_calls.claim, started)]
        request = self._claim_request(limit, options)
        settled, claims = await self.middleware.settle_and_claim(self.runner, checked, leases, request)
        return SettledAndClaimed(settled, claims or (await self._claim(request, claimed_nothing=True)))

    # --- read ------------------------------------------------------------------------------------------------------

    async def get(self, job_id: str | int, *, tenant: str | None = None) -> Job:
        """Return the job with this id, or with this number if it is an int, or raise `JobNotFound`.

        With *tenant*, jobs of other tenants are not found.
        """
        checked = validate_calls.job_id_or_number(job_id)
        return await self.runner.read(job_operations.get, checked, validate_calls.tenant(tenant))

    async def wait(
        self,
        job_id: str,
        *,
        timeout: Duration,  # noqa: ASYNC109  # sync callers use it too
        tenant: str | None = None,
    ) -> Job:
        """Return the job once it has finished in any state, or raise `WaitTimeout` after *timeout* seconds."""
        left = validation.duration_ms(timeout, "timeout", 0, limits.WAIT_MS_MAX) / 1000
        poll_seconds = _POLL_SECONDS_FIRST
        job_id, tenant, allowed = validate_calls.job_id(job_id), validate_calls.tenant(tenant), left
        with self.runner.listen(job_topic(job_id)) as listener:
            while True:
                job = await self._get_current(job_id, tenant)
                if job.finished:
                    return job
                if left <= 0:
                    raise WaitTimeout(job_id, allowed)
                left -= await listener.wait(min(poll_seconds, left))
                poll_seconds = min(poll_seconds * 1.5, _POLL_SECONDS_LAST)

    async def _get_current(self, job_id: str, tenant: str | None) -> Job:
        job, overdue = await self.runner.read(job_operations.get_overdue, job_id, tenant)
        if not overdue:
            return job
        # No worker has failed the job since its deadline passed, so the waiting caller does.
        await self.runner.write(maintenance.fail_late_jobs)
        return await self.runner.read(job_operations.get, job_id, tenant)

    async def jobs(
        self,
        *,
        state: State | Sequence[State] | None = None,
        kind: str | None = None,
        lane: str | None = None,
        tenant: str | None = None,
        failure_class: FailureClass | None = None,
        session: str | None = None,
        older_than: Duration | None = None,
        after: str | None = None,
        limit: int = limits.PAGE_DEFAULT,
    ) -> JobPage:
        """Return a page of jobs, newest first, and the cursor for the next page.

        *state* is one state or several. A single finished state is sorted by finish time, everything else by enqueue
        order. *session* selects the entries of a session of *tenant*, by default of the default tenant. *older_than*
        is the time since a job finished, or since it was enqueued if it has not finished.
        """
        job_filter = validate_calls.job_filter(
            state=state,
            kind=kind,
            lane=lane,
            tenant=tenant,
            failure_class=failure_class,
            session=session,
            older_than=older_than,
        )
        limit = validation.integer(limit, "limit", 1, limits.PAGE_MAX)
        after = validation.optional_name(after, "after")
        return await self.runner.read(job_operations.jobs, job_filter, after, limit)

    async def attempts(self, job_id: str, *, tenant: str | None = None) -> list[Attempt]:
        """Return the attempts of a job, oldest first; the last one may still be running."""
        return await self.runner.read(
            job_operations.attempts, validate_calls.job_id(job_id), validate_calls.tenant(tenant)
        )

    async def artifacts(self, job_id: str, *, tenant: str | None = None) -> list[ArtifactInfo]:
        """Return the artifacts of a job, sorted by name, without their bytes."""
        return await self.runner.read(
            job_operations.artifacts, validate_calls.job_id(job_id), validate_calls.tenant(tenant)
        )

    async def artifact(self, job_id: str, name: str, *, tenant: str | None = None) -> Artifact:
        """Return one artifact with its bytes, or raise `ArtifactNotFound`."""
        name = validation.name(name, "name")
        return await self.runner.read(
            job_operations.artifact, validate_calls.job_id(job_id), name, validate_calls.tenant(tenant)
        )

    async def counts(self, *, by: CountBy = "state", tenant: str | None = None) -> dict[str, int]:
        """Count jobs by state, kind, lane, tenant or failure class. Reads every job: do not call it in a hot loop."""
        by = validation.one_of(by, "by", COUNT_BY)
        return await self.runner.read(job_operations.counts, by, validate_calls.tenant(tenant))

    async def backlog(self) -> Backlog:
        """Count waiting and running jobs, up to a limit, so that it may be called every few seconds."""
        return await self.runner.read(job_operations.backlog)

    async def unserved(self) -> list[Unserved]:
        """Return counts of ready jobs that no live worker serves, by lane, kind and requirements, with the reason."""
        return await self.runner.read(job_operations.unserved)

    async def events(
        self, *, after: str | None = None, limit: int = limits.PAGE_DEFAULT, tenant: str | None = None
    ) -> EventPage:
        """Return recorded events after the cursor *after*, in order; by default from the oldest stored event.

        With *tenant*, a page may be empty although more events follow: continue until the cursor no longer changes.
        Raises `EventsPruned` if events after the cursor were deleted before they were read.
        """
        limit = validation.integer(limit, "limit", 1, limits.PAGE_MAX)
        after = validation.optional_name(after, "after")
        left = _HELD_BACK_SECONDS
        with self.runner.listen() as listener:
            while True:
                page, held_back = await self.runner.read(
                    job_operations.page, after, limit, validate_calls.tenant(tenant)
                )
                if not held_back or left <= 0:
                    return page
                # An open transaction may still add earlier events. Wait for its commit, to return a complete page.
                left -= await listener.wait(_HELD_BACK_SECONDS / 50)

    async def workers(self, *, limit: int = limits.PAGE_DEFAULT) -> list[WorkerInfo]:
        """Return the workers that were active last, with their subscriptions, held jobs and last heartbeat."""
        limit = validation.integer(limit, "limit", 1, limits.PAGE_MAX)
        return await self.runner.read(job_operations.newest_workers, limit)

    async def worker_beat(self, worker: WorkerInfo) -> WorkerRequest | None:
        """Write the registry row of one start of a worker; return what was requested of it."""
        return await self.runner.write(job_operations.write_worker, worker)

    async def worker_leave(self, worker: str, incarnation: str) -> None:
        """Delete the registry row of a worker that stops."""
        await self.runner.write(job_operations.delete_worker, worker, incarnation)

    async def report(self) -> StoreReport:
        """Return findings about the health of the store and its jobs."""
        return await self.runner.read(job_operations.report)

    async def problems(self) -> list[Finding]:
        """Return the findings of `report` that concern jobs; they may be read often."""
        return await self.runner.read(job_operations.problems)

    # --- manage ----------------------------------------------------------------------------------------------------

    async def cancel(self, job_id: str, *, force: bool = False, tenant: str | None = None) -> Job:
        """Cancel a waiting job; request a running one to stop, or with *force* take it from its worker.

        Raises `Conflict` if the job has already finished in another state.
        """
        force = validation.flag(force, "force")
        return await self.runner.write(
            admin_operations.cancel,
            validate_calls.job_id(job_id),
            validate_calls.tenant(tenant),
            force=force,
        )

    async def requeue(self, job_id: str, *, tenant: str | None = None) -> Job:
        """Make a failed or cancelled job ready again with a new set of attempts, or raise `Conflict`."""
        return await self.runner.write(
            admin_operations.requeue, validate_calls.job_id(job_id), validate_calls.tenant(tenant)
        )

    async def reprioritize(self, job_id: str, priority: int, *, tenant: str | None = None) -> Job:
        """Change the priority of an unfinished job."""
        priority = validation.integer(priority, "priority", -limits.PRIORITY_MAX, limits.PRIORITY_MAX)
        return await self.runner.write(
            admin_operations.reprioritize,
            validate_calls.job_id(job_id),
            priority,
            validate_calls.tenant(tenant),
        )

    async def retire(self, kind: str) -> int:
        """Refuse new jobs of a kind and retire its waiting ones, in bounded chunks; return how many.

        A running job is retired if its attempt ends without finishing it.
        """
        kind = validation.name(kind, "kind")
        routes = await self.runner.write(admin_operations.retire_kind, kind)
        total = after = 0
        while waiting := (await self.runner.read(admin_operations.waiting_seqs, routes, after)):
            total += await self.runner.write(admin_operations.retire_jobs, waiting)
            after = waiting[-1]
        return total

    async def restore(self, kind: str) -> None:
        """Accept new jobs of a retired kind again, or raise `UnknownKind` if it is not retired.

        Retired jobs stay retired.
        """
        if not (await self.runner.write(admin_operations.restore_kind, validation.name(kind, "kind"))):
            raise UnknownKind(kind, "is not retired")

    async def prune(
        self,
        *,
        older_than: Duration,
        states: Sequence[State] = FINISHED,
        events_older_than: Duration | None = None,
        message_ids_older_than: Duration = limits.MESSAGE_IDS_KEPT_MS_DEFAULT / 1000,
        dry_run: bool = False,
    ) -> Pruned:
        """Delete jobs that finished longer ago than *older_than*, with attempts and artifacts, in bounded chunks.

        Also delete events older than *events_older_than*, by default *older_than*, and the message ids of entries
        that were deleted longer ago than *message_ids_older_than*, by default 7 days. With *dry_run* delete nothing
        and return how many jobs and events would be deleted.
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
            count, after = await self.runner.write(admin_operations.prune_jobs, state, age_ms)
            while count:
                jobs += count
                count, after = await self.runner.write(admin_operations.prune_jobs, state, age_ms, after)
        while await self.runner.write(admin_operations.prune_message_ids, message_ids_age_ms):
            pass
        left = _HELD_BACK_SECONDS
        with self.runner.listen() as listener:
            while True:
                count, held_back = await self.runner.write(admin_operations.prune_events, events_age_ms)
                events += count
                if held_back and left > 0:
                    left -= await listener.wait(_HELD_BACK_SECONDS / 50)
                elif not count:
                    return Pruned(jobs, events)

    async def _prunable(self, states: tuple[State, ...], age_ms: int, events_age_ms: int) -> Pruned:
        found: list[Tally] = []
        if states:
            found = await self.runner.read(job_operations.tally, JobFilter(states=states, age_ms=age_ms))
        left = _HELD_BACK_SECONDS
        with self.runner.listen() as listener:
            while True:
                events, held_back = await self.runner.read(admin_operations.count_prunable_events, events_age_ms)
                if not held_back or left <= 0:
                    return Pruned(sum(one.jobs for one in found), events)
                left -= await listener.wait(_HELD_BACK_SECONDS / 50)

    # --- claiming --------------------------------------------------------------------------------------------------

    async def _claim(self, request: ClaimRequest, *, claimed_nothing: bool = False) -> list[Claim]:
        """Claim; if no job is ready, wait for one up to the request's `wait`."""
        left = request.wait_ms / 1000
        with self.runner.listen(*(lane_topic(lane) for lane in request.lanes if left)) as listener:
            while True:
                if not claimed_nothing and (claims := await self.middleware.claim(self.runner, request)):
                    return claims
                if left <= 0:
                    return []
                claimed_nothing = False
                # A job that falls due or a lease that expires sends no notification.
                next_change = await self.runner.read(claim_operations.seconds_to_next_change)
                left -= await listener.wait(min(left, next_change, _CLAIM_SECONDS))

    def _claim_request(self, limit: int, options: ClaimOptions) -> ClaimRequest:
        return check_claim({**self._claimer, **options}, limit=limit, fresh_token=ids.lease_token())
