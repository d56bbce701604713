"""Transactions as talks: begin with the clock, run the script, commit and wake; or a savepoint in the caller's own.

A script that others got in the way of is run again from its beginning. Nothing is kept on the connection.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeAlias, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from holdfast.domain import limits
from holdfast.domain.clock import Clock, Now
from holdfast.domain.errors import InvalidInput, Misconfigured, OutcomeUnknown
from holdfast.stores.drivers import answer_beside
from holdfast.stores.postgres.binding import bound, columns
from holdfast.stores.postgres.errors import fell_silent, lost, prepared_lost, worth_another_run
from holdfast.stores.postgres.statements import texts
from holdfast.stores.postgres.wire import AfterCommitError, Commit, Copy, Message, Pause, Query, Talk
from holdfast.stores.randomness import RANDOM
from holdfast.stores.script import Read, Row, Rows, Script, Statement, Write

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


class Terms:
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


class Answers:
    """Answers a script's requests and collects the signals to send once the transaction has committed."""

    def __init__(self, terms: Terms, begun: Rows, *, writes: bool) -> None:
        self.signals: set[str] = set()
        self._terms = terms
        self._texts = terms.texts.writing if writes else terms.texts.reading
        self._clock = terms.clock or _Clock(begun[-1][-1])

    def run(self, script: Script[T]) -> Talk[T]:
        """Run *script* to its end."""
        answer: Any = None
        try:
            while True:
                request = script.send(answer)
                answer = (
                    (yield from self._execute(request))
                    if type(request) is Statement
                    else answer_beside(request, self._clock, self.signals)
                )
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            script.close()

    def _execute(self, statement: Statement) -> Talk[Rows]:
        self._terms.observe(statement.name)
        name, rows = statement.name, statement.many
        text, prepare = self._texts[name], self._terms.prepares
        if rows is None:
            return (yield Query(text, bound(statement.values), prepare))
        if name == "job_insert" and len(rows) >= _COPY_ROWS_MIN and self._terms.nobody_knows(rows):
            return (yield Copy(self._texts["job_copy"], rows))
        if name == "artifact_write":
            # Bytes go one artifact at a time, so that no message grows beyond what the server takes.
            for row in rows:
                yield Query(text, bound({f"c{place}": value for place, value in enumerate(row)}), prepare)
            return [(len(rows),)]
        return (yield Query(text, columns(rows, "c"), prepare))


# --- a transaction of our own --------------------------------------------------------------------------------------


def run_step(terms: Terms, step: Read[T] | Write[T], connection: Any) -> Talk[tuple[T, set[str]]]:
    """Run one script in one transaction; return its result and what to tell the others, once that has committed."""
    writes = isinstance(step, Write)
    for run in range(_RUNS_MAX):
        begun = yield from begin(terms, connection, terms.begin_writing if writes else terms.begin_reading)
        answers = Answers(terms, begun, writes=writes)
        try:
            result = yield from answers.run(step.script())
            if writes:
                yield from commit(terms, connection, answers.signals)
            else:
                yield Message("commit")
        except BaseException as error:
            yield from roll_back(connection)
            if not _again(terms, error, run):
                raise
            yield Pause(_pause_seconds(run))
        else:
            return result, answers.signals
    raise AssertionError("unreachable")


def _again(terms: Terms, error: BaseException, run: int) -> bool:
    """Whether to run the script again after *error*."""
    if prepared_lost(error) and terms.prepares is None:
        terms.prepares = False
        return True
    return worth_another_run(error) and run + 1 < _RUNS_MAX


def _pause_seconds(run: int) -> float:
    """Return a random time to wait after the *run*-th failed run: two that met must not meet again at once."""
    return RANDOM.uniform(0.0, _PAUSE_SECONDS_FIRST * 2.0 ** min(run, _PAUSE_DOUBLINGS_MAX))


def begin(terms: Terms, connection: Any, text: str) -> Talk[Rows]:
    """Begin, with the words that *terms* has for it."""
    terms.observe("begin")
    try:
        return (yield Message(text))
    except psycopg.OperationalError as error:
        if connection.closed:
            raise StaleConnectionError from error
        raise


