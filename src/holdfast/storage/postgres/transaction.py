"""Transactions: begin and read the clock, run the operation, commit and notify; or use a savepoint of the caller's.

An operation that conflicts with others is run again. No state is kept on the connection.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import count
from operator import attrgetter
from typing import Any, Final, TypeAlias, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from holdfast.domain import limits
from holdfast.domain.claims import Claim
from holdfast.domain.clock import Clock, Now
from holdfast.domain.errors import InvalidInput, Misconfigured, OutcomeUnknown
from holdfast.domain.job import JobRow, row_of
from holdfast.domain.outcomes import CheckedOutcome
from holdfast.domain.results import Finding
from holdfast.domain.retry import RetryPolicy
from holdfast.domain.routing import Route
from holdfast.domain.transitions import Transition, succeeded
from holdfast.storage.contract import PassName, ReadyJobs, ReadyRequest
from holdfast.storage.postgres.binding import bound, columns
from holdfast.storage.postgres.errors import ended_as_idle, is_retryable, lost, prepared_lost
from holdfast.storage.postgres.health import examine
from holdfast.storage.postgres.io import AfterCommitError, ServerIO
from holdfast.storage.postgres.scan_positions import DueWatermarks, ScanPositions
from holdfast.storage.postgres.select_ready import select_ready
from holdfast.storage.postgres.sql import texts
from holdfast.storage.query_names import QueryName
from holdfast.storage.randomness import RANDOM
from holdfast.storage.sql_queries import Row, Rows
from holdfast.storage.sql_transaction import RoutingCache, SqlTransaction
from holdfast.storage.store import Operation

T = TypeVar("T")

Observer: TypeAlias = Callable[[str], None]
"""Called with the name of each statement before it runs, and with begin, commit and committed. A test may raise."""

log = logging.getLogger("holdfast.store")

LOCK_MS = 10_000
# NOTIFY takes a server-wide lock. A notification that cannot get it soon is dropped, and waiting callers poll.
_NOTIFY_LOCK_MS = 1_000
# A transaction that conflicts with another runs again; its pause is random, so that they do not collide again.
_RERUNS = RetryPolicy(first=0.005, last=0.32, jitter=1.0, calls=20, retryable=is_retryable)
_COPY_ROWS_MIN = 32
_TOPICS_MAX = 900
# DISCARD ALL without the driver's prepared statements; DISCARD ALL cannot follow a commit in one message.
_RESET = (
    "close all; reset session authorization; reset role; reset all; unlisten *;"
    " select pg_advisory_unlock_all(); discard temp; discard sequences"
)
_ISOLATION = "select current_setting('transaction_isolation')"


def unobserved(_name: str) -> None:
    """Do nothing."""


class StaleConnectionError(Exception):
    """The connection was dead before the transaction began."""


class PostgresSettings:
    """The settings shared by all transactions of one store."""

    def __init__(self, schema: str, clock: Clock | None, observe: Observer) -> None:
        self.schema = schema
        self.channel = f"holdfast_{hashlib.blake2b(schema.encode(), digest_size=8).hexdigest()}"
        self.texts = texts(schema)
        self.clock = clock
        self.observe = observe
        self.prepares: bool | None = None
        """False once a pooler has lost a prepared statement; None lets the driver prepare."""
        self.identity: str | None = None
        """The identity of this store, known once it was opened."""
        self._notification_failed = False
        self.read_clock = f'select "{schema}".clock_ms()'
        # Reads here are small: JIT compilation would take longer than the query.
        beginning = "begin isolation level repeatable read read only; set local jit = off"
        self.begin_reading = f"{beginning}; {self.read_clock}"
        self.begin_writing = f'begin isolation level read committed; select "{schema}".begin_ms({LOCK_MS})'
        # The planner settings stay unchanged for the caller's own statements.
        self.begin_sharing = (
            f"begin isolation level read committed; set local lock_timeout = {LOCK_MS};"
            f" set local idle_in_transaction_session_timeout = {limits.TRANSACTION_MS_MAX}"
        )
        columns_copied = self.texts.writing["job_copy"].partition("(")[2].partition(")")[0].split(",")
        self._shared_columns = [
            index for index, name in enumerate(columns_copied) if name.strip() in {"dedupe_key", "digest"}
        ]

    def report_notification(self, error: BaseException | None) -> None:
        """Log that a notification failed after its commit, once per store."""
        if not self._notification_failed:
            self._notification_failed = True
            log.warning("a notification failed after its commit; waiting callers fall back to polling (%s)", error)

    def are_unshared(self, rows: Sequence[Row]) -> bool:
        """Return whether no other caller can store the same jobs concurrently: new ids, no dedupe keys."""
        return all(row[index] is None for index in self._shared_columns for row in rows)


class _Clock:
    """The server's clock at the begin, advanced by this machine's monotonic clock."""

    def __init__(self, at_ms: int) -> None:
        self._at_ms = at_ms
        self._read_at = time.monotonic()

    def now(self) -> Now:
        now_ms = self._at_ms + int((time.monotonic() - self._read_at) * 1000)
        return Now(now_ms, now_ms)


_NO_VALUES: Mapping[str, Any] = {}


class PostgresState(RoutingCache):
    """What the transactions of one store share."""

    def __init__(self, *, judged_by_server: bool) -> None:
        super().__init__()
        self.judged_by_server = judged_by_server
        """Whether leases are judged by the server's clock, at the time a row is locked."""
        self.scan_positions = ScanPositions()
        self.due_watermarks = DueWatermarks()


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
    "record_all",
    "event_count",
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


