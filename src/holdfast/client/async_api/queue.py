"""`AsyncQueue` and `AsyncTransaction`: the async API."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from time import time_ns
from types import TracebackType
from typing import Any, Final, Unpack, overload

from holdfast.client import validate_calls
from holdfast.client.async_api import decoding
from holdfast.client.async_api.admin import AsyncAdmin
from holdfast.client.async_api.content import AsyncContentReads, AsyncContentWrites, AsyncUploads
from holdfast.client.async_api.enqueued import AsyncEnqueued, all_enqueued, enqueued_of
from holdfast.client.async_api.groups import AsyncGroupBlock, AsyncGroups, new_block
from holdfast.client.async_api.kinds import AsyncKinds
from holdfast.client.async_api.lanes import AsyncLanes
from holdfast.client.async_api.limits import AsyncLimits
from holdfast.client.async_api.reads import AsyncJobReads
from holdfast.client.async_api.schedules import AsyncSchedules
from holdfast.client.async_api.sessions import AsyncSessions, AsyncTurns
from holdfast.client.async_api.webhooks import AsyncWebhooks
from holdfast.client.middleware import CheckedSettlements
from holdfast.client.queue_state import QueueState
from holdfast.client.validate_calls import Params
from holdfast.domain import claims as claim_rules, errors, limits, validation
from holdfast.domain.claims import Claim, ClaimOptions, Lease, Renewal, SettledAndClaimed, Settlement
from holdfast.domain.job import Job
from holdfast.domain.job_options import EnqueueOptions
from holdfast.domain.new_job import JobLike, NewJob, check_job, check_new, new_job_of, uuid7
from holdfast.domain.outcomes import Outcome, check_plain, children_of
from holdfast.domain.results import CancelReport, add_cancelled
from holdfast.domain.strict_json import Json
from holdfast.domain.validation import Duration
from holdfast.operations import (
    admin as admin_operations,
    claim as claim_operations,
    enqueue as enqueue_operations,
    jobs as job_operations,
    lease as lease_operations,
    maintenance,
    settle as settle_operations,
)
from holdfast.storage import notifications, randomness
from holdfast.storage.runners import AsyncLeasing
from holdfast.storage.store import AsyncTarget, ExternalTransaction
from holdfast.tasks.decorators import AsyncTaskHost

# How often `wait` polls if no notification comes: frequently at first, then less often.
_POLL_SECONDS_FIRST: Final = 0.02
_POLL_SECONDS_LAST: Final = 0.5
# How often a waiting claim polls.
_CLAIM_SECONDS: Final = 1.0


class AsyncJobMethods(AsyncContentWrites):
    """The methods that a queue and a transaction have in common: what can join an open transaction."""

    def __init__(self, state: QueueState, target: AsyncTarget) -> None:
        self._state = state
        self._runner = decoding.runner_on(target, state.codec)

    # --- enqueue ---------------------------------------------------------------------------------------------------

    async def enqueue(
        self,
        kind: str | NewJob,
        payload: Json = None,
        *,
        delay: Duration | None = None,
        priority: int | None = None,
        lane: str | None = None,
        tenant: str | None = None,
        dedupe_key: str | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> AsyncEnqueued[Any]:
        """Store one job and return it once it is durable; `created` is false if it is a duplicate.

        The first argument is the kind, or a `NewJob` such as `task.new(…)`, which has its own payload and options.
        *payload* is JSON. The job may be claimed after *delay* seconds, from *lane*, by default `default`; among the
        jobs of a lane a higher *priority* goes first, the default is 0. It belongs to *tenant*, by default `default`.
        While a job with this *dedupe_key* is unfinished, another enqueue adds none. See `EnqueueOptions` for the
        other options. If this queue declares a task of the kind, its options are the defaults, and *payload* must fit
        its signature.

        Raises `InvalidInput` before anything is stored, `Conflict` if the id exists with other content or the
        duplicate cannot be replaced, `LaneDraining` and `KindRetired`.
        """
        state, fresh_id = self._state, uuid7(time_ns() // 1_000_000, randomness.RANDOM.getrandbits(74))
        by_default = delay is None and priority is None and lane is None and tenant is None and dedupe_key is None
        if by_default and not options and type(kind) is str and not state.tasks.by_kind:
            checked = check_new(kind, payload, fresh_id)
        else:
            common = {"delay": delay, "priority": priority, "lane": lane, "tenant": tenant, "dedupe_key": dedupe_key}
            new = new_job_of(kind, payload, common, options)
            checked = check_job(state.tasks.complete(new), fresh_id=fresh_id)
        if state.parent is not None:
            [checked] = children_of(state.parent, [checked])
        if state.codec is None and not state.middleware:
            stored = await self._runner.write(enqueue_operations.enqueue_job, checked)
        else:
            with state.enqueuing([checked]) as call:
                stored = await self._runner.write(enqueue_operations.enqueue_job, *call.jobs)
                call.answer = [stored]
        return enqueued_of(self, (stored.job,), 0, stored.created)

    async def enqueue_many(self, jobs: Sequence[JobLike]) -> list[AsyncEnqueued[Any]]:
        """Store many jobs, all or none, and return them in order.

        Each is a `NewJob` or a dict with the options of `enqueue`. If one is refused, the whole call fails with the
        error that `enqueue` would raise, and the error names the job: `jobs[3].payload`.
        """
        checked = validate_calls.jobs(jobs, self._state.tasks, self._state.parent)
        if self._state.codec is None and not self._state.middleware:
            found = await self._runner.write(enqueue_operations.enqueue_many, checked)
        else:
            with self._state.enqueuing(checked) as call:
                call.answer = found = await self._runner.write(enqueue_operations.enqueue_many, call.jobs)
        return all_enqueued(self, found)

    def group(
        self,
        name: str,
        *,
        on_end: JobLike | None = None,
        on_success: JobLike | None = None,
        on_first_failure: JobLike | None = None,
        tenant: str = "default",
        seal: bool = True,
    ) -> AsyncGroupBlock:
        """Enqueue jobs as a group: `async with queue.group("import-7", on_success={"kind": "report"}) as group`.

        The jobs of `group.enqueue` are stored and the group is sealed in one commit at the end of the block; if the
        block raises, nothing is stored. The callbacks are jobs: *on_end* is enqueued once all members have ended,
        *on_success* if all of them are done, *on_first_failure* when one is not. With *seal* false the group stays
        open, and a block of the same name adds to it. Leaving the block raises `Conflict` if the group is sealed.
        """
        given: dict[Any, JobLike | None] = {
            "on_end": on_end,
            "on_success": on_success,
            "on_first_failure": on_first_failure,
        }
        return new_block(self, self._state.tasks, name, tenant, given, seal=seal)

    # --- running attempts ------------------------------------------------------------------------------------------

    async def heartbeat(self, claim: Claim | Lease, *, lease: Duration | None = None) -> Renewal:
        """Extend a lease by *lease* seconds, by default its original length, or raise `LeaseLost`.

        The original length of a `Lease` is unknown; its default is 30 seconds.
        """
        [answer] = await self.heartbeat_many([await self._claim_of(claim)], lease=lease)
        if isinstance(answer, errors.HoldfastError):
            raise answer
        return answer

    async def heartbeat_many(
        self, claims: Sequence[Claim], *, lease: Duration | None = None
    ) -> list[Renewal | errors.HoldfastError]:
        """Extend many leases in one commit; return the `Renewal` or `LeaseLost` of each, in order.

        Each is extended by *lease* seconds, by default by its original length.
        """
        validate_calls.count(claims, "claims", limits.SETTLE_MANY_MAX)
        given_ms = None if lease is None else claim_rules.lease_ms(lease)
        held = [
            (claim_rules.fence_of(claim), claim.lease_ms if given_ms is None else given_ms)
            for claim in map(validate_calls.claim, claims)
        ]
        return await self._runner.write(lease_operations.heartbeat, held)

    async def acknowledge(self, claim: Claim | Lease) -> Renewal:
        """Record that the handler of a claimed job starts and extend the lease, or raise `LeaseLost`.

        A claim acknowledges its jobs itself, unless its option `acknowledged` leaves some of them out. A lease that
        expires unacknowledged uses up no attempt, except the third time in a row.
        """
        held = await self._claim_of(claim)
        leases = [(claim_rules.fence_of(held), held.lease_ms)]
        [answer] = await self._runner.write(lease_operations.heartbeat, leases, None, (held.job.number,))
        if isinstance(answer, errors.HoldfastError):
            raise answer
        return answer

    async def progress(self, claim: Claim | Lease, *, phase: str | None = None, percent: float | None = None) -> Job:
        """Store the progress of a running job and return the job, or raise `LeaseLost`.

        *phase* is a short name, *percent* a number from 0 to 100; an option not given keeps its value.
        """
        phase = validation.optional_name(phase, "phase", limits.PHASE_CHARS_MAX)
        percent = None if percent is None else validation.number(percent, "percent", 0, 100)
        held = await self._claim_of(claim)
        return await self._runner.write(lease_operations.progress, claim_rules.fence_of(held), phase, percent)

    async def settle(self, claim: Claim | Lease, outcome: Outcome) -> Job:
        """Record the outcome of an attempt and return the settled job, or raise `LeaseLost`.

        Follow-ups, artifacts and events commit together with it. Repeating the same call succeeds.
        """
        held = claim if isinstance(claim, Claim) else await self._claim_of(claim)
        plain = check_plain(outcome)
        if plain is not None and self._state.codec is None and not self._state.middleware:
            [settlement] = await self._runner.write(settle_operations.settle_jobs, [(held, plain)])
        else:
            [settlement] = await self.settle_many([(held, outcome)])
        if settlement.error is not None:
            raise settlement.error
        assert settlement.job is not None  # noqa: S101  # without an error there is a job
        return settlement.job

    async def settle_many(self, settlements: Sequence[tuple[Claim, Outcome]]) -> list[Settlement]:
        """Record many outcomes in one commit; return a `Settlement` for each, in order.

        *settlements* are pairs of a `Claim` and its outcome: `[(claim, Done()), …]`. If the follow-ups have more than
        256 dedupe keys and chosen ids in total, there are several commits; inside the caller's transaction the call
        raises `InvalidInput`. A refused settlement does not affect the others. An invalid outcome raises
        `InvalidInput` and settles nothing.
        """
        checked = validate_calls.settlements(settlements, observed=bool(self._state.middleware))
        if self._state.codec is None and not self._state.middleware:
            return await self._settle(checked)
        with self._state.settling(checked) as call:
            return call.answered(await self._settle(call.outcomes))

    async def _settle(self, outcomes: CheckedSettlements) -> list[Settlement]:
        parts = settle_operations.divide_settlements(outcomes)
        if self._runner.joined and len(parts) > 1:
            # Parts in one transaction would lock their keys in no common order, and two such calls may deadlock.
            raise errors.InvalidInput(
                "settlements",
                f"have follow-ups with more than {limits.KEYS_LOCKED_MAX} dedupe keys and chosen ids, which one"
                " transaction cannot lock; settle them in several transactions",
            )
        settled: list[Settlement] = []
        for part in parts:
            settled += await self._runner.write(settle_operations.settle_jobs, part)
        return settled

    async def _claim_of(self, held: Claim | Lease) -> Claim:
        """Return the claim of a running job; the job of a lease is read from the store."""
        if isinstance(held, Claim):
            return held
        return await self._runner.read(lease_operations.claim_of_lease, validate_calls.lease(held))

    # --- one job ---------------------------------------------------------------------------------------------------

    async def get(self, job_id: str | int, *, tenant: str | None = None) -> Job:
        """Return the job with this id, or with this number if it is an int, or raise `JobNotFound`.

        With *tenant*, jobs of other tenants are not found.
        """
        checked = validate_calls.job_id_or_number(job_id)
        return await self._runner.read(job_operations.get, checked, validate_calls.tenant(tenant))

    @overload
    async def cancel(self, job_id: str, *, force: bool = False, tenant: str | None = None) -> Job: ...

    @overload
    async def cancel(self, *, root: str, force: bool = False, tenant: str | None = None) -> CancelReport: ...

    async def cancel(
        self,
        job_id: str | None = None,
        *,
        root: str | None = None,
        force: bool = False,
        tenant: str | None = None,
    ) -> Job | CancelReport:
        """Cancel a waiting job; request a running one to stop, or with *force* take it from its worker.

        Return the job. Raises `JobNotFound`, and `Conflict` if the job has already finished in another state. With
        *tenant*, jobs of other tenants are not found. With *root* instead of an id, cancel all unfinished jobs of its
        tree (`Job.root`), in bounded chunks, and return a `CancelReport`.
        """
        force, tenant = validation.flag(force, "force"), validate_calls.tenant(tenant)
        if root is None:
            if job_id is None:
                raise errors.InvalidInput("job_id", "must be given, or root")
            return await self._runner.write(
                admin_operations.cancel, validate_calls.job_id(job_id), tenant, force=force
            )
        if job_id is not None:
            raise errors.InvalidInput("root", "cannot be combined with job_id; give one of them")
        checked = validation.name(root, "root", limits.JOB_ID_CHARS_MAX)
        total, after, ends = CancelReport([], [], []), None, False
        while not ends:
            report, after = await self._runner.write(
                admin_operations.cancel_tree, checked, tenant, after, force=force
            )
            add_cancelled(total, report)
            ends = after is None
        return total

    async def requeue(self, job_id: str, *, with_children: bool = False, tenant: str | None = None) -> Job:
        """Make a failed or cancelled job ready again with a new set of attempts and return it.

        With *with_children*, the jobs that its end has cancelled depend on it again. Raises `JobNotFound`,
        `KindRetired`, and `Conflict` if the job is not failed or cancelled, or if another job holds its dedupe key.
        With *tenant*, jobs of other tenants are not found.
        """
        job_id, tenant = validate_calls.job_id(job_id), validate_calls.tenant(tenant)
        with_children = validation.flag(with_children, "with_children")
        return await self._runner.write(admin_operations.requeue, job_id, tenant, with_children=with_children)

    async def reprioritize(self, job_id: str, priority: int, *, tenant: str | None = None) -> Job:
        """Change the priority of an unfinished job and return it.

        Raises `JobNotFound`, and `Conflict` if the job has finished. With *tenant*, jobs of other tenants are not
        found.
        """
        priority = validation.integer(priority, "priority", -limits.PRIORITY_MAX, limits.PRIORITY_MAX)
        job_id, tenant = validate_calls.job_id(job_id), validate_calls.tenant(tenant)
        return await self._runner.write(admin_operations.reprioritize, job_id, priority, tenant)

    @abstractmethod
    async def _wait_committed(self, job_id: str, timeout: Duration) -> Job:  # noqa: ASYNC109
        """Return the job once it has finished; raise `Conflict` if its enqueue has not committed."""


class AsyncTransaction(AsyncJobMethods):
    """A queue within an open transaction, as `queue.transaction` and `queue.within` return it.

    What its methods write is committed with the transaction or not at all.

    A call that raises has changed nothing; the caller may catch the error and continue.
    """

    def __init__(
        self, state: QueueState, joined: ExternalTransaction, *, is_open: Callable[[], bool] | None = None
    ) -> None:
        super().__init__(state, joined)
        self._joined = joined
        self._is_open = is_open
        """Returns whether it is open; None for a caller's own transaction, whose end is unknown."""
        self.sessions = AsyncTurns(self)
        """Settles and extends turns of sessions."""

    async def execute(self, sql: str, params: Params = ()) -> list[Any]:
        """Run the caller's SQL in the transaction and return the rows, as the driver returns them.

        *params* is a mapping for parameters `:name`, or a sequence for parameters `?`, on SQLite and on PostgreSQL.
        Errors of the statement are those of the driver.
        """
        return await self._joined.execute_async(sql, validate_calls.params(params))

    async def _wait_committed(self, job_id: str, timeout: Duration) -> Job:  # noqa: ASYNC109
        if self._is_open is not None and self._is_open():
            raise errors.Conflict(
                f"job {job_id!r} was enqueued in a transaction that is still open, and no worker sees it before the"
                " commit; call result() after the transaction",
                job_id=job_id,
            )
        try:
            return await AsyncQueue(self._state).wait(job_id, timeout=timeout)
        except errors.JobNotFound:
            raise errors.Conflict(
                f"job {job_id!r} was enqueued in a transaction that has not committed; call result() after that",
                job_id=job_id,
            ) from None