def commit(terms: Terms, connection: Any, signals: Collection[str], *, resets: bool = False) -> Talk[None]:
    """Commit and wake, in one message. The notification is a transaction of its own, which waits for no disk.

    With *resets* the same message undoes what the caller's own SQL has changed of the session.
    """
    terms.observe("commit")
    after = ([_RESET] if resets else []) + ([notification(terms, signals)] if signals else [])
    try:
        yield Commit("commit", "; ".join(after))
    except AfterCommitError as error:
        terms.report_notification(error.__cause__)
        if resets:
            connection.pgconn.finish()
    except psycopg.Error as error:
        if (connection.closed or lost(error)) and not fell_silent(error):
            raise OutcomeUnknown(f"the commit was not confirmed; send the same call again ({error})") from error
        raise


def roll_back(connection: Any, *, resets: bool = False) -> Talk[None]:
    """Undo what is open, if the connection still can; if not, its end undoes it.

    With *resets* undo also what the caller's own SQL has changed of the session; one that cannot be reset ends.
    """
    if connection.pgconn.transaction_status in {TransactionStatus.INTRANS, TransactionStatus.INERROR}:
        try:
            yield Message(f"rollback; {_RESET}" if resets else "rollback")
        except psycopg.Error:
            if not resets:
                return
        else:
            return
    if resets:
        connection.pgconn.finish()


def notification(terms: Terms, signals: Collection[str]) -> str:
    """Return the statement that wakes the listeners of *signals* once it has committed by itself."""
    return f"select set_config('lock_timeout', '{_NOTIFY_LOCK_MS}', true), {_notify(terms, signals)}"


def _notify(terms: Terms, signals: Collection[str]) -> str:
    told = "".join(sorted(map(digest, signals))) if len(signals) <= _TOPICS_MAX else "*"
    return f"pg_notify('{terms.channel}', '{told}')"


DIGEST_CHARS = 8


def digest(topic: str) -> str:
    """Return a topic as it travels: short, always of the same length, and safe in a literal."""
    return base64.b64encode(hashlib.blake2b(topic.encode(), digest_size=6).digest(), b"-_").decode()


# --- within an open one --------------------------------------------------------------------------------------------


def run_joined(
    terms: Terms, step: Read[T] | Write[T], connection: Any, *, notifies: bool
) -> Talk[tuple[T, set[str]]]:
    """Run one script in a savepoint of the open transaction; it leaves nothing behind if it is refused.

    With *notifies* the signals become part of the transaction, for one that somebody else will commit.
    """
    opening = f"savepoint holdfast_join; {terms.read_clock}"
    for run in range(_RUNS_MAX):
        try:
            begun = yield Message(opening)
            answers = Answers(terms, begun, writes=True)
            result = yield from answers.run(step.script())
            told = f"; select {_notify(terms, answers.signals)}" if notifies and answers.signals else ""
            yield Message(f"release holdfast_join{told}")
        except BaseException as error:
            again = _again(terms, error, run)
            yield from _undo_joined(connection, keep=again)
            if not again:
                raise
            yield Pause(_pause_seconds(run))
            opening = terms.read_clock
        else:
            return result, answers.signals
    raise AssertionError("unreachable")


def _undo_joined(connection: Any, *, keep: bool) -> Talk[None]:
    if connection.pgconn.transaction_status in {TransactionStatus.INTRANS, TransactionStatus.INERROR}:
        undo = "rollback to holdfast_join"
        yield Message(undo if keep else f"{undo}; release holdfast_join")


def check_joined(terms: Terms) -> Talk[None]:
    """Refuse a transaction on another store, or one that would not see what others commit while it waits."""
    [[isolation]] = yield Message(_ISOLATION)
    if isolation != "read committed":
        raise InvalidInput("connection", f"is in a {isolation} transaction; begin one that is read committed")
    [[identity]] = yield Query(terms.texts.reading["schema_identity"], None, terms.prepares)
    if terms.identity is not None and identity != terms.identity:
        raise InvalidInput("connection", f"is not open on this queue's database, or its schema {terms.schema!r}")


def refuse_ended(connection: Any) -> None:
    """Raise `Misconfigured` unless a sound transaction is open."""
    status = connection.pgconn.transaction_status
    if status == TransactionStatus.INERROR:
        raise Misconfigured("a statement failed in this transaction, so that the server takes nothing more in it")
    if status != TransactionStatus.INTRANS:
        raise Misconfigured("the transaction that this would join has ended")
