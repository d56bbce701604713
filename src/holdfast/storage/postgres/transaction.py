"""Transactions as talks: begin with the clock, run the script, commit and wake; or a savepoint in the caller's own.

A script that others got in the way of is run again from its beginning. Nothing is kept on the connection.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from operator import attrgetter
from typing import Any, TypeAlias, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from holdfast.domain import limits, transitions
from holdfast.domain.claims import Claim
from holdfast.domain.clock import Clock, Now
from holdfast.domain.errors import InvalidInput, Misconfigured, OutcomeUnknown
from holdfast.domain.job import Job
from holdfast.domain.outcomes import CheckedOutcome
from holdfast.domain.results import Finding
from holdfast.domain.transitions import Transition
from holdfast.storage.contract import PassName, ReadyJobs, ReadyRequest
from holdfast.storage.postgres.binding import bound, columns
from holdfast.storage.postgres.errors import fell_silent, lost, prepared_lost, worth_another_run
from holdfast.storage.postgres.health import examine
from holdfast.storage.postgres.io import AfterCommitError, ServerIO
from holdfast.storage.postgres.scan_positions import PastMoments, ScanPositions
from holdfast.storage.postgres.select_ready import select_ready
from holdfast.storage.postgres.sql import texts
from holdfast.storage.query_names import QueryName
from holdfast.storage.randomness import RANDOM
from holdfast.storage.sql_queries import Row, Rows
from holdfast.storage.sql_transaction import RoutingCache, SqlTransaction
from holdfast.storage.transaction import Operation

T = TypeVar("T")

Observer: TypeAlias = Callable[[str], None]
"""Told the name of each statement before it runs, and of begin, commit and committed. A test may raise here."""

log = logging.getLogger("holdfast.store")

LOCK_MS = 10_000
# A notification takes a lock of the whole server. One that cannot have it soon is dropped, and waiting callers poll.
_NOTIFY_LOCK_MS = 1_000
_RUNS_MAX = 20
_PAUSE_SECONDS_FIRST = 0.005
_PAUSE_DOUBLINGS_MAX = 6
_COPY_ROWS_MIN = 32
_TOPICS_MAX = 900
# What DISCARD ALL does, which cannot follow a commit in one message; the driver's prepared statements are kept.
_RESET = (
    "close all; reset session authorization; reset role; reset all; unlisten *;"
    " select pg_advisory_unlock_all(); discard temp; discard sequences"
)
_ISOLATION = "select current_setting('transaction_isolation')"


def unobserved(_name: str) -> None:
    """Let everything pass."""


class StaleConnectionError(Exception):
    """The connection was dead before anything had begun on it."""


class PostgresSettings:
    """What every transaction of one store goes by."""

    def __init__(self, schema: str, clock: Clock | None, observe: Observer) -> None:
        self.schema = schema
        self.channel = f"holdfast_{hashlib.blake2b(schema.encode(), digest_size=8).hexdigest()}"
        self.texts = texts(schema)
        self.clock = clock
        self.observe = observe
        self.prepares: bool | None = None
        """False once a pooler has lost a prepared statement; None lets the driver prepare."""
        self.identity: str | None = None
        """Who this store is, known once it was opened."""
        self._notification_failed = False
        self.read_clock = f'select "{schema}".clock_ms()'
        # What is read here reads little, so that compiling the query would take longer than to run it.
        beginning = "begin isolation level repeatable read read only; set local jit = off"
        self.begin_reading = f"{beginning}; {self.read_clock}"
        self.begin_writing = f'begin isolation level read committed; select "{schema}".begin_ms({LOCK_MS})'
        # For statements of the caller's own the planner stays as it is.
        self.begin_sharing = (
            f"begin isolation level read committed; set local lock_timeout = {LOCK_MS};"
            f" set local idle_in_transaction_session_timeout = {limits.TRANSACTION_MS_MAX}"
        )
        columns_copied = self.texts.writing["job_copy"].partition("(")[2].partition(")")[0].split(",")
        self._known_places = [
            place for place, name in enumerate(columns_copied) if name.strip() in {"dedupe_key", "digest"}
        ]

    def report_notification(self, error: BaseException | None) -> None:
        """Log that a notification failed after its commit, once for this store."""
        if not self._notification_failed:
            self._notification_failed = True
            log.warning("a notification failed after its commit; waiting callers fall back to polling (%s)", error)

    def nobody_knows(self, rows: Sequence[Row]) -> bool:
        """Whether no other caller can store the same jobs at the same moment: fresh ids, no dedupe keys."""
        return all(row[place] is None for place in self._known_places for row in rows)


class _Clock:
    """The server's clock as of the beginning, carried on by this machine's own, which cannot be set."""

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
        """Whether the server's clock judges leases, at the moment when a row is locked."""
        self.marks = ScanPositions()
        self.moments = PastMoments()


