"""Transactions: begin and read the clock, run the operation, commit and notify; or use a savepoint of the caller's.

An operation that conflicts with others is run again. No state is kept on the connection.
"""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from operator import attrgetter
from typing import Any, Final, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from holdfast.domain import limits, new_job, outcomes, results, routing, transitions
from holdfast.domain.backoff import RetryPolicy
from holdfast.domain.claims import Claim, ClaimRequest, JobFence, Note
from holdfast.domain.clock import Now
from holdfast.domain.job import Job, JobRow, job_of, row_of
from holdfast.domain.new_job import CheckedJob, NewRow
from holdfast.domain.session_claims import SessionClaim, SessionRequest
from holdfast.storage import randomness, store
from holdfast.storage.contract import Claimer, PassName, ReadyJobs, ReadyRequest
from holdfast.storage.plain_contract import ClaimedEntries, ClaimedJobs, FinishedJobs
from holdfast.storage.postgres import binding, commits, plain_forms, plain_sessions, sql
from holdfast.storage.postgres.commits import PostgresSettings
from holdfast.storage.postgres.errors import is_retryable, lost, prepared_lost
from holdfast.storage.postgres.health import examine
from holdfast.storage.postgres.io import AfterCommitError, ServerIO, Statement
from holdfast.storage.postgres.scan_positions import (
    LATE_MS,
    DueWatermarks,
    LockedAndPassed,
    ReadyFloors,
    ScanPositions,
)
from holdfast.storage.postgres.select_ready import select_ready
from holdfast.storage.postgres.sending import SendingTransaction
from holdfast.storage.query_names import QueryName
from holdfast.storage.select_ready import tops_values
from holdfast.storage.sql_queries import Row, Rows
from holdfast.storage.sql_transaction import RoutingCache, SqlTransaction

T = TypeVar("T")

# A transaction that conflicts with another runs again; its pause is random, so that they do not collide again.
_RERUNS_MAX = 20
_RERUNS = RetryPolicy(first=0.005, last=0.32, jitter=1.0, calls=_RERUNS_MAX, retryable=is_retryable)
# Plain jobs are stored by one statement for those with the same settings; a statement of all columns serves more.
_SETTINGS_MAX = 4
# How many artifacts are read ahead of a settlement.
_ARTIFACTS_EXPECTED_MAX = 16
# An idle worker claims sessions less often than this, one that finds some more often.
_IDLE_SECONDS = 0.3


_SERVER_CLOCK: Final[Mapping[str, Any]] = {"clock_ms": None, "lease_clock_ms": None}
_INSERTS: Final[Sequence[QueryName]] = ("job_insert_plain", "jobs_insert_alike")
# Of their values only ids and payloads, the last ones, are binary.
_INSERT_FORMATS: Final = (*(0 for _ in range(11)), 1, 1)


class PostgresState(RoutingCache):
    """What the transactions of one store share."""

    def __init__(self, *, judged_by_server: bool) -> None:
        super().__init__()
        self.judged_by_server = judged_by_server
        """Whether leases are judged by the server's clock, at the time a row is locked."""
        self.scan_positions = ScanPositions()
        self.due_watermarks = DueWatermarks()
        self.ready_floors = ReadyFloors()
        self.savepoints_left = 0
        self.alike_jobs: dict[int, plain_forms.AlikeJobs] = {}
        self._session_claim_at = 0.0

    def session_claims_are_rare(self) -> bool:
        """Record a claim of any session; return whether the one before was long ago, as of a worker that is idle."""
        before, self._session_claim_at = self._session_claim_at, time.monotonic()
        return self._session_claim_at - before > _IDLE_SECONDS


