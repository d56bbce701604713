"""Send statements to the server over a psycopg connection, sync or async, through the same coroutine methods.

Begin, commit, retry and rollback are written once as coroutines over a `ServerIO`. The methods of `SyncIO` block
instead of suspending, so `run_sync` can run any of them.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, NamedTuple, Protocol, TypeAlias
from weakref import WeakKeyDictionary

import psycopg
from psycopg.abc import PQGen, Transformer as RowReader
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result
from psycopg.generators import fetch, send
from psycopg.pq import ConnStatus, ExecStatus, PipelineStatus, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult
from psycopg.rows import tuple_row
from psycopg.waiting import Wait

from holdfast.storage import randomness
from holdfast.storage.sql_queries import Row, Rows

# Each access to a member of an enum is a function call, and each comparison with one takes longer than with a number.
_ROWS: Final = int(ExecStatus.TUPLES_OK)
_FATAL: Final = int(ExecStatus.FATAL_ERROR)
_SYNCED: Final = int(ExecStatus.PIPELINE_SYNC)
_BAD: Final = int(ConnStatus.BAD)
_WAIT_READABLE: Final = Wait.R

# How long an interrupted call waits for the server to end its transactions.
_DRAIN_SECONDS = 5.0


class Statement(NamedTuple):
    """A statement with numbered parameters, and its values as text; those with format 1 are bytes as they are."""

    text: bytes
    values: Sequence[bytes | None] = ()
    formats: Sequence[int] | None = None


Report: TypeAlias = Callable[[psycopg.Error], None]
"""Called with the error of a transaction whose reply was left unread, when it is read."""


def _ignore(_error: psycopg.Error) -> None:
    """Do nothing."""


class AfterCommitError(Exception):
    """The transaction has committed; what followed failed or was interrupted, for the reason in ``__cause__``."""

    def __init__(self, replies: Sequence[Rows]) -> None:
        super().__init__("a statement after the commit failed")
        self.replies = replies


class ServerIO(Protocol):
    """Sends statements over one connection and returns their rows."""

    connection: Any

    async def message(self, text: str) -> Rows:
        """Send several statements without values in one message; return the rows of all of them."""
        ...

    async def query(
        self, text: str, values: Mapping[str, Any] | Sequence[Any] | None, *, prepare: bool | None = None
    ) -> Rows:
        """Send one statement with its values.

        *prepare* is False if a pooler would lose prepared statements; with None the driver prepares statements that
        it has sent often enough.
        """
        ...

    async def commit(self, text: str, after: str = "") -> Rows:
        """Send statements that end with COMMIT and, in the same message, statements that follow it.

        An error after the server has confirmed COMMIT raises `AfterCommitError`.
        """
        ...

    async def run_alone(self, transactions: Iterable[Sequence[Statement]], *, prepare: bool) -> list[Rows]:
        """Run one or two transactions in one round trip; return the rows of each statement of the first.

        The server works on the first while *transactions* makes the second. The reply to the second is read by the
        next exchange on the connection, unless the first has failed or a statement was prepared for the first time.
        If the first has committed and anything fails or is interrupted after it, raise `AfterCommitError`.
        """
        ...

    async def run(self, statements: Sequence[Statement], *, prepare: bool) -> list[Rows]:
        """Run statements of one transaction in one round trip.

        Return the rows of each, or one row with the number of rows that it changed.
        """
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait without sending anything."""
        ...