class PostgresTransaction(SqlTransaction):
    """An open transaction on the server."""

    __slots__ = ("_clock", "_io", "_settings", "_state", "_texts")

    def __init__(
        self, state: PostgresState, settings: PostgresSettings, io: ServerIO, begun: Rows, *, writes: bool
    ) -> None:
        super().__init__(state)
        self._state = state
        self._settings = settings
        self._io = io
        self._texts = settings.texts.writing if writes else settings.texts.reading
        self._clock = settings.clock or _Clock(begun[-1][-1])

    async def now(self) -> Now:
        """Return the server's clock."""
        return self._clock.now()

    async def query(
        self, name: QueryName, values: Mapping[str, Any] = _NO_VALUES, many: Sequence[Row] | None = None
    ) -> Rows:
        """Run one named statement."""
        self._settings.observe(name)
        text, prepare = self._texts[name], self._settings.prepares
        if many is None:
            return await self._io.query(text, bound(values), prepare=prepare)
        if name == "job_insert" and len(many) >= _COPY_ROWS_MIN and self._settings.are_unshared(many):
            return await self._io.copy(self._texts["job_copy"], many)
        if name == "upload_chunk_insert":
            # Bytes are sent one chunk at a time, to keep each message within the server's limit.
            for row in many:
                values = bound({f"c{index}": value for index, value in enumerate(row)})
                await self._io.query(text, values, prepare=prepare)
            return [(len(many),)]
        return await self._io.query(text, columns(many, "c"), prepare=prepare)

    async def select_ready(self, request: ReadyRequest) -> ReadyJobs | None:
        """Choose and lease ready jobs in claim order."""
        return await select_ready(self, self._state.scan_positions, request)

    async def insert_jobs(self, jobs: Sequence[tuple[Route, JobRow]]) -> None:
        """Store new jobs."""
        plain = [(route.number, *_new(job)) for route, job in jobs if job.session_number is None]
        await self._change_rows("job_insert", plain)
        if len(plain) < len(jobs):
            entries = [
                (*_entry(job), route.number, *_new(job)) for route, job in jobs if job.session_number is not None
            ]
            await self._change_rows("session_entry_insert", entries)

    async def update_content(self, job: JobRow) -> None:
        """Write the content that a duplicate replaced."""
        values = {
            "seq": job.seq,
            "payload": job.payload_json,
            "headers": job.headers_json,
            "tags": job.tags_json,
            "event_count": job.event_count,
        }
        await self.query("job_payload_write", values)

    async def _write_others(self, decided: Sequence[Transition]) -> None:
        rows = [(*_moved(after), after.seq, before.epoch) for before, after, _ in decided]
        await self._change_rows("job_transition", rows)

    async def clear_suspicion(self, jobs: Sequence[JobRow]) -> None:
        """Store that jobs are no longer suspect."""
        rows = [(job.suspect, job.failure_reason, job.failure_message, job.seq, job.epoch) for job in jobs]
        await self._change_rows("job_clear_suspicion", rows)

    async def finish_held(
        self, settlements: Sequence[tuple[Claim, CheckedOutcome]], now: Now
    ) -> dict[int, Transition]:
        """Finish jobs whose lease is held as done, with their events, in one statement."""
        return await succeed_held(self, settlements, now, judged_by_server=self._state.judged_by_server)

    async def health(self) -> list[Finding]:
        """Return the state of the server and its settings."""
        return await examine(self)

    def _due_start_times(self, *, thorough: bool) -> dict[str, int]:
        return self._state.due_watermarks.start_times(thorough=thorough)

    def _record_due_look(self, now: Now, due: frozenset[PassName], *, thorough: bool) -> None:
        self._state.due_watermarks.record_look(now, thorough=thorough, found=bool(due))