# The columns of `job_insert`, in its order, after the route. The counters of a new job are zero and omitted.
NEW: Final = (
    "seq",
    "id",
    "state",
    "tenant",
    "fair_key",
    "priority",
    "affinity",
    "payload_json",
    "headers_json",
    "tags_json",
    "enqueued_at_ms",
    "due_at_ms",
    "deadline_at_ms",
    "max_attempts",
    "backoff_json",
    "dedupe_key",
    "dedupe_kind",
    "predecessor",
    "digest",
    "parent",
    "root",
    "record_all",
    "event_count",
)
# Those that plain jobs with the same settings have in common.
_COMMON: Final = (
    "state",
    "tenant",
    "fair_key",
    "priority",
    "affinity",
    "headers_json",
    "tags_json",
    "enqueued_at_ms",
    "due_at_ms",
    "deadline_at_ms",
    "max_attempts",
    "backoff_json",
)
# The columns of a session entry, before them.
_entry: Final = attrgetter("session_number", "enqueue_seq", "entry_json")
# The columns of `job_transition`, in its order; followed by the number, and the epoch the decision is based on.
MOVED: Final = (
    "state",
    "fair_key",
    "due_at_ms",
    "deadline_at_ms",
    "finished_at_ms",
    "attempt",
    "epoch",
    "worker",
    "incarnation",
    "lease_token",
    "lease_until_ms",
    "claim_index",
    "started_at_ms",
    "outcome",
    "settle_digest",
    "phase",
    "percent",
    "cancel_requested",
    "suspect",
    "deferrals",
    "deferred_since_ms",
    "releases",
    "failure_class",
    "failure_reason",
    "failure_message",
    "failure_traceback",
    "predecessor",
    "event_count",
    "result_json",
    "unacknowledged",
)
_new: Final = attrgetter(*NEW)
_moved: Final = attrgetter(*MOVED)