class SyncIO:
    """Sends over a sync connection; never suspends. It is in autocommit mode unless it is the caller's."""

    def __init__(
        self, connection: psycopg.Connection[Any], report: Report = _ignore, *, of_caller: bool = False
    ) -> None:
        self.connection: Any = connection
        self.report = report
        self._of_caller = of_caller

    @cached_property
    def _cursor(self) -> psycopg.Cursor[Row]:
        return psycopg.Cursor(self.connection, row_factory=tuple_row)

    async def message(self, text: str) -> Rows:
        """Send several statements without values in one message."""
        if not self._of_caller:
            results: list[PGresult] = []
            try:
                self.connection.wait(_exchange(self, text, "", results))
            except psycopg.Error:
                raise
            except BaseException:
                self.end_exchange()
                raise
            return _rows_of_all(results)
        cursor = self._cursor
        cursor.execute(text.encode(), prepare=False)
        rows = cursor.fetchall() if _has_rows(cursor) else []
        while cursor.nextset():
            rows += cursor.fetchall() if _has_rows(cursor) else []
        return rows

    async def query(
        self, text: str, values: Mapping[str, Any] | Sequence[Any] | None, *, prepare: bool | None = None
    ) -> Rows:
        """Send one statement with its values."""
        cursor = self._cursor
        cursor.execute(text.encode(), values, prepare=prepare)
        return cursor.fetchall() if _has_rows(cursor) else [(cursor.rowcount,)]

    async def commit(self, text: str, after: str = "") -> Rows:
        """Send a commit and the statements that follow it."""
        results: list[PGresult] = []
        try:
            self.connection.wait(_exchange(self, text, after, results))
        except psycopg.Error as error:
            return _committed(results, error)
        except BaseException:
            self.end_exchange()
            raise
        return _committed(results)

    async def run_alone(self, transactions: Iterable[Sequence[Statement]], *, prepare: bool) -> list[Rows]:
        """Run whole transactions in one round trip."""
        replies: list[list[PGresult]] = []
        try:
            self.connection.wait(_exchange_alone(self, transactions, replies, prepare=prepare))
        except BaseException as error:  # the driver reads all replies before it raises an interrupt of its wait
            if not isinstance(error, psycopg.Error):
                self.end_exchange()
            return _ran_alone(self, replies, error)
        return _ran_alone(self, replies)

    def end_exchange(self) -> None:
        """Wait until the server has ended the transactions of an interrupted exchange.

        So nothing is still in flight when the caller looks for what they have done. If the server does not respond,
        or a second interrupt arrives, close the connection instead.
        """
        pgconn: PGconn = self.connection.pgconn
        try:
            self.connection.wait(_until(time.monotonic() + _DRAIN_SECONDS, _drained(self.connection)))
        except (TimeoutError, psycopg.Error):
            pgconn.finish()

    async def run(self, statements: Sequence[Statement], *, prepare: bool) -> list[Rows]:
        """Run statements of one transaction in one round trip."""
        replies: list[list[PGresult]] = []
        self.connection.wait(_exchange_alone(self, [statements], replies, prepare=prepare))
        return _replied(self, replies[0])

    async def sleep(self, seconds: float) -> None:
        """Wait without sending anything."""
        time.sleep(seconds)  # noqa: ASYNC251  # a sync connection blocks


class AsyncIO:
    """Sends over an async connection, which is in autocommit mode unless it is the caller's."""

    def __init__(
        self, connection: psycopg.AsyncConnection[Any], report: Report = _ignore, *, of_caller: bool = False
    ) -> None:
        self.connection: Any = connection
        self.report = report
        self._of_caller = of_caller

    @cached_property
    def _cursor(self) -> psycopg.AsyncCursor[Row]:
        return psycopg.AsyncCursor(self.connection, row_factory=tuple_row)

    async def message(self, text: str) -> Rows:
        """Send several statements without values in one message."""
        if not self._of_caller:
            results: list[PGresult] = []
            await self.connection.wait(_exchange(self, text, "", results))
            return _rows_of_all(results)
        cursor = self._cursor
        await cursor.execute(text.encode(), prepare=False)
        rows = await cursor.fetchall() if _has_rows(cursor) else []
        while cursor.nextset():
            rows += await cursor.fetchall() if _has_rows(cursor) else []
        return rows

    async def query(
        self, text: str, values: Mapping[str, Any] | Sequence[Any] | None, *, prepare: bool | None = None
    ) -> Rows:
        """Send one statement with its values."""
        cursor = self._cursor
        await cursor.execute(text.encode(), values, prepare=prepare)
        return await cursor.fetchall() if _has_rows(cursor) else [(cursor.rowcount,)]

    async def commit(self, text: str, after: str = "") -> Rows:
        """Send a commit and the statements that follow it."""
        results: list[PGresult] = []
        try:
            await self.connection.wait(_exchange(self, text, after, results))
        except psycopg.Error as error:
            return _committed(results, error)
        return _committed(results)

    async def run_alone(self, transactions: Iterable[Sequence[Statement]], *, prepare: bool) -> list[Rows]:
        """Run whole transactions in one round trip."""
        replies: list[list[PGresult]] = []
        try:
            await self.connection.wait(_exchange_alone(self, transactions, replies, prepare=prepare))
        except BaseException as error:  # the driver reads all replies before it raises an interrupt
            return _ran_alone(self, replies, error)
        return _ran_alone(self, replies)

    async def run(self, statements: Sequence[Statement], *, prepare: bool) -> list[Rows]:
        """Run statements of one transaction in one round trip."""
        replies: list[list[PGresult]] = []
        await self.connection.wait(_exchange_alone(self, [statements], replies, prepare=prepare))
        return _replied(self, replies[0])

    async def sleep(self, seconds: float) -> None:
        """Wait without sending anything."""
        await asyncio.sleep(seconds)