# --- a transaction of the store ------------------------------------------------------------------------------------


async def run_transaction(
    state: PostgresState, settings: PostgresSettings, operation: Operation[T], io: ServerIO, *, writes: bool
) -> tuple[T, set[str]]:
    """Run *operation* in one transaction; once it has committed, return its result and the topics to notify."""
    for failures in count(1):
        begun = await begin(settings, io, settings.begin_writing if writes else settings.begin_reading)
        tx = PostgresTransaction(state, settings, io, begun, writes=writes)
        try:
            result = await operation(tx)
            if writes:
                await commit(settings, io, tx.topics)
            else:
                await io.message("commit")
        except BaseException as error:
            await roll_back(io)
            if not _runs_again(settings, error, failures):
                raise
            await io.sleep(_RERUNS.pause_seconds(failures, RANDOM.random()))
        else:
            return result, tx.topics
    raise AssertionError("unreachable")


def _runs_again(settings: PostgresSettings, error: BaseException, failures: int) -> bool:
    """Return whether to run the operation again after *error*."""
    if prepared_lost(error) and settings.prepares is None:
        settings.prepares = False
        return True
    return _RERUNS.repeats(error, failures)


async def begin(settings: PostgresSettings, io: ServerIO, text: str) -> Rows:
    """Begin a transaction with the statement *text*."""
    settings.observe("begin")
    try:
        return await io.message(text)
    except psycopg.OperationalError as error:
        if io.connection.closed:
            raise StaleConnectionError from error
        raise


async def commit(settings: PostgresSettings, io: ServerIO, signals: Collection[str], *, resets: bool = False) -> None:
    """Commit and notify in one message. The notification is a separate transaction, which does not wait for the disk.

    With *resets* the same message resets session settings that the caller's own SQL may have changed.
    """
    settings.observe("commit")
    after = ([_RESET] if resets else []) + ([notification(settings, signals)] if signals else [])
    try:
        await io.commit("commit", "; ".join(after))
    except AfterCommitError as error:
        settings.report_notification(error.__cause__)
        if resets:
            io.connection.pgconn.finish()
    except psycopg.Error as error:
        if (io.connection.closed or lost(error)) and not ended_as_idle(error):
            raise OutcomeUnknown(f"the commit was not confirmed; send the same call again ({error})") from error
        raise


