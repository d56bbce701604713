"""Begin, commit, roll back and notify: the statements around a transaction. No state is kept on the connection."""

import hashlib
import logging
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, TypeAlias

import psycopg
from psycopg.pq import TransactionStatus

from holdfast.domain import errors, limits
from holdfast.domain.clock import Clock
from holdfast.storage.postgres import sql
from holdfast.storage.postgres.errors import ended_as_idle, lost
from holdfast.storage.postgres.io import AfterCommitError, ServerIO, Statement
from holdfast.storage.sql_queries import Rows

Observer: TypeAlias = Callable[[str], None]
"""Called with the name of each statement before it runs, and with begin, commit and committed. A test may raise."""

log = logging.getLogger("holdfast.store")

LOCK_MS = 10_000
# NOTIFY takes a server-wide lock. A notification that cannot get it soon is dropped, and waiting callers poll.
_NOTIFY_LOCK_MS = 1_000
_NOTIFY = f"select set_config('lock_timeout', '{_NOTIFY_LOCK_MS}', true), pg_notify($1, $2)".encode()
_COMMIT = Statement(b"commit")
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


class UnconfirmedError(Exception):
    """The connection was lost during a statement that is a whole transaction: it may have committed."""


class PostgresSettings:
    """The settings shared by all transactions of one store."""

    def __init__(self, schema: str, clock: Clock | None, observe: Observer) -> None:
        self.schema = schema
        self.channel = f"holdfast_{hashlib.blake2b(schema.encode(), digest_size=8).hexdigest()}"
        self.texts = sql.texts(schema)
        self.clock = clock
        self.observe = observe
        self.prepares: bool | None = None
        """False once a pooler has lost a prepared statement; None lets the driver prepare."""
        self.identity: str | None = None
        """The identity of this store, known once it was opened."""
        self._notification_failed = False
        self.read_clock = f'select "{schema}".clock_ms()'
        # Reads are small: JIT compilation would take longer than the query. The last statement returns the clock.
        begin_reading = (
            "begin isolation level repeatable read read only",
            "set local jit = off",
            self.read_clock,
        )
        begin_writing = ("begin isolation level read committed", f'select "{schema}".begin_ms({LOCK_MS})')
        self.begin_reading, self.begin_writing = (
            [Statement(text.encode()) for text in texts] for texts in (begin_reading, begin_writing)
        )
        # The planner settings stay unchanged for the caller's own statements.
        self.begin_sharing = (
            f"begin isolation level read committed; set local lock_timeout = {LOCK_MS};"
            f" set local idle_in_transaction_session_timeout = {limits.TRANSACTION_MS_MAX}"
        )

    def report_notification(self, error: BaseException | None) -> None:
        """Log that a notification failed after its commit, once per store."""
        if not self._notification_failed:
            self._notification_failed = True
            log.warning("a notification failed after its commit; waiting callers fall back to polling (%s)", error)


async def begin(settings: PostgresSettings, io: ServerIO, text: str) -> Rows:
    """Begin a transaction with the statement *text*."""
    settings.observe("begin")
    with _stale_if_closed(io):
        return await io.message(text)


async def begin_with(
    settings: PostgresSettings, io: ServerIO, beginning: Sequence[Statement], statements: Sequence[Statement]
) -> list[Rows]:
    """Begin a transaction and run its first statements in one round trip; return the rows of each."""
    with _stale_if_closed(io):
        return await io.run([*beginning, *statements], prepare=settings.prepares is None)


@contextmanager
def _stale_if_closed(io: ServerIO) -> Iterator[None]:
    try:
        yield
    except psycopg.OperationalError as error:
        if io.connection.closed:
            raise StaleConnectionError from error
        raise


async def commit(
    settings: PostgresSettings,
    io: ServerIO,
    signals: Collection[str],
    last: Sequence[Statement] = (),
    *,
    resets: bool = False,
) -> None:
    """Commit and notify in one message. The notification is a separate transaction, which does not wait for the disk.

    The statements *last*, which precede the commit, are in the same message.
    With *resets* the same message resets session settings that the caller's own SQL may have changed.
    """
    settings.observe("commit")
    after = ([_RESET] if resets else []) + ([notification(settings, signals)] if signals else [])
    try:
        if last:
            notifying = [[notify_statement(settings, signals)]] if signals else []
            await io.run_alone([[*last, _COMMIT], *notifying], prepare=settings.prepares is None)
        else:
            await io.commit("commit", "; ".join(after))
    except AfterCommitError as error:
        if not isinstance(error.__cause__, psycopg.Error):
            raise (error.__cause__ or error) from None
        settings.report_notification(error.__cause__)
        if resets:
            io.connection.pgconn.finish()
    except psycopg.Error as error:
        if (io.connection.closed or lost(error)) and not ended_as_idle(error):
            raise errors.OutcomeUnknown(
                f"the commit was not confirmed; send the same call again ({error})"
            ) from error
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
    return f"select set_config('lock_timeout', '{_NOTIFY_LOCK_MS}', true), {notify_call(settings, signals)}"


def notify_statement(settings: PostgresSettings, signals: Collection[str]) -> Statement:
    """Return the same with numbered parameters."""
    return Statement(_NOTIFY, [settings.channel.encode(), _payload(signals).encode()])


def notify_call(settings: PostgresSettings, signals: Collection[str]) -> str:
    """Return the call that notifies the listeners of *signals*."""
    return f"pg_notify('{settings.channel}', '{_payload(signals)}')"


def _payload(signals: Collection[str]) -> str:
    if len(signals) == 1:
        return _only_digest(*signals)
    return "".join(sorted(map(digest, signals))) if len(signals) <= _TOPICS_MAX else "*"


DIGEST_CHARS = 8


def digest(topic: str) -> str:
    """Return the digest of a topic that is sent: short, of fixed length, and safe in a literal."""
    # A settlement of many jobs has a topic for each. Two topics with the same digest cost a wake-up for nothing.
    return f"{zlib.crc32(topic.encode()):08x}"


# An enqueue notifies of its lane, of which there are few.
_only_digest = lru_cache(maxsize=256)(digest)


async def check_joined(settings: PostgresSettings, io: ServerIO) -> None:
    """Raise if the transaction is on another store, or would not see rows committed while it waits."""
    [[isolation]] = await io.message(_ISOLATION)
    if isolation != "read committed":
        raise errors.InvalidInput("connection", f"is in a {isolation} transaction; begin one that is read committed")
    [[identity]] = await io.query(settings.texts.reading["schema_identity"], None, prepare=settings.prepares)
    if settings.identity is not None and identity != settings.identity:
        raise errors.InvalidInput(
            "connection", f"is not open on this queue's database, or its schema {settings.schema!r}"
        )


def refuse_ended(connection: Any) -> None:
    """Raise `Misconfigured` unless a valid transaction is open."""
    status = connection.pgconn.transaction_status
    if status == TransactionStatus.INERROR:
        raise errors.Misconfigured(
            "a statement failed in this transaction, so the server rejects further statements in it"
        )
    if status != TransactionStatus.INTRANS:
        raise errors.Misconfigured("the transaction that this would join has ended")