def _has_rows(cursor: psycopg.Cursor[Row] | psycopg.AsyncCursor[Row]) -> bool:
    # Not `cursor.description`, which is rebuilt column by column for every result.
    return cursor.pgresult is not None and cursor.pgresult.status == ExecStatus.TUPLES_OK


def _exchange(io: SyncIO | AsyncIO, text: str, after: str, results: list[PGresult]) -> PQGen[None]:
    """Send a commit and collect its results as they arrive; an error must not hide the results before it."""
    pgconn: PGconn = io.connection.pgconn
    state = _state_of(io.connection)
    if state.unread:
        _report_failed(io, (yield from _read_transaction(pgconn)))
        state.unread = False
        pgconn.exit_pipeline_mode()
    pgconn.send_query((f"{text}; {after}" if after else text).encode())
    yield from send(pgconn)
    while (result := (yield from fetch(pgconn))) is not None:
        results.append(result)


def _committed(results: list[PGresult], lost: psycopg.Error | None = None) -> Rows:
    """Return the rows of a commit, or raise the error that occurred before or after it."""
    refused = [result for result in results if result.status == ExecStatus.FATAL_ERROR]
    error = error_from_result(refused[0], encoding="utf-8") if refused else lost
    rows = [row for result in results for row in _rows_of(result)]
    if error is None:
        return rows
    if any(result.command_status == b"COMMIT" for result in results):
        raise AfterCommitError([rows]) from error
    raise error


def _rows_of_all(results: Sequence[PGresult]) -> Rows:
    if (refused := _error_of(results)) is not None:
        raise refused
    return [row for result in results for row in _rows_of(result)]


def _rows_of(result: PGresult, reader: RowReader | None = None) -> Rows:
    if result.status != _ROWS:
        return []
    reader = reader or Transformer()
    reader.set_pgresult(result)
    return reader.load_rows(0, result.ntuples, tuple)


# --- several statements in one message -----------------------------------------------------------------------------


class _ConnectionState:
    """What is known of a connection between exchanges."""

    __slots__ = ("names", "reader", "unread")

    def __init__(self) -> None:
        self.names: dict[bytes, bytes] = {}
        """The names of the statements it has prepared, apart from those that the driver's cursors prepare."""
        # Without the connection: an interrupt while that is asked for its adapters would crash the driver's compiled
        # code.
        self.reader: RowReader = Transformer()
        """Converts the values of rows, and keeps what it has looked up for each type."""
        self.unread = False
        """Whether the reply to a transaction that nothing depends on has not been read."""


_states: WeakKeyDictionary[Any, _ConnectionState] = WeakKeyDictionary()


def _state_of(connection: Any) -> _ConnectionState:
    state = _states.get(connection)
    if state is None:
        state = _states[connection] = _ConnectionState()
    return state


def is_idle(connection: Any) -> bool:
    """Return whether the connection is alive, has no transaction open and was not interrupted within an exchange."""
    pgconn: PGconn = connection.pgconn
    if connection.closed:
        return False
    if (state := _states.get(connection)) is not None and state.unread:
        return True
    return pgconn.transaction_status == TransactionStatus.IDLE and pgconn.pipeline_status == PipelineStatus.OFF


def _exchange_alone(
    io: SyncIO | AsyncIO,
    transactions: Iterable[Sequence[Statement]],
    replies: list[list[PGresult]],
    *,
    prepare: bool,
) -> PQGen[None]:
    """Send the transactions without waiting in between; add the results of each to *replies* once it has ended.

    If there are two and the first has not failed, the results of the second are left unread.
    """
    pgconn: PGconn = io.connection.pgconn
    state = _state_of(io.connection)
    names, unread = state.names, state.unread
    new: dict[bytes, bytes] = {}
    if not unread:
        pgconn.enter_pipeline_mode()
    # If an interrupt arrives, the results of these transactions have to be read as well.
    state.unread = False
    # Whether each result of each transaction is of a statement, not of its preparation.
    kept: list[list[bool]] = []
    for transaction in transactions:
        kept.append(of_statements := [])
        for text, values, formats in transaction:
            of_statements.append(True)
            if prepare:
                if (name := names.get(text) or new.get(text)) is None:
                    # Through a pooler another client may have prepared statements on the same server connection.
                    name = new[text] = b"holdfast_%x" % randomness.RANDOM.getrandbits(62)
                    pgconn.send_prepare(name, text)
                    of_statements.insert(-1, False)
                pgconn.send_query_prepared(name, values, formats)
            else:
                pgconn.send_query_params(text, values, param_formats=formats)
        pgconn.pipeline_sync()
    if pgconn.flush():
        yield from send(pgconn)
    if unread:
        _report_failed(io, (yield from _read_transaction(pgconn)))
    failed = False
    for of_statements in kept:
        # After an error the transaction may still be open, which only an exchange without unread replies shows.
        if replies and not failed and not new:
            state.unread = True
            return
        results = yield from _read_transaction(pgconn)
        failed = failed or _error_of(results) is not None
        if new:
            flags = zip(results, of_statements, strict=False)
            results = [result for result, wanted in flags if wanted or result.status == _FATAL]
        replies.append(results)
    pgconn.exit_pipeline_mode()
    if not failed:
        names.update(new)