class AsyncQueue(AsyncJobMethods, AsyncJobReads, AsyncContentReads, AsyncTaskHost):
    """A durable work queue with async methods, created by `connect_async`. It may be shared between threads.

    It opens, creates and migrates its store on first use.
    """

    sessions: AsyncSessions
    """Claims, settles and owns sessions."""
    lanes: AsyncLanes
    """Lists and configures lanes."""
    kinds: AsyncKinds
    """Lists, retires and restores kinds of jobs."""
    admin: AsyncAdmin
    """Counts, cancels, requeues and deletes many jobs, and manages workers."""
    webhooks: AsyncWebhooks
    """Events of jobs, sent to URLs."""
    groups: AsyncGroups
    """Jobs that were enqueued together."""
    schedules: AsyncSchedules
    """Jobs at times of a calendar or at intervals."""
    limits: AsyncLimits
    """How many jobs of one key run at once, or start per time."""
    uploads: AsyncUploads
    """Uploads bytes of large artifacts."""

    def __init__(self, state: QueueState) -> None:
        if not isinstance(state, QueueState):
            raise validate_calls.not_connected("connect_async")
        AsyncTaskHost.__init__(self, state.tasks)
        AsyncJobMethods.__init__(self, state, state.store)
        self.sessions = AsyncSessions(self)
        self.lanes = AsyncLanes(self)
        self.kinds = AsyncKinds(self)
        self.admin = AsyncAdmin(self)
        self.webhooks = AsyncWebhooks(self)
        self.groups = AsyncGroups(self)
        self.schedules = AsyncSchedules(self)
        self.limits = AsyncLimits(self)
        self.uploads = AsyncUploads(self)

    def _use(self, state: QueueState) -> None:
        """Switch to the store of *state*."""
        self._state = state
        self._runner = decoding.runner_on(state.store, state.codec)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {self._state.store!r}>"

    # --- claim -----------------------------------------------------------------------------------------------------

    async def claim(self, **options: Unpack[ClaimOptions]) -> Claim | None:
        """Lease the next job, or return None if there is none: `claim(kinds=["email"], lease=30, wait=10)`.

        See `ClaimOptions` for the options: which lanes, kinds and tenant to take from, the length of the lease, how
        long to wait, and the name of the worker. Raises `Conflict` if the given *lease_token* belongs to a claim of
        other jobs.
        """
        if "limit" in options:
            raise errors.InvalidInput(
                "limit", "cannot be given to claim, which takes one job; use claim_many(limit=…)"
            )
        with self._runner.leasing() as leasing:
            found = await self._claim(leasing, self._claim_request(1, options))
            return found[0] if found else None

    async def claim_many(self, *, limit: int = 100, **options: Unpack[ClaimOptions]) -> list[Claim]:
        """Lease up to *limit* ready jobs to one worker, in claim order; see `ClaimOptions` for the options."""
        with self._runner.leasing() as leasing:
            return await self._claim(leasing, self._claim_request(limit, options))

    async def settle_and_claim(
        self,
        settlements: Sequence[tuple[Claim, Outcome]],
        *,
        limit: int = 100,
        started: Sequence[Claim] = (),
        **options: Unpack[ClaimOptions],
    ) -> SettledAndClaimed:
        """Settle as `settle_many` does and claim up to *limit* jobs as `claim_many` does, in one commit.

        See `ClaimOptions` for the options. Acknowledge the claims in *started* that are still held.
        """
        checked = validate_calls.settlements(settlements, observed=bool(self._state.middleware))
        fences: Sequence[claim_rules.JobFence] = ()
        if started:
            validate_calls.count(started, "started", limits.SETTLE_MANY_MAX)
            fences = [claim_rules.fence_of(claim) for claim in map(validate_calls.claim, started)]
        request = self._claim_request(limit, options)
        with self._runner.leasing() as leasing:
            if self._state.codec is None and not self._state.middleware:
                settled, claims = await self._settle_and_claim(leasing, checked, fences, request)
            else:
                with self._state.settling(checked) as settling, self._state.claiming(request) as claiming:
                    stored, claims = await self._settle_and_claim(leasing, settling.outcomes, fences, request)
                    settled, claiming.answer = settling.answered(stored), claims
            if not claims and request.wait_ms:
                claims = await self._claim(leasing, request, claimed_nothing=True)
            return claim_rules.settled_and_claimed(settled, claims)

    async def _settle_and_claim(
        self,
        leasing: AsyncLeasing,
        outcomes: CheckedSettlements,
        started: Sequence[claim_rules.JobFence],
        request: claim_rules.ClaimRequest,
    ) -> tuple[list[Settlement], list[Claim]]:
        settled: list[Settlement] = []
        if len(outcomes) > 1:
            *before, outcomes = settle_operations.divide_settlements(outcomes)
            for part in before:
                settled += await self._runner.write(settle_operations.settle_jobs, part)
        undo, operation = claim_operations.undo_settle_and_claim, claim_operations.settle_and_claim
        newest, claims = await leasing.lease(undo, operation, outcomes, started, request)
        return settled + newest if settled else newest, claims

    async def _claim(
        self, leasing: AsyncLeasing, request: claim_rules.ClaimRequest, *, claimed_nothing: bool = False
    ) -> list[Claim]:
        """Claim; if no job is ready, wait for one up to the request's `wait`."""
        if not request.wait_ms:
            return await self._claim_now(leasing, request)
        left = request.wait_ms / 1000
        until = time.monotonic() + left
        with self._runner.listen(*map(notifications.lane_topic, request.lanes)) as listener:
            while True:
                if not claimed_nothing and (claims := await self._claim_now(leasing, request)):
                    return claims
                if (left := until - time.monotonic()) <= 0:
                    return []
                claimed_nothing = False
                # A job that falls due or a lease that expires sends no notification.
                next_change = await self._runner.read(claim_operations.seconds_to_next_change)
                left -= await listener.wait(min(left, next_change, _CLAIM_SECONDS))
                request = request._replace(wait_ms=max(round(left * 1000), 0))

    async def _claim_now(self, leasing: AsyncLeasing, request: claim_rules.ClaimRequest) -> list[Claim]:
        undo, claim_jobs = claim_operations.undo_claims, claim_operations.claim_jobs
        if not self._state.middleware:
            return await leasing.lease(undo, claim_jobs, request)
        with self._state.claiming(request) as call:
            call.answer = claims = await leasing.lease(undo, claim_jobs, request)
        return claims

    def _claim_request(self, limit: int, options: ClaimOptions) -> claim_rules.ClaimRequest:
        return claim_rules.check_claim(
            {**self._state.claimer, **options}, limit=limit, fresh_token=randomness.lease_token()
        )

    # --- read ------------------------------------------------------------------------------------------------------

    async def wait(
        self,
        job_id: str,
        *,
        timeout: Duration,  # noqa: ASYNC109
        tenant: str | None = None,
    ) -> Job:
        """Return the job once it has finished in any state, or raise `WaitTimeout` after *timeout* seconds.

        Raises `JobNotFound` if there is no such job; with *tenant*, jobs of other tenants are not found.
        """
        left = allowed = validation.duration_ms(timeout, "timeout", 0, limits.WAIT_MS_MAX) / 1000
        poll_seconds, until = _POLL_SECONDS_FIRST, time.monotonic() + allowed
        job_id, tenant = validate_calls.job_id(job_id), validate_calls.tenant(tenant)
        with self._runner.listen(notifications.job_topic(job_id)) as listener:
            while True:
                job = await self._get_current(job_id, tenant, left)
                if job.finished:
                    return job
                if (left := until - time.monotonic()) <= 0:
                    raise errors.WaitTimeout(job_id, allowed)
                left -= await listener.wait(min(poll_seconds, left))
                poll_seconds = min(poll_seconds * 1.5, _POLL_SECONDS_LAST)

    async def _get_current(self, job_id: str, tenant: str | None, wait_seconds: float) -> Job:
        job, overdue = await self._runner.read(job_operations.get_overdue, job_id, tenant, max(wait_seconds, 0.0))
        if not overdue:
            return job
        # No worker has failed the job since its deadline passed, so the waiting caller does.
        await self._runner.write(maintenance.fail_late_jobs)
        return await self._runner.read(job_operations.get, job_id, tenant)

    async def _wait_committed(self, job_id: str, timeout: Duration) -> Job:  # noqa: ASYNC109
        return await self.wait(job_id, timeout=timeout)

    # --- transactions and the store --------------------------------------------------------------------------------

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncTransaction]:
        """Open a write transaction; it commits at the end of the block, or rolls back if the block raises.

        It blocks every other writer: keep it short.
        """
        is_open = True
        async with self._state.store.transaction_async() as joined:
            try:
                yield AsyncTransaction(self._state, joined, is_open=lambda: is_open)
            finally:
                is_open = False

    def within(self, connection: Any) -> AsyncTransaction:
        """Join the write transaction that is open on the caller's *connection* to the same database.

        It is a connection of `sqlite3`, `aiosqlite` or `psycopg`. The caller commits or rolls
        back. Waiting callers and workers see the changes at their next poll. Raises `InvalidInput` if the connection
        cannot be joined.
        """
        return AsyncTransaction(self._state, self._state.store.within(connection))

    async def migrate(self) -> list[str]:
        """Bring the schema up to date and return the names of the migrations applied."""
        return await self._runner.run_blocking(self._state.store.migrate)

    async def close(self) -> None:
        """Close the store. The next use opens it again; the contents of `:memory:` are lost."""
        await self._runner.run_blocking(self._state.store.close)

    async def __aenter__(self) -> AsyncQueue:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