class PostgresTransaction(SendingTransaction):
    """A transaction on the server.

    It begins with the first statement that the operation sends, unless that is a plain form. A plain form is a
    statement that is a whole transaction, sent in one round trip: it is the first and the last statement of its
    operation, or its guard fails, nothing is written and the full form begins a transaction.
    """

    __slots__ = ("_composed", "_state", "interrupt", "resent")
    fuses_max = limits.SETTLE_MANY_MAX

    def __init__(
        self,
        state: PostgresState,
        settings: PostgresSettings,
        io: ServerIO,
        *,
        writes: bool,
        begun: Rows | None = None,
        resent: bool = False,
    ) -> None:
        super().__init__(state, settings, io, writes=writes, begun=begun)
        self._state = state
        self._composed = False
        self.resent = resent
        self.interrupt: BaseException | None = None
        """An interrupt that arrived when a plain form had committed."""

    # --- plain forms ------------------------------------------------------------------------------------------------

    @property
    def may_be_plain(self) -> bool:
        """Whether a plain form can be the whole transaction: nothing was sent, and no earlier send is undecided."""
        return self.writes and not (self.begun or self._unsent or self.resent or self._composed)

    def compose(self) -> None:
        """Let no plain form be the whole transaction."""
        self._composed = True

    async def run_alone(
        self, statements: Sequence[tuple[QueryName, Mapping[str, Any]]], topics: Collection[str] = ()
    ) -> list[Rows]:
        """Run statements as the whole transaction, and notify the listeners of *topics* in the same message."""
        settings = self._settings
        now = None if settings.clock is None else settings.clock.now()
        clock = _SERVER_CLOCK if now is None else {"clock_ms": now.wall_ms, "lease_clock_ms": now.lease_ms}
        sent = []
        settings.observe("begin")
        for name, values in statements:
            settings.observe(name)
            text, names = sql.numbered(self._texts[name])
            given = {**values, **clock}
            sent.append(Statement(text, [binding.encoded(given[one]) for one in names]))
        settings.observe("commit")
        return await self._run_alone(sent, topics)

    def bound_insert(self, values: Mapping[str, Any]) -> list[bytes | None]:
        """Return the values of `job_insert_plain` or `jobs_insert_alike` that are alike, as they are sent."""
        names, of_many = (sql.numbered(self._texts[name]).names[:-2] for name in _INSERTS)
        assert names == of_many  # noqa: S101  # the statements name ids and payloads last, after the clock
        return [binding.encoded(values[one]) for one in names[:-1]]

    async def insert_alone(
        self, name: QueryName, bound: Sequence[bytes | None], ids: bytes, payloads: bytes, topics: Collection[str]
    ) -> list[Rows]:
        """Run one of these as the whole transaction, with ids and payloads in binary format."""
        settings = self._settings
        for observed in ("begin", name, "commit"):
            settings.observe(observed)
        clock = None if settings.clock is None else b"%d" % settings.clock.now().wall_ms
        text = sql.numbered(self._texts[name]).text
        values = [*bound, clock, ids, payloads]
        return await self._run_alone([Statement(text, values, _INSERT_FORMATS)], topics)

    async def _run_alone(self, sent: Sequence[Statement], topics: Collection[str]) -> list[Rows]:
        settings = self._settings
        try:
            return await self._io.run_alone(
                _with_notification(settings, sent, topics), prepare=settings.prepares is None
            )
        except AfterCommitError as error:
            if isinstance(error.__cause__, psycopg.Error):
                settings.report_notification(error.__cause__)
            else:
                self.interrupt = error.__cause__
            return list(error.replies)
        except psycopg.Error as error:
            if self._io.connection.closed or lost(error):
                raise commits.UnconfirmedError from error
            raise

    async def notify_alone(self, topics: set[str]) -> None:
        """Notify the listeners of *topics* after a plain form has committed, in a transaction of its own."""
        self.topics |= topics
        notifying = [[commits.notify_statement(self._settings, topics)]]
        try:
            await self._io.run_alone(notifying, prepare=self._settings.prepares is None)
        except psycopg.Error as error:
            self._settings.report_notification(error)
        except BaseException as error:  # an interrupt, which is raised when the operation has its result
            self.interrupt = error

    async def insert_plain(self, new: CheckedJob) -> Job | None:
        """Store one job in a transaction of one statement, if the cached routing is current."""
        return await plain_forms.insert(self, self._state, new) if self.may_be_plain else None

    async def insert_alike(self, jobs: Sequence[CheckedJob]) -> Sequence[Job] | None:
        """Store jobs that differ only in id and payload in one statement, if the cached routing is current."""
        return await plain_forms.insert_alike(self, self._state, jobs) if self.may_be_plain else None

    async def claim_plain(self, request: ClaimRequest) -> ClaimedJobs | None:
        """Claim jobs in one round trip, if the cached routing is current and no maintenance is due."""
        return await plain_forms.claim(self, self._state, request) if self.may_be_plain else None

    async def claim_session_plain(self, request: SessionRequest) -> ClaimedEntries | None:
        """Claim entries of any session in one round trip, if the cached routing is current and no maintenance is due.

        A request without a plain form only looks, unless sessions were claimed just before: then there are probably
        more.
        """
        if not self.may_be_plain:
            return None
        return await plain_sessions.claim(self, self._state, request, looks=self._state.session_claims_are_rare())

    async def settle_session_plain(
        self, claim: SessionClaim, settlements: Sequence[tuple[Claim, outcomes.CheckedOutcome]]
    ) -> FinishedJobs | None:
        """Finish a turn in one round trip, and notify of the next head in another, if all leases are held."""
        return await plain_sessions.settle(self, self._state, claim, settlements) if self.may_be_plain else None

    async def settle_and_claim_plain(
        self,
        settlements: Sequence[tuple[Claim, outcomes.CheckedOutcome]],
        started: Sequence[JobFence],
        request: ClaimRequest,
    ) -> tuple[FinishedJobs, list[Claim]] | None:
        """Settle and claim in one round trip, if all leases are held and the claim can be plain."""
        if not self.may_be_plain:
            return None
        return await plain_forms.settle_and_claim(self, self._state, settlements, started, request)

    async def renew_plain(
        self, held: Sequence[tuple[JobFence, int]], notes: Mapping[int, Note], started: Collection[int]
    ) -> dict[int, tuple[int, bool]] | None:
        """Extend leases in one round trip, if all of them are held."""
        return await plain_forms.renew(self, held, notes, started) if self.may_be_plain else None

    async def finish_held(self, settlements: Sequence[tuple[Claim, outcomes.CheckedOutcome]]) -> FinishedJobs:
        """Finish jobs whose lease is held as done, with their events, in one round trip or statement."""
        finished = await plain_forms.settle(self, settlements) if self.may_be_plain else None
        if finished is not None:
            return finished
        now = await self.now()
        rows = await succeed_held(self, settlements, now, judged_by_server=self._state.judged_by_server)
        return FinishedJobs(now, rows)

    async def expect_settlements(self, claims: Sequence[Claim], with_artifacts: Sequence[Claim]) -> None:
        """Read ahead what settling reads first; the locks of the first read keep the rows as they are."""
        await self.read_ahead("jobs_current", lambda: {"seqs": [claim.job.number for claim in claims]}, kept=True)
        for claim in with_artifacts[:_ARTIFACTS_EXPECTED_MAX]:
            await self.read_ahead("artifacts_of_job", partial(dict, seq=claim.job.number), kept=True)

    async def begin_claim_of(
        self, request: ClaimRequest, *, resent: bool
    ) -> tuple[Claimer, routing.RoutingTable, frozenset[PassName], Now]:
        """Read the header of a claim; unless it settles too, also where ready jobs are, which it reads next."""
        table = self._state.newest
        if table is not None and not self._expected_reads:
            routes = table.serving(request.lanes, request.kinds, request.capabilities)
            skip = LockedAndPassed([], self._state.scan_positions.of(routes))
            if routes and request.tenant is None:
                await self.read_ahead("ready_tops", lambda: tops_values(routes, skip))
        return await super().begin_claim_of(request, resent=resent)

    async def ending_gates(self, counted: Mapping[int, int]) -> set[int]:
        """Return the gates of which jobs may be ending in other transactions."""
        rows = await self.query("gates_ending", {"counted": dict(counted)}) if counted else []
        return {gate for (gate,) in rows}

    async def select_ready(self, request: ReadyRequest) -> ReadyJobs | None:
        """Choose and lease ready jobs in claim order."""
        return await select_ready(self, self._state.scan_positions, request)

    async def insert_plain_jobs(
        self, jobs: Sequence[CheckedJob], seqs: Sequence[int], table: routing.RoutingTable, now: Now
    ) -> list[Job]:
        """Store new jobs; what jobs with the same settings have in common is sent once."""
        # Validated settings are cached, so that most jobs of a call share the same object.
        groups: dict[int, list[int]] = {}
        for index, new in enumerate(jobs):
            groups.setdefault(id(new.settings), []).append(index)
        if len(groups) > _SETTINGS_MAX:
            return await super().insert_plain_jobs(jobs, seqs, table, now)
        stored: list[Any] = [None] * len(jobs)
        for indexes in groups.values():
            first = new_job.new_job(jobs[indexes[0]], 0, _fair_key(table, jobs[indexes[0]]), now)
            values = {
                "route": table.routes[jobs[indexes[0]].settings.route].number,
                "seqs": [seqs[index] for index in indexes],
                "ids": [jobs[index].id for index in indexes],
                "payloads": [jobs[index].payload_json for index in indexes],
                **{name.removesuffix("_json"): getattr(first, name) for name in _COMMON},
            }
            await self._change("job_insert_plain_many", values, len(indexes))
            for index in indexes:
                stored[index] = job_of(NewRow(jobs[index], seqs[index], first.fair_key, now))
        if any(new.settings.tags_json != "{}" for new in jobs):
            await self._insert_tags((seq, new.settings.tags_json) for new, seq in zip(jobs, seqs, strict=True))
        return stored

    async def insert_jobs(self, jobs: Sequence[tuple[routing.Route, JobRow]]) -> None:
        """Store new jobs."""
        plain = [(route.number, *_new(job)) for route, job in jobs if job.session_number is None]
        await self._change_rows("job_insert", plain)
        if len(plain) < len(jobs):
            entries = [
                (*_entry(job), route.number, *_new(job)) for route, job in jobs if job.session_number is not None
            ]
            await self._change_rows("session_entry_insert", entries)
        await self._insert_tags((job.seq, job.tags_json) for _, job in jobs)

    async def update_content(self, before: JobRow, job: JobRow) -> None:
        """Write the content that a duplicate replaced."""
        values = {
            "seq": job.seq,
            "payload": job.payload_json,
            "headers": job.headers_json,
            "tags": job.tags_json,
            "event_count": job.event_count,
        }
        await self._replace_tags(before, job)
        await self.send("job_payload_write", values)

    async def update_priority(self, job: JobRow) -> None:
        """Write the priority."""
        await self.send("ready_backdate")
        await super().update_priority(job)

    async def update_fair_keys(self, changes: Sequence[tuple[str, int]]) -> None:
        """Write fairness keys."""
        if changes:
            await self.send("ready_backdate")
        await super().update_fair_keys(changes)

    async def _write_others(self, decided: Sequence[transitions.Transition]) -> None:
        late_ms = (await self.now()).wall_ms - LATE_MS
        if any(after.state == "ready" and after.due_at_ms < late_ms for _, after, _ in decided):
            await self.send("ready_backdate")
        rows = [(*_moved(after), after.seq, before.epoch) for before, after, _ in decided]
        await self._change_rows("job_transition", rows)

    async def clear_suspicion(self, jobs: Sequence[JobRow]) -> None:
        """Store that jobs are no longer suspect."""
        rows = [(job.suspect, job.failure_reason, job.failure_message, job.seq, job.epoch) for job in jobs]
        await self._change_rows("job_clear_suspicion", rows)

    async def health(self) -> list[results.Finding]:
        """Return the state of the server and its settings."""
        return await examine(self)

    def _due_start_times(self, *, thorough: bool) -> dict[str, int]:
        return self._state.due_watermarks.start_times(thorough=thorough)

    def _record_due_look(self, now: Now, due: frozenset[PassName], *, thorough: bool) -> None:
        self._state.due_watermarks.record_look(now, thorough=thorough, found=bool(due))