def _read_transaction(pgconn: PGconn) -> PQGen[list[PGresult]]:
    """Read the results of one transaction of a pipeline."""
    results: list[PGresult] = []
    try:
        while True:
            # As `fetch` does it, whose generator takes longer than the rest.
            if pgconn.is_busy():
                while True:
                    while not (yield _WAIT_READABLE):
                        pass
                    pgconn.consume_input()
                    if not pgconn.is_busy():
                        break
            result = pgconn.get_result()
            if result is None:
                if pgconn.status == _BAD:
                    raise psycopg.OperationalError(pgconn.get_error_message())
            elif result.status == _SYNCED:
                break
            else:
                results.append(result)
        while pgconn.notifies():
            pass
    except psycopg.OperationalError as lost:
        # Before it closes a connection, the server usually tells why.
        raise _error_of(results) or lost from lost
    return results


def _drained(connection: Any) -> PQGen[None]:
    """Read all replies of an exchange that was interrupted at any point."""
    pgconn: PGconn = connection.pgconn
    piped = pgconn.status != ConnStatus.BAD and pgconn.pipeline_status != PipelineStatus.OFF
    if piped:
        # Perhaps the interrupt came before the statements were sent, or before this: one more does no harm.
        pgconn.pipeline_sync()
    if pgconn.transaction_status == TransactionStatus.ACTIVE:
        yield from send(pgconn)
    while pgconn.transaction_status == TransactionStatus.ACTIVE:
        yield from fetch(pgconn)
    _state_of(connection).unread = False
    if piped:
        pgconn.exit_pipeline_mode()


def _until(deadline: float, waiting: PQGen[None]) -> PQGen[None]:
    """Run *waiting*; raise `TimeoutError` if it waits for the server after the *deadline*."""
    try:
        state = next(waiting)
        while True:
            # The driver also resumes it from time to time if nothing has arrived.
            ready = yield state
            if not ready and time.monotonic() > deadline:
                raise TimeoutError
            state = waiting.send(ready)
    except StopIteration:
        return


def _report_failed(io: SyncIO | AsyncIO, results: Sequence[PGresult]) -> None:
    if (failed := _error_of(results)) is not None:
        io.report(failed)


def _error_of(results: Sequence[PGresult]) -> psycopg.Error | None:
    for result in results:
        if result.status == _FATAL:
            return error_from_result(result, encoding="utf-8")
    return None


def _replied(io: SyncIO | AsyncIO, results: Sequence[PGresult]) -> list[Rows]:
    """Return the rows of each statement, or one row with the number of rows that it changed, or raise its error."""
    if (refused := _error_of(results)) is not None:
        raise refused
    reader = _state_of(io.connection).reader
    return [
        _rows_of(result, reader) if result.status == _ROWS else [(result.command_tuples or 0,)] for result in results
    ]


def _ran_alone(
    io: SyncIO | AsyncIO, replies: Sequence[Sequence[PGresult]], lost: BaseException | None = None
) -> list[Rows]:
    """Return the rows of each statement of the first transaction, or raise the error before or after its commit."""
    if not replies:
        raise lost or psycopg.OperationalError("the server has sent no reply")
    if (refused := _error_of(replies[0])) is not None:
        # An interrupt cancels the statement.
        raise refused if lost is None or isinstance(lost, psycopg.Error) else lost
    reader = _state_of(io.connection).reader
    rows = [_rows_of(result, reader) for result in replies[0] if result.status == _ROWS]
    failed = lost or (_error_of(replies[1]) if len(replies) > 1 else None)
    if failed is None:
        return rows
    raise AfterCommitError(rows) from failed
