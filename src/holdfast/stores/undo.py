"""Writes that lease something, for a caller that may be gone before it has the result.

A cancelled task or an interrupted thread does not learn what its claim was given. Such a write is withdrawn if its
transaction has not begun; if it has, the driver waits for its end and runs the write's own undo.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any, Final

from holdfast.domain.errors import HoldfastError, Unavailable
from holdfast.stores.engine import AsyncRunner, Runner
from holdfast.stores.script import Script, Write

log = logging.getLogger("holdfast")

# How long a cancelled caller is kept waiting for the undo, which then goes on in the background.
_WAIT_SECONDS: Final = 1.0
# The pauses between attempts to reach a store that does not answer; after that the leases expire by themselves.
_RETRY_SECONDS: Final = (0.05, 0.2, 1.0)

# The event loop keeps only weak references to its tasks.
_in_background: set[asyncio.Task[None]] = set()


class WithdrawnError(Exception):
    """The caller was gone before the transaction began, so that nothing was done."""


class UndoableWrite:
    """One write, whether it has begun, and what it returned, known even if the caller never receives it."""

    def __init__(self, step: Write[Any]) -> None:
        self.step: Write[Any] = Write(self._run)
        """What to run in place of the write itself."""
        self._script, self._undo = step.script, step.undo
        self._fate: dict[str, bool] = {}
        self._abandoned = False
        self._result: Any = None

    def _run(self) -> Script[Any]:
        # The caller may withdraw at the same moment in another thread; `setdefault` lets one of them be first.
        if self._abandoned or not self._fate.setdefault("begun", True):
            raise WithdrawnError
        self._result = None
        self._result = yield from self._script()
        return self._result

    def _withdraw(self) -> bool:
        """Let the write not begin any more, nor be run again; return whether it had not begun."""
        self._abandoned = True
        return not self._fate.setdefault("begun", False)

    def _undo_script(self) -> Script[None]:
        """Give back what the write leased; read in the transaction, because another thread may have run the write."""
        undo = None if self._result is None or self._undo is None else self._undo(self._result)
        if undo is not None:
            yield from undo

    # --- sync ------------------------------------------------------------------------------------------------------

    def abandon(self, runner: Runner) -> None:
        """Withdraw or undo the write for a caller that was interrupted."""
        if self._withdraw():
            return
        try:
            runner.run(Write(self._undo_script))
        except HoldfastError as error:
            _log_failure(error)

    # --- async -----------------------------------------------------------------------------------------------------

    async def run_async(self, runner: AsyncRunner) -> Any:
        """Run the write and return its result; if the task is cancelled, withdraw or undo it."""
        running = asyncio.ensure_future(runner.run_async(self.step))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            await self._abandon_async(running, runner)
            raise

    async def _abandon_async(self, running: asyncio.Future[Any], runner: AsyncRunner) -> None:
        if self._withdraw():
            running.add_done_callback(_retrieve)
            return
        undoing = asyncio.create_task(self._undo_async(running, runner))
        _in_background.add(undoing)
        undoing.add_done_callback(_in_background.discard)
        # A second cancellation ends the waiting, not the undo.
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([undoing], timeout=_WAIT_SECONDS)

    async def _undo_async(self, running: asyncio.Future[Any], runner: AsyncRunner) -> None:
        if not running.done():
            await asyncio.wait([running])
        _retrieve(running)
        if self._result is None or self._undo is None or self._undo(self._result) is None:
            return
        failure: HoldfastError | None = None
        for pause in _RETRY_SECONDS:
            try:
                await runner.run_async(Write(self._undo_script))
            except Unavailable as error:
                failure = error
                await asyncio.sleep(pause)
            except HoldfastError as error:
                failure = error
                break
            else:
                return
        assert failure is not None  # noqa: S101  # else it has returned
        _log_failure(failure)


def _retrieve(running: asyncio.Future[Any]) -> None:
    """Mark the exception of an abandoned write as seen."""
    if not running.cancelled():
        running.exception()


def _log_failure(error: HoldfastError) -> None:
    log.warning("a cancelled claim could not be released and will expire: %s", error)