def _fair_key(table: routing.RoutingTable, new: CheckedJob) -> str:
    return routing.fair_key_of(table.lane(new.settings.route.lane), new.settings.tenant)


def _with_notification(
    settings: PostgresSettings, statements: Sequence[Statement], topics: Collection[str]
) -> Iterator[Sequence[Statement]]:
    """Return a transaction, and the one that notifies of it, which is made when the first is sent."""
    yield statements
    if topics:
        yield [commits.notify_statement(settings, topics)]


# --- a transaction of the store ------------------------------------------------------------------------------------


async def run_transaction(
    state: PostgresState,
    settings: PostgresSettings,
    operation: store.Operation[T],
    io: ServerIO,
    *,
    writes: bool,
    resent: bool = False,
) -> tuple[T, set[str]]:
    """Run *operation* in one transaction; once it has committed, return its result and the topics to notify.

    *resent* if an earlier run of it may have committed.
    """
    for failures in count(1):
        tx = PostgresTransaction(state, settings, io, writes=writes, resent=resent)
        try:
            result = await operation(tx)
            if tx.interrupt is not None:
                raise tx.interrupt
            await tx.commit()
        except BaseException as error:
            await commits.roll_back(io)
            if not _runs_again(settings, error, failures):
                raise
            await io.sleep(_RERUNS.pause_seconds(failures, randomness.RANDOM.random()))
        else:
            return result, tx.topics
    raise AssertionError("unreachable")


