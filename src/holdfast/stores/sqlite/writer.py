"""Writing: one transaction at a time, many scripts in each.

A caller that finds nobody writing leads: it passes the gate, runs its script, then those that others have queued
meanwhile, each in a savepoint of its own, commits once and answers all. Whoever came too late for that leads next. No
answer, a refusal included, leaves before the commit it rests on.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

from holdfast.domain.errors import Misconfigured, OutcomeUnknown
from holdfast.stores.drivers import run_script
from holdfast.stores.script import Script
from holdfast.stores.signals import Hub
from holdfast.stores.sqlite.answers import Answers, Observer
from holdfast.stores.sqlite.errors import translate
from holdfast.stores.sqlite.joined import BlockingJoined
from holdfast.stores.sqlite.opening import BUSY_SECONDS, Opener
from holdfast.stores.sqlite.side_file import SideFile
from holdfast.stores.sqlite.threads import in_thread
from holdfast.stores.sqlite.write_ahead_log import trim_log

T = TypeVar("T")

# How many scripts, and for how long, one commit gathers at most.
_GROUP_MAX = 256
_GROUP_SECONDS = 0.02

# How often the length of the log is looked at.
_COMMITS_BETWEEN_LOOKS = 32

_PART_OPEN = "savepoint holdfast_group"
_PART_KEEP = "release holdfast_group"
_PART_UNDO = "rollback to holdfast_group"


class _Ticket:
    """A script that wants to be run, or somebody who wants the writer for himself."""

    def __init__(self, script: Callable[[], Script[Any]] | None, *, threadless: bool = False) -> None:
        self.script = script
        self.threadless = threadless
        """Whether its caller waits without a thread, so that another one has to do the work."""
        self.turn: Future[bool] | None = None
        """Resolved when it is to lead (true), or when its answer is there (false); none if it leads at once."""
        self.result: Any = None
        self.error: BaseException | None = None

    def answer(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.result


class Writer:
    """The only way to write to one database in this process: for threads, tasks and explicit transactions."""

    def __init__(self, opener: Opener, hub: Hub, observe: Observer) -> None:
        self._opener = opener
        self._hub = hub
        self._observe = observe
        self._mutex = threading.Lock()
        self._led = False
        self._queue: deque[_Ticket] = deque()
        self._connection: sqlite3.Connection | None = None
        self._side: SideFile | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._holder: object = None
        self._commits = 0

    # --- scripts ---------------------------------------------------------------------------------------------------

    def run(self, script: Callable[[], Script[T]]) -> T:
        """Run *script* in a transaction and return its result once that has committed."""
        ticket = _Ticket(script)
        if self._join(ticket) or self._await_turn(ticket):
            self._lead(ticket)
        answer: T = ticket.answer()
        return answer

    async def run_async(self, script: Callable[[], Script[T]]) -> T:
        """Run *script* as `run` does, in another thread. It is run to its end also if the task is cancelled."""
        ticket = _Ticket(script, threadless=True)
        turn: Future[bool] = Future()
        ticket.turn = turn
        if self._join(ticket):
            self._lead_elsewhere(ticket)
        await asyncio.shield(asyncio.wrap_future(turn))
        answer: T = ticket.answer()
        return answer

    # --- whose turn it is ------------------------------------------------------------------------------------------

    def _join(self, ticket: _Ticket) -> bool:
        """Queue up; tell whether there was nobody, so that *ticket* leads at once."""
        self.refuse_holder()
        with self._mutex:
            if self._led:
                ticket.turn = ticket.turn or Future()
                self._queue.append(ticket)
                return False
            self._led = True
            return True

    def _await_turn(self, ticket: _Ticket) -> bool:
        """Wait in this thread; tell whether *ticket* is to lead or has its answer."""
        assert ticket.turn is not None  # noqa: S101  # whoever queues has one
        try:
            return ticket.turn.result()
        except BaseException:
            self._withdraw(ticket)
            raise

    def _withdraw(self, ticket: _Ticket) -> None:
        """Leave the queue; hand on the lead if it comes in this very moment."""
        assert ticket.turn is not None  # noqa: S101  # whoever queues has one
        with self._mutex:
            if ticket in self._queue:
                self._queue.remove(ticket)
        # Cancelling fails once it is being run or given the lead; both come to their end without us.
        if not ticket.turn.cancel() and ticket.turn.result():
            self._pass_on()

    def _pass_on(self) -> None:
        """Give the lead to whoever has waited longest."""
        while True:
            with self._mutex:
                if not self._queue:
                    self._led = False
                    return
                ticket = self._queue.popleft()
            if ticket.threadless and ticket.script is not None:
                self._lead_elsewhere(ticket)
                return
            if ticket.turn is not None and _taken(ticket.turn):
                ticket.turn.set_result(True)
                return

    def _lead_elsewhere(self, ticket: _Ticket) -> None:
        try:
            self._threads = self._threads or ThreadPoolExecutor(1, thread_name_prefix="holdfast-writer")
            self._threads.submit(self._lead, ticket)
        except BaseException as error:  # the interpreter is going down; nobody must wait for ever
            ticket.error = error
            _resolve(ticket)
            self._pass_on()

    # --- one group -------------------------------------------------------------------------------------------------

    def _lead(self, ticket: _Ticket) -> None:
        """Run *ticket* and whatever is queued in one transaction, answer all, and pass the lead on."""
        group = [ticket]
        try:
            with self._gate() as connection:
                self._commit_group(connection, group)
        except Exception as error:  # every member is told of it
            for member in group:
                member.error = translate(error)
        except BaseException as error:  # this thread is to stop; what the others asked for is not
            ticket.error = error
            with self._mutex:
                self._queue.extendleft(reversed(group[1:]))
            del group[1:]
        finally:
            self._pass_on()
            for member in group:
                if member is not ticket or ticket.threadless:
                    _resolve(member)

    def _commit_group(self, connection: sqlite3.Connection, group: list[_Ticket]) -> None:
        signals: set[str] = set()
        try:
            self._run_part(connection, group[0], signals)
            patience = time.monotonic() + _GROUP_SECONDS
            while len(group) < _GROUP_MAX and (member := self._next_member()) is not None:
                group.append(member)
                self._run_part(connection, member, signals)
                if time.monotonic() > patience:
                    break
            self._commit(connection)
        except BaseException:
            self._roll_back(connection)
            raise
        try:
            self._tell(signals)
            self._observe("committed")
        except BaseException as error:  # what is committed stays so; only this thread's own answer is lost
            group[0].error = error

    def _next_member(self) -> _Ticket | None:
        while True:
            with self._mutex:
                if not self._queue or self._queue[0].script is None:
                    return None
                ticket = self._queue.popleft()
            # From here on its caller can no longer withdraw it, unless that happened in this very moment.
            if ticket.turn is not None and _taken(ticket.turn):
                return ticket

    def _run_part(self, connection: sqlite3.Connection, member: _Ticket, signals: set[str]) -> None:
        """Run one script. If it fails it leaves nothing behind; the others of its group are not concerned."""
        assert member.script is not None  # noqa: S101  # only scripts are taken into a group
        # One that was put back from a group that came to nothing has seen what never was.
        member.result = member.error = None
        first = not connection.in_transaction
        if first:
            self._begin(connection)
        else:
            connection.execute(_PART_OPEN)
        answers = Answers(connection, self._opener.clock, self._observe)
        try:
            member.result = run_script(member.script(), answers.blocking)
        except Exception as error:
            if not connection.in_transaction:
                # The engine gave up the whole transaction, and with it what the others had done.
                raise
            member.error = translate(error)
            connection.execute("rollback" if first else _PART_UNDO)
        else:
            signals |= answers.signals
        if not first:
            connection.execute(_PART_KEEP)

    # --- explicit transactions -------------------------------------------------------------------------------------

    @contextmanager
    def transaction(self) -> Iterator[BlockingJoined]:
        """Hold the writer for the block: commit at its end, or roll back if it raises."""
        ticket = _Ticket(None)
        if not self._join(ticket):
            self._await_turn(ticket)
        try:
            with self._gate() as connection:
                joined = self._open_joined(connection)
                try:
                    with self._held(joined):
                        yield joined
                    self._finish_joined(joined)
                finally:
                    self._roll_back(connection)
        finally:
            self._pass_on()

    @asynccontextmanager
    async def transaction_async(self) -> AsyncIterator[BlockingJoined]:
        """Hold the writer for the block as `transaction` does, running each call in another thread."""
        ticket = _Ticket(None, threadless=True)
        if not self._join(ticket):
            assert ticket.turn is not None  # noqa: S101  # whoever queues has one
            try:
                await asyncio.wrap_future(ticket.turn)
            except BaseException:
                self._withdraw(ticket)
                raise
        gate = self._gate()
        try:
            # Entered and left in threads, because both may have to wait for other processes.
            connection = await in_thread(gate.__enter__)
            try:
                joined = await in_thread(lambda: self._open_joined(connection))
                with self._held(joined):
                    yield joined
                await in_thread(lambda: self._finish_joined(joined))
            finally:
                self._roll_back(connection)
                gate.__exit__(None, None, None)
        finally:
            self._pass_on()

    @contextmanager
    def _held(self, joined: BlockingJoined) -> Iterator[None]:
        self._holder = _whoever_runs()
        try:
            yield
        finally:
            self._holder = None
            joined.end()

    def refuse_holder(self) -> None:
        """Refuse to let somebody wait for himself for ever."""
        if self._holder is not None and self._holder == _whoever_runs():
            raise Misconfigured("a transaction of this queue is open here: call the methods of the transaction")

    def _open_joined(self, connection: sqlite3.Connection) -> BlockingJoined:
        try:
            self._begin(connection)
        except sqlite3.Error as error:
            raise translate(error) from error
        return BlockingJoined(connection, self._opener.clock, self._observe, self._hub)

    def _finish_joined(self, joined: BlockingJoined) -> None:
        if not joined.connection.in_transaction:
            raise Misconfigured("the transaction was ended by SQL run in it; leave commit and rollback to the block")
        self._commit(joined.connection)
        self._tell(joined.signals)
        self._observe("committed")

    # --- gate, begin, commit, roll back ----------------------------------------------------------------------------

    @contextmanager
    def _gate(self) -> Iterator[sqlite3.Connection]:
        """Pass the gate that all writers of all processes pass, and give the open connection."""
        if not self._opener.in_memory and self._side is None:
            self._side = self._opener.side_file()
        if self._side is not None:
            self._side.lock(BUSY_SECONDS)
        try:
            if self._connection is None:
                self._connection = self._opener.writing_connection()
            # An interrupt may have struck where it kept an earlier transaction from being rolled back.
            self._roll_back(self._connection)
            yield self._connection
        finally:
            try:
                if self._connection is not None:
                    self._roll_back(self._connection)
            finally:
                if self._side is not None:
                    self._side.unlock()

    def _begin(self, connection: sqlite3.Connection) -> None:
        self._observe("begin")
        connection.execute("begin immediate")

    def _commit(self, connection: sqlite3.Connection) -> None:
        if not connection.in_transaction:
            return
        self._observe("commit")
        try:
            connection.execute("commit")
        except sqlite3.Error as error:
            if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_IOERR:
                # The disk may or may not have it. The connection's view is not to be trusted any more.
                self._drop()
                raise OutcomeUnknown(f"the commit was not confirmed; send the same call again ({error})") from error
            raise translate(error) from error

    def _roll_back(self, connection: sqlite3.Connection) -> None:
        if connection is self._connection and connection.in_transaction:
            try:
                connection.execute("rollback")
            except sqlite3.Error:
                self._drop()

    def _tell(self, signals: set[str]) -> None:
        """Wake whoever waits, here and in other processes, and keep the log short; the gate is held.

        What goes wrong here does no harm: waiters poll, and the next commit looks at the log again.
        """
        if self._opener.in_memory:
            self._hub.publish(signals)
            return
        with contextlib.suppress(Exception):
            if signals:
                self._hub.publish(signals)
                if self._side is not None:
                    self._side.ring(signals)
            if self._commits % _COMMITS_BETWEEN_LOOKS == 0 and self._connection is not None:
                trim_log(self._connection, self._opener.path)
            self._commits += 1

    # --- closing and resting ---------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the connection behind the gate, because the last one to close also checkpoints."""
        self.refuse_holder()
        ticket = _Ticket(None)
        if not self._join(ticket):
            self._await_turn(ticket)
        try:
            self._close_all()
        finally:
            self._pass_on()

    def rest(self, seconds: float) -> bool:
        """Take the lead and close everything, until `resume`; tell whether the lead could be had in time."""
        ticket = _Ticket(None)
        if self._holder is not None:
            return False
        if not self._join(ticket):
            assert ticket.turn is not None  # noqa: S101  # whoever queues has one
            try:
                ticket.turn.result(seconds)
            except TimeoutError:
                self._withdraw(ticket)
                return False
        try:
            self._close_all()
        except Exception:
            self._pass_on()
            return False
        return True

    def resume(self) -> None:
        """Go on after a rest."""
        self._pass_on()

    def _close_all(self) -> None:
        if self._connection is not None:
            with self._gate():
                self._drop()
        if self._side is not None:
            self._side.close()
            self._side = None
        if self._threads is not None:
            self._threads.shutdown(wait=False)
            self._threads = None

    def _drop(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None


def _taken(turn: Future[bool]) -> bool:
    """Keep the caller from withdrawing; tell whether he has not yet. One that was put back is taken already."""
    return turn.running() or turn.set_running_or_notify_cancel()


def _resolve(ticket: _Ticket) -> None:
    """Tell the caller that its answer is there."""
    if ticket.turn is not None and not ticket.turn.done():
        ticket.turn.set_result(False)


def _whoever_runs() -> object:
    """Return the task, or else the thread, that is running."""
    try:
        return asyncio.current_task() or threading.get_ident()
    except RuntimeError:
        return threading.get_ident()