class PostgresTransaction(SqlTransaction):
    """An open transaction on the server."""

    __slots__ = ("_clock", "_io", "_state", "_terms", "_texts")

    def __init__(
        self, state: PostgresState, terms: PostgresSettings, io: ServerIO, begun: Rows, *, writes: bool
    ) -> None:
        super().__init__(state)
        self._state = state
        self._terms = terms
        self._io = io
        self._texts = terms.texts.writing if writes else terms.texts.reading
        self._clock = terms.clock or _Clock(begun[-1][-1])

    async def now(self) -> Now:
        """Return the server's clock."""
        return self._clock.now()

    async def query(
        self, name: QueryName, values: Mapping[str, Any] = _NO_VALUES, many: Sequence[Row] | None = None
    ) -> Rows:
        """Run one named statement."""
        self._terms.observe(name)
        text, prepare = self._texts[name], self._terms.prepares
        if many is None:
            return await self._io.query(text, bound(values), prepare=prepare)
        if name == "job_insert" and len(many) >= _COPY_ROWS_MIN and self._terms.nobody_knows(many):
            return await self._io.copy(self._texts["job_copy"], many)
        if name == "artifact_write":
            # Bytes go one artifact at a time, so that no message grows beyond what the server takes.
            for row in many:
                values = bound({f"c{place}": value for place, value in enumerate(row)})
                await self._io.query(text, values, prepare=prepare)
            return [(len(many),)]
        return await self._io.query(text, columns(many, "c"), prepare=prepare)

    async def select_ready(self, wanted: ReadyRequest) -> ReadyJobs | None:
        """Choose and lease ready jobs in claim order."""
        return await select_ready(self, self._state.marks, wanted)

    async def finish_held(self, wanted: Sequence[tuple[Claim, CheckedOutcome]], now: Now) -> dict[int, Transition]:
        """End jobs whose lease holds as done, with their events, in one statement."""
        return await succeed_held(self, wanted, now, judged_by_server=self._state.judged_by_server)

    async def health(self) -> list[Finding]:
        """Return the state of the server and its settings."""
        return await examine(self)

    def _seen_from(self, *, thorough: bool) -> dict[str, int]:
        return self._state.moments.lows(whole=thorough)

    def _seen(self, now: Now, due: frozenset[PassName], *, thorough: bool) -> None:
        self._state.moments.looked(now, whole=thorough, found=bool(due))


# --- a transaction of our own --------------------------------------------------------------------------------------


async def run_transaction(
    state: PostgresState, terms: PostgresSettings, operation: Operation[T], io: ServerIO, *, writes: bool
) -> tuple[T, set[str]]:
    """Run *operation* in one transaction; return its result and what to tell the others, once that has committed."""
    for run in range(_RUNS_MAX):
        begun = await begin(terms, io, terms.begin_writing if writes else terms.begin_reading)
        tx = PostgresTransaction(state, terms, io, begun, writes=writes)
        try:
            result = await operation(tx)
            if writes:
                await commit(terms, io, tx.topics)
            else:
                await io.message("commit")
        except BaseException as error:
            await roll_back(io)
            if not _again(terms, error, run):
                raise
            await io.sleep(_pause_seconds(run))
        else:
            return result, tx.topics
    raise AssertionError("unreachable")


def _again(terms: PostgresSettings, error: BaseException, run: int) -> bool:
    """Whether to run the script again after *error*."""
    if prepared_lost(error) and terms.prepares is None:
        terms.prepares = False
        return True
    return worth_another_run(error) and run + 1 < _RUNS_MAX


def _pause_seconds(run: int) -> float:
    """Return a random time to wait after the *run*-th failed run: two that met must not meet again at once."""
    return RANDOM.uniform(0.0, _PAUSE_SECONDS_FIRST * 2.0 ** min(run, _PAUSE_DOUBLINGS_MAX))


async def begin(terms: PostgresSettings, io: ServerIO, text: str) -> Rows:
    """Begin, with the words that *terms* has for it."""
    terms.observe("begin")
    try:
        return await io.message(text)
    except psycopg.OperationalError as error:
        if io.connection.closed:
            raise StaleConnectionError from error
        raise


async def commit(terms: PostgresSettings, io: ServerIO, signals: Collection[str], *, resets: bool = False) -> None:
    """Commit and wake, in one message. The notification is a transaction of its own, which waits for no disk.

    With *resets* the same message undoes what the caller's own SQL has changed of the session.
    """
    terms.observe("commit")
    after = ([_RESET] if resets else []) + ([notification(terms, signals)] if signals else [])
    try:
        await io.commit("commit", "; ".join(after))
    except AfterCommitError as error:
        terms.report_notification(error.__cause__)
        if resets:
            io.connection.pgconn.finish()
    except psycopg.Error as error:
        if (io.connection.closed or lost(error)) and not fell_silent(error):
            raise OutcomeUnknown(f"the commit was not confirmed; send the same call again ({error})") from error
        raise