def _runs_again(settings: PostgresSettings, error: BaseException, failures: int) -> bool:
    """Return whether to run the operation again after *error*."""
    if prepared_lost(error):
        # Another thread may have noticed it before.
        settings.prepares = False
        return failures < _RERUNS_MAX
    return _RERUNS.repeats(error, failures)


# --- within an open transaction ------------------------------------------------------------------------------------


async def run_joined(
    state: PostgresState, settings: PostgresSettings, operation: store.Operation[T], io: ServerIO, *, notifies: bool
) -> tuple[T, set[str]]:
    """Run *operation* in a savepoint of the open transaction; if it is refused, its writes are rolled back.

    With *notifies* the notifications are part of the transaction, which the caller commits.
    """
    opening = f"savepoint holdfast_join; {settings.read_clock}"
    for failures in count(1):
        try:
            begun = await io.message(opening)
            tx = PostgresTransaction(state, settings, io, writes=True, begun=begun)
            result = await operation(tx)
            notify = f"; select {commits.notify_call(settings, tx.topics)}" if notifies and tx.topics else ""
            await io.message(f"release holdfast_join{notify}")
        except BaseException as error:
            again = _runs_again(settings, error, failures)
            await _undo_joined(io, keep=again)
            if not again:
                raise
            await io.sleep(_RERUNS.pause_seconds(failures, randomness.RANDOM.random()))
            opening = settings.read_clock
        else:
            return result, tx.topics
    raise AssertionError("unreachable")


async def _undo_joined(io: ServerIO, *, keep: bool) -> None:
    if io.connection.pgconn.transaction_status not in {TransactionStatus.INTRANS, TransactionStatus.INERROR}:
        return
    undo = "rollback to holdfast_join"
    try:
        await io.message(undo if keep else f"{undo}; release holdfast_join")
    except psycopg.errors.InvalidSavepointSpecification:
        # An interrupt came before there was a savepoint, or after it was released; it ends the transaction.
        return


async def succeed_held(
    tx: SqlTransaction,
    settlements: Sequence[tuple[Claim, outcomes.CheckedOutcome]],
    now: Now,
    *,
    judged_by_server: bool,
) -> dict[int, Row]:
    """Finish the jobs whose lease is held, with their events, and return what `finish_held` returns.

    With *judged_by_server*, the server's clock decides whether a lease has expired, at the time the row is locked.
    """
    claimed = [(row_of(claim.job), checked) for claim, checked in settlements]
    held = [[row.seq, row.epoch, row.lease_token, checked.result_json] for row, checked in claimed]
    values = {
        # In order, so that two calls with the same jobs wait for each other instead of deadlocking.
        "held": sorted(held),
        "finished_at_ms": now.wall_ms,
        "lease_now": None if judged_by_server else now.lease_ms,
    }
    rows = await tx.query("jobs_succeed", values)
    linked = {row.seq for row, _ in claimed if row.dedupe_key is not None or row.session_number is not None}
    return {seq: (*current, seq in linked) for seq, *current in rows}
