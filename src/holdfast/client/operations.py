"""Everything a queue can do, each operation written once: check the words, then run scripts.

A method here is a procedure, without colour: `Queue`, `AsyncQueue` and their transactions give it one. Signatures and
docstrings stand here alone; the faces take them over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Unpack, cast, overload

from holdfast.client import ids, validate_calls
from holdfast.client.admin import AdminOperations
from holdfast.client.middleware import Middleware, Watch
from holdfast.client.sessions import SessionOperations
from holdfast.client.validate_calls import Held
from holdfast.domain import limits, validation
from holdfast.domain.claims import Claim, ClaimOptions, ClaimRequest, Kept, Renewal, Settlement, check_claim, lease_ms
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
)
from holdfast.domain.serving import Unserved
from holdfast.domain.session_leases import SessionClaim
from holdfast.domain.validation import Duration
from holdfast.operations import admin as admin_operations
from holdfast.operations import claim as claim_operations
from holdfast.operations import events as event_operations
from holdfast.operations import jobs as job_operations
from holdfast.operations import lease as lease_operations
from holdfast.operations import maintenance
from holdfast.operations import retention as retention_operations
from holdfast.operations import workers as worker_operations
from holdfast.storage.notifications import job_topic, lane_topic
from holdfast.storage.runners import AsyncRunner, Runner, SyncRunner
from holdfast.storage.store import AsyncTarget, SyncTarget
from holdfast.tasks.task import TaskRegistry

COUNT_BY: tuple[CountBy, ...] = ("state", "kind", "lane", "tenant", "failure_class")

# How often `wait` looks by itself where nobody can wake it: quickly at first, then less and less.
_POLL_SECONDS_FIRST = 0.02
_POLL_SECONDS_LAST = 0.5
# How long events that open transactions hold back are waited for, before those are read or pruned that are not.
_HELD_BACK_SECONDS = 0.5
# How often a claim that waits for work looks by itself.
_CLAIM_SECONDS = 1.0


class SettledAndClaimed(NamedTuple):
    """The two halves of a settle fused with the next claim."""

    settlements: list[Settlement]
    claims: list[Claim]


@dataclass
class Shared:
    """What all operations of one queue share, whichever runner they use."""

    claimer: ClaimOptions
    """Who claims if a call does not say: this start of this process."""
    middleware: Middleware
    """How jobs are enqueued, claimed and settled; tracing replaces it."""
    watches: tuple[Watch, ...] = ()
    """What workers call for the attempts they hold."""
    tasks: TaskRegistry = field(default_factory=TaskRegistry)
    """The tasks of the queue, whose options and signatures hold for jobs of their kinds."""


class Operations(AdminOperations, SessionOperations):
    """What can be asked of a store, checked and turned into procedures."""

    def __init__(self, runner: Runner, shared: Shared) -> None:
        super().__init__(runner, shared.claimer)
        self.shared = shared

    def for_tasks(self, tasks: TaskRegistry) -> Operations:
        """Return the same operations for a queue with these tasks."""
        return Operations(self.runner, replace(self.shared, tasks=tasks))

    def on(self, runner: Runner) -> Operations:
        """Return the same operations with another runner."""
        return Operations(runner, self.shared)

    def sync_on(self, target: SyncTarget) -> Operations:
        """Return the same operations in the caller's thread; `run_sync` runs them."""
        return self.on(SyncRunner(target))

    def async_on(self, target: AsyncTarget) -> Operations:
        """Return the same operations in the event loop."""
        return self.on(AsyncRunner(target))

    @property
    def middleware(self) -> Middleware:
        """How jobs are enqueued, claimed and settled."""
        return self.shared.middleware

    @property
    def watches(self) -> tuple[Watch, ...]:
        """What workers call for the attempts they hold."""
        return self.shared.watches

    @property
    def tasks(self) -> TaskRegistry:
        """The tasks of the queue, whose options and signatures hold for jobs of their kinds."""
        return self.shared.tasks

    # --- enqueue ---------------------------------------------------------------------------------------------------

    async def enqueue(self, kind: str, payload: Any = None, **options: Unpack[JobOptions]) -> Enqueued:
        """Store one job and return it, with `created` telling whether it is new; when this returns, it is durable.

        See `JobOptions` for the words. The options of a task that this queue declares for *kind* hold unless the call
        sets them, and *payload* must fit its signature. Raises `InvalidInput` before anything is stored, `Conflict`
        if the id exists with other content or the duplicate cannot be replaced, `LaneDraining` and `KindRetired`.
        """
        new = self.tasks.complete(NewJob(kind, payload, **options))
        admission = check_job(new, fresh_id=ids.uuid7())
        return await self.middleware.enqueue_one(self.runner, admission)

    async def enqueue_many(self, jobs: Sequence[JobLike]) -> list[Enqueued]:
        """Store many jobs, all or none, and return them in order.

        Each is a `NewJob` or a dict with the words of `enqueue`. One that is refused refuses the whole call, and the
        error names it: `jobs[3].payload`.
        """
        return await self.middleware.enqueue(self.runner, validate_calls.jobs(jobs, self.tasks))

    # --- claim and lease -------------------------------------------------------------------------------------------

    async def claim(self, **words: Unpack[ClaimOptions]) -> Claim | None:
        """Lease the next job, or return None if there is none; `ClaimOptions` has the words."""
        if "limit" in words:
            raise InvalidInput("limit", "cannot be given to claim, which takes one job; use claim_many(limit=…)")
        found = await self.claim_many(limit=1, **words)
        return found[0] if found else None

    async def claim_many(self, *, limit: int = 100, **words: Unpack[ClaimOptions]) -> list[Claim]:
        """Lease up to *limit* ready jobs to one worker, in the order of claiming; `ClaimOptions` has the words."""
        return await self._claim(self._claim_request(limit, words))

    async def heartbeat(self, claim: Claim | SessionClaim, *, lease: Duration | None = None) -> Renewal:
        """Extend the lease, by its first length unless *lease* says otherwise, or raise `LeaseLost`.

        A session claim is extended as a whole, or not at all.
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
        """Extend many leases in one commit; each gets its `Renewal` or its `LeaseLost`, in order."""
        validate_calls.count(claims, "claims", limits.SETTLE_MANY_MAX)
        given_ms = None if lease is None else lease_ms(lease)
        held = [
            (claim.lease, claim.lease_ms if given_ms is None else given_ms)
            for claim in map(validate_calls.claim, claims)
        ]
        return await self.runner.write(lease_operations.heartbeat, held)

    async def acknowledge(self, claim: Claim) -> Renewal:
        """Say that the handler of a job taken ahead starts, or raise `LeaseLost`; the lease is extended as well.

        A claim is acknowledged by itself unless its option `acknowledged` says otherwise. A lease that ends without
        having been acknowledged spends no attempt, except the third time in a row.
        """
        held = validate_calls.claim(claim)
        beats = [(held.lease, held.lease_ms)]
        [answer] = await self.runner.write(lease_operations.heartbeat, beats, None, (held.job.seq,))
        if isinstance(answer, HoldfastError):
            raise answer
        return answer

    async def renew_many(self, held: Sequence[Kept]) -> list[Renewal | HoldfastError]:
        """Extend many leases as `heartbeat_many` does, in one commit with what is new of their handlers."""
        beats = [(kept.claim.lease, kept.claim.lease_ms) for kept in held]
        notes = {kept.claim.job.seq: kept.note for kept in held if kept.note is not None}
        started = {kept.claim.job.seq for kept in held if kept.started}
        return await self.runner.write(lease_operations.heartbeat, beats, notes, started)

    async def progress(self, claim: Claim, *, phase: str | None = None, percent: float | None = None) -> Job:
        """Say what the running job is doing, or raise `LeaseLost`; a word not given stays as it was."""
        phase = validation.optional_name(phase, "phase", limits.PHASE_CHARS_MAX)
        percent = None if percent is None else validation.number(percent, "percent", 0, 100)
        return await self.runner.write(lease_operations.progress, validate_calls.claim(claim).lease, phase, percent)

    async def attach(self, claim: Claim, artifacts: Sequence[Artifact]) -> None:
        """Store artifacts of the running job, or raise `LeaseLost`; one of the same name is replaced."""
        checked = check_artifacts(artifacts)
        await self.runner.write(lease_operations.attach, validate_calls.claim(claim).lease, checked)

    # --- settle ----------------------------------------------------------------------------------------------------

    @overload
    async def settle(self, claim: Claim, outcome: Outcome) -> Job: ...

    @overload
    async def settle(self, claim: SessionClaim, outcome: Outcome | Sequence[Outcome]) -> list[Job]: ...

    async def settle(self, claim: Claim | SessionClaim, outcome: Outcome | Sequence[Outcome]) -> Job | list[Job]:
        """Record the outcome of an attempt and return the job it leaves behind, or raise `LeaseLost`.

        Follow-ups, artifacts and events commit together with it. Sending the same settle again succeeds. A session
        claim takes one outcome for all of its entries, or one for each: all are settled in one commit, or none.
        """
        if isinstance(claim, SessionClaim):
            return await self._settle_session(claim, outcome)
        # A list is refused where the outcome is checked.
        [settlement] = await self.settle_many([(claim, cast(Outcome, outcome))])
        if settlement.error is not None:
            raise settlement.error
        assert settlement.job is not None  # noqa: S101  # without an error there is a job
        return settlement.job

    async def settle_many(self, settlements: Sequence[Held]) -> list[Settlement]:
        """Record many outcomes in one commit; each claim gets its own answer, in order.

        If follow-ups bring more than 256 dedupe keys and chosen ids together, there are several commits.
        One that is refused neither hides nor undoes the others. An outcome that is itself invalid refuses the call.
        """
        return await self.middleware.settle(self.runner, validate_calls.settlements(settlements))

    async def settle_and_claim(
        self,
        settlements: Sequence[Held],
        *,
        limit: int = 100,
        started: Sequence[Claim] = (),
        **words: Unpack[ClaimOptions],
    ) -> SettledAndClaimed:
        """Record outcomes as `settle_many` does and lease the next jobs as `claim_many` does, in one commit.

        The claims in *started* are acknowledged, if they are still held.
        """
        checked = validate_calls.settlements(settlements)
        validate_calls.count(started, "started", limits.SETTLE_MANY_MAX)
        leases = [claim.lease for claim in map(validate_calls.claim, started)]
        request = self._claim_request(limit, words)
        settled, claims = await self.middleware.settle_and_claim(self.runner, checked, leases, request)
        return SettledAndClaimed(settled, claims or (await self._claim(request, tried=True)))

    # --- look ------------------------------------------------------------------------------------------------------

    async def get(self, job_id: str | int, *, tenant: str | None = None) -> Job:
        """Return the job of this id, or of this number if it is an int, or raise `JobNotFound`.

        With *tenant*, other tenants' jobs are not found.
        """
        wanted = validate_calls.job_id_or_number(job_id)
        return await self.runner.read(job_operations.get, wanted, validate_calls.tenant(tenant))

    async def wait(  # the store's own wait, for sync callers too
        self,
        job_id: str,
        *,
        timeout: Duration,  # noqa: ASYNC109  # sync callers wait here too
        tenant: str | None = None,
    ) -> Job:
        """Return the job once it has finished, in whichever way, or raise `WaitTimeout` after *timeout* seconds."""
        left = validation.duration_ms(timeout, "timeout", 0, limits.WAIT_MS_MAX) / 1000
        looks = _POLL_SECONDS_FIRST
        job_id, tenant, allowed = validate_calls.job_id(job_id), validate_calls.tenant(tenant), left
        with self.runner.listen(job_topic(job_id)) as listener:
            while True:
                job = await self._look(job_id, tenant)
                if job.finished:
                    return job
                if left <= 0:
                    raise WaitTimeout(job_id, allowed)
                left -= await listener.wait(min(looks, left))
                looks = min(looks * 1.5, _POLL_SECONDS_LAST)

    async def _look(self, job_id: str, tenant: str | None) -> Job:
        job, overdue = await self.runner.read(job_operations.look, job_id, tenant)
        if not overdue:
            return job
        # The deadline has passed and no worker came by to notice: whoever waits brings it to its end.
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

        *state* is one state or several. One finished state is listed by its end; all else, and the entries of a
        *session* of *tenant* or of the default tenant, by enqueue order. *older_than* counts from a job's end, or
        from its enqueueing if it has not finished.
        """
        wanted = validate_calls.job_filter(
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
        return await self.runner.read(job_operations.jobs, wanted, after, limit)

    async def attempts(self, job_id: str, *, tenant: str | None = None) -> list[Attempt]:
        """Return the attempts of a job, oldest first, the newest of them perhaps still running."""
        return await self.runner.read(
            job_operations.attempts, validate_calls.job_id(job_id), validate_calls.tenant(tenant)
        )

    async def artifacts(self, job_id: str, *, tenant: str | None = None) -> list[ArtifactInfo]:
        """Return what artifacts a job has, by name, without their bytes."""
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
        """Count jobs by state, kind, lane, tenant or failure class. This reads every job: not for a hot loop."""
        by = validation.one_of(by, "by", COUNT_BY)
        return await self.runner.read(job_operations.counts, by, validate_calls.tenant(tenant))

    async def backlog(self) -> Backlog:
        """Return what waits and runs, counted up to a bound, so that it can be asked every few seconds."""
        return await self.runner.read(job_operations.backlog)

    async def unserved(self) -> list[Unserved]:
        """Return the ready jobs that no live worker takes, by lane, kind and required capabilities, and why."""
        return await self.runner.read(job_operations.unserved)

    async def events(
        self, *, after: str | None = None, limit: int = limits.PAGE_DEFAULT, tenant: str | None = None
    ) -> EventPage:
        """Return recorded events after a cursor, in order; without one, from the oldest that is kept.

        With *tenant*, a page may be empty though more follow: go on from its cursor until that stands still. Raises
        `EventsPruned` if events after this cursor were pruned before they were read.
        """
        limit = validation.integer(limit, "limit", 1, limits.PAGE_MAX)
        after = validation.optional_name(after, "after")
        left = _HELD_BACK_SECONDS
        with self.runner.listen() as listener:
            while True:
                page, held_back = await self.runner.read(
                    event_operations.page, after, limit, validate_calls.tenant(tenant)
                )
                if not held_back or left <= 0:
                    return page
                # Another transaction is about to commit. A moment later the page is complete, with one's own events.
                left -= await listener.wait(_HELD_BACK_SECONDS / 50)

    async def workers(self, *, limit: int = limits.PAGE_DEFAULT) -> list[WorkerInfo]:
        """Return the workers that said something last: who runs, what it takes and holds, when it last said so."""
        limit = validation.integer(limit, "limit", 1, limits.PAGE_MAX)
        return await self.runner.read(worker_operations.newest, limit)

    async def worker_beat(self, worker: WorkerInfo) -> None:
        """Write what one start of a worker says of itself."""
        await self.runner.write(worker_operations.beat, worker)

    async def worker_leave(self, worker: str, incarnation: str) -> None:
        """Delete the row of a start that ends in good order."""
        await self.runner.write(worker_operations.leave, worker, incarnation)

    async def report(self) -> StoreReport:
        """Return what an operator should know of the store's health."""
        return await self.runner.read(job_operations.report)

    async def troubles(self) -> list[Finding]:
        """Return what of the report concerns jobs and can be asked often."""
        return await self.runner.read(job_operations.troubles)

    # --- operate ---------------------------------------------------------------------------------------------------

    async def cancel(self, job_id: str, *, force: bool = False, tenant: str | None = None) -> Job:
        """Cancel a waiting job at once; ask a running one to stop, or with *force* take it from its worker.

        Raises `Conflict` if the job has already ended in another way.
        """
        force = validation.flag(force, "force")
        return await self.runner.write(
            admin_operations.cancel,
            validate_calls.job_id(job_id),
            validate_calls.tenant(tenant),
            force=force,
        )

    async def requeue(self, job_id: str, *, tenant: str | None = None) -> Job:
        """Make a failed or cancelled job ready again with all its attempts, or raise `Conflict`."""
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
        """Refuse new jobs of a kind and set its waiting ones aside, in bounded bites; return how many.

        A running one is retired when its attempt ends without having finished it.
        """
        kind = validation.name(kind, "kind")
        routes = await self.runner.write(admin_operations.retire_kind, kind)
        total = after = 0
        while waiting := (await self.runner.read(admin_operations.waiting_on, routes, after)):
            total += await self.runner.write(admin_operations.retire_jobs, waiting)
            after = waiting[-1]
        return total

    async def restore(self, kind: str) -> None:
        """Take new jobs of a retired kind again; jobs already retired stay so. Raises `UnknownKind` if it is not."""
        if not (await self.runner.write(admin_operations.restore_kind, validation.name(kind, "kind"))):
            raise UnknownKind(kind, "is not retired")

    async def prune(
        self,
        *,
        older_than: Duration,
        states: Sequence[State] = FINISHED,
        events_older_than: Duration | None = None,
        source_keys_older_than: Duration = limits.SOURCE_KEYS_KEPT_MS_DEFAULT / 1000,
        dry_run: bool = False,
    ) -> Pruned:
        """Delete jobs that finished longer ago than *older_than*, with attempts and artifacts, in bounded bites.

        The event log is shortened from its start, by *events_older_than* or else *older_than*. A session forgets the
        source keys of entries that were deleted longer ago than *source_keys_older_than*, by default 7 days. With
        *dry_run* it deletes nothing and returns how many it would.
        """
        sources_age_ms = validation.duration_ms(source_keys_older_than, "source_keys_older_than")
        age_ms = validation.duration_ms(older_than, "older_than")
        events_age_ms = (
            age_ms if events_older_than is None else validation.duration_ms(events_older_than, "events_older_than")
        )
        chosen = [validation.one_of(state, f"states[{index}]", FINISHED) for index, state in enumerate(states)]
        if validation.flag(dry_run, "dry_run"):
            return await self._prunable(tuple(chosen), age_ms, events_age_ms)
        jobs = events = 0
        for state in chosen:
            while bite := (await self.runner.write(retention_operations.prune_jobs, state, age_ms)):
                jobs += bite
        while await self.runner.write(retention_operations.prune_sources, sources_age_ms):
            pass
        left = _HELD_BACK_SECONDS
        with self.runner.listen() as listener:
            while True:
                bite, held_back = await self.runner.write(retention_operations.prune_events, events_age_ms)
                events += bite
                if held_back and left > 0:
                    left -= await listener.wait(_HELD_BACK_SECONDS / 50)
                elif not bite:
                    return Pruned(jobs, events)

    async def _prunable(self, states: tuple[State, ...], age_ms: int, events_age_ms: int) -> Pruned:
        found: list[Tally] = []
        if states:
            found = await self.runner.read(job_operations.tally, JobFilter(states=states, age_ms=age_ms))
        left = _HELD_BACK_SECONDS
        with self.runner.listen() as listener:
            while True:
                events, held_back = await self.runner.read(retention_operations.count_prunable_events, events_age_ms)
                if not held_back or left <= 0:
                    return Pruned(sum(one.jobs for one in found), events)
                left -= await listener.wait(_HELD_BACK_SECONDS / 50)

    # --- claiming --------------------------------------------------------------------------------------------------

    async def _claim(self, request: ClaimRequest, *, tried: bool = False) -> list[Claim]:
        """Claim, and if there is nothing, wait as long as the request says for something to come."""
        left = request.wait_ms / 1000
        with self.runner.listen(*(lane_topic(lane) for lane in request.lanes if left)) as listener:
            while True:
                if not tried and (claims := await self.middleware.claim(self.runner, request)):
                    return claims
                if left <= 0:
                    return []
                tried = False
                # A job that falls due or a lease that expires sends no notification.
                coming = await self.runner.read(claim_operations.seconds_to_next_change)
                left -= await listener.wait(min(left, coming, _CLAIM_SECONDS))

    def _claim_request(self, limit: int, words: ClaimOptions) -> ClaimRequest:
        return check_claim({**self._claimer, **words}, limit=limit, fresh_token=ids.lease_token())