async def roll_back(io: ServerIO, *, resets: bool = False) -> None:
    """Undo what is open, if the connection still can; if not, its end undoes it.

    With *resets* undo also what the caller's own SQL has changed of the session; one that cannot be reset ends.
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


def notification(terms: PostgresSettings, signals: Collection[str]) -> str:
    """Return the statement that wakes the listeners of *signals* once it has committed by itself."""
    return f"select set_config('lock_timeout', '{_NOTIFY_LOCK_MS}', true), {_notify(terms, signals)}"


def _notify(terms: PostgresSettings, signals: Collection[str]) -> str:
    told = "".join(sorted(map(digest, signals))) if len(signals) <= _TOPICS_MAX else "*"
    return f"pg_notify('{terms.channel}', '{told}')"


DIGEST_CHARS = 8


def digest(topic: str) -> str:
    """Return a topic as it travels: short, always of the same length, and safe in a literal."""
    return base64.b64encode(hashlib.blake2b(topic.encode(), digest_size=6).digest(), b"-_").decode()


# --- within an open one --------------------------------------------------------------------------------------------


async def run_joined(
    state: PostgresState, terms: PostgresSettings, operation: Operation[T], io: ServerIO, *, notifies: bool
) -> tuple[T, set[str]]:
    """Run *operation* in a savepoint of the open transaction; it leaves nothing behind if it is refused.

    With *notifies* the signals become part of the transaction, for one that somebody else will commit.
    """
    opening = f"savepoint holdfast_join; {terms.read_clock}"
    for run in range(_RUNS_MAX):
        try:
            begun = await io.message(opening)
            tx = PostgresTransaction(state, terms, io, begun, writes=True)
            result = await operation(tx)
            told = f"; select {_notify(terms, tx.topics)}" if notifies and tx.topics else ""
            await io.message(f"release holdfast_join{told}")
        except BaseException as error:
            again = _again(terms, error, run)
            await _undo_joined(io, keep=again)
            if not again:
                raise
            await io.sleep(_pause_seconds(run))
            opening = terms.read_clock
        else:
            return result, tx.topics
    raise AssertionError("unreachable")


async def _undo_joined(io: ServerIO, *, keep: bool) -> None:
    if io.connection.pgconn.transaction_status in {TransactionStatus.INTRANS, TransactionStatus.INERROR}:
        undo = "rollback to holdfast_join"
        await io.message(undo if keep else f"{undo}; release holdfast_join")


async def check_joined(terms: PostgresSettings, io: ServerIO) -> None:
    """Refuse a transaction on another store, or one that would not see what others commit while it waits."""
    [[isolation]] = await io.message(_ISOLATION)
    if isolation != "read committed":
        raise InvalidInput("connection", f"is in a {isolation} transaction; begin one that is read committed")
    [[identity]] = await io.query(terms.texts.reading["schema_identity"], None, prepare=terms.prepares)
    if terms.identity is not None and identity != terms.identity:
        raise InvalidInput("connection", f"is not open on this queue's database, or its schema {terms.schema!r}")


def refuse_ended(connection: Any) -> None:
    """Raise `Misconfigured` unless a sound transaction is open."""
    status = connection.pgconn.transaction_status
    if status == TransactionStatus.INERROR:
        raise Misconfigured("a statement failed in this transaction, so that the server takes nothing more in it")
    if status != TransactionStatus.INTRANS:
        raise Misconfigured("the transaction that this would join has ended")


# The columns of `jobs_succeed` after the number; the last counts the event that was just recorded.
_STANDING = ("priority", "phase", "percent", "cancel_requested", "event_count")


_standing = attrgetter(*_STANDING[:-1])


async def succeed_held(
    tx: SqlTransaction, wanted: Sequence[tuple[Claim, CheckedOutcome]], now: Now, *, judged_by_server: bool
) -> dict[int, Transition]:
    """End the jobs whose lease holds, with their events, and return each one's step by number.

    *judged_by_server*: its clock tells whether a lease has expired, at the moment when the row is locked.
    """
    held = [[claim.job.seq, claim.epoch, claim.lease_token, checked.result_json] for claim, checked in wanted]
    values = {
        # In order, so that two calls that name the same jobs wait for each other instead of locking each other out.
        "held": sorted(held),
        "finished_at_ms": now.wall_ms,
        "lease_now": None if judged_by_server else now.lease_ms,
    }
    rows = await tx.query("jobs_succeed", values)
    ended = {row[0]: row[1:] for row in rows}
    return {
        claim.job.seq: _step(claim.job, ended[claim.job.seq], checked, now)
        for claim, checked in wanted
        if claim.job.seq in ended
    }


def _step(claimed: Job, standing: Row, checked: CheckedOutcome, now: Now) -> Transition:
    before = claimed
    if standing != (*_standing(claimed), claimed.event_count + 1):
        before = claimed._replace(**dict(zip(_STANDING, standing, strict=True)))
        before = before._replace(event_count=before.event_count - 1)
    step = transitions.succeed(before, checked, now)
    return step._replace(after=step.after.counting_event())