async def roll_back(io: ServerIO, *, resets: bool = False) -> None:
    """Roll back if the connection still works; otherwise closing it rolls back.

    With *resets* also reset the session settings that the caller's own SQL may have changed, or close the connection.
    """
    if io.connection.pgconn.transaction_status in {TransactionStatus.INTRANS, TransactionStatus.INERROR}:
        try:
            await io.message(f"rollback; {_RESET}" if resets else "rollback")
        except psycopg.Error:
            if not resets:
                return
        else:
            return
    if resets:
        io.connection.pgconn.finish()


def notification(settings: PostgresSettings, signals: Collection[str]) -> str:
    """Return the statement that notifies the listeners of *signals*, in its own transaction."""
    return f"select set_config('lock_timeout', '{_NOTIFY_LOCK_MS}', true), {_notify(settings, signals)}"


def _notify(settings: PostgresSettings, signals: Collection[str]) -> str:
    payload = "".join(sorted(map(digest, signals))) if len(signals) <= _TOPICS_MAX else "*"
    return f"pg_notify('{settings.channel}', '{payload}')"


DIGEST_CHARS = 8


def digest(topic: str) -> str:
    """Return the digest of a topic that is sent: short, of fixed length, and safe in a literal."""
    return base64.b64encode(hashlib.blake2b(topic.encode(), digest_size=6).digest(), b"-_").decode()


# --- within an open transaction ------------------------------------------------------------------------------------


async def run_joined(
    state: PostgresState, settings: PostgresSettings, operation: Operation[T], io: ServerIO, *, notifies: bool
) -> tuple[T, set[str]]:
    """Run *operation* in a savepoint of the open transaction; if it is refused, its writes are rolled back.

    With *notifies* the notifications are part of the transaction, which the caller commits.
    """
    opening = f"savepoint holdfast_join; {settings.read_clock}"
    for failures in count(1):
        try:
            begun = await io.message(opening)
            tx = PostgresTransaction(state, settings, io, begun, writes=True)
            result = await operation(tx)
            notify = f"; select {_notify(settings, tx.topics)}" if notifies and tx.topics else ""
            await io.message(f"release holdfast_join{notify}")
        except BaseException as error:
            again = _runs_again(settings, error, failures)
            await _undo_joined(io, keep=again)
            if not again:
                raise
            await io.sleep(_RERUNS.pause_seconds(failures, RANDOM.random()))
            opening = settings.read_clock
        else:
            return result, tx.topics
    raise AssertionError("unreachable")


async def _undo_joined(io: ServerIO, *, keep: bool) -> None:
    if io.connection.pgconn.transaction_status in {TransactionStatus.INTRANS, TransactionStatus.INERROR}:
        undo = "rollback to holdfast_join"
        await io.message(undo if keep else f"{undo}; release holdfast_join")


async def check_joined(settings: PostgresSettings, io: ServerIO) -> None:
    """Raise if the transaction is on another store, or would not see rows committed while it waits."""
    [[isolation]] = await io.message(_ISOLATION)
    if isolation != "read committed":
        raise InvalidInput("connection", f"is in a {isolation} transaction; begin one that is read committed")
    [[identity]] = await io.query(settings.texts.reading["schema_identity"], None, prepare=settings.prepares)
    if settings.identity is not None and identity != settings.identity:
        raise InvalidInput("connection", f"is not open on this queue's database, or its schema {settings.schema!r}")


def refuse_ended(connection: Any) -> None:
    """Raise `Misconfigured` unless a valid transaction is open."""
    status = connection.pgconn.transaction_status
    if status == TransactionStatus.INERROR:
        raise Misconfigured("a statement failed in this transaction, so the server rejects further statements in it")
    if status != TransactionStatus.INTRANS:
        raise Misconfigured("the transaction that this would join has ended")


async def succeed_held(
    tx: SqlTransaction, settlements: Sequence[tuple[Claim, CheckedOutcome]], now: Now, *, judged_by_server: bool
) -> dict[int, Transition]:
    """Finish the jobs whose lease is held, with their events, and return each one's transition by number.

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
    ended = {row[0]: row[1:] for row in rows}
    return {row.seq: succeeded(row, ended[row.seq], checked, now) for row, checked in claimed if row.seq in ended}
