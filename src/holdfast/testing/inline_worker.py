"""One attempt, here and now, by the worker's own code: claimed, run, decided and settled as in a worker.

What is left out is what only makes sense beside others: slots, heartbeats, and the watch over time-outs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.client.operations import Operations
from holdfast.domain import failures
from holdfast.domain.claims import Claim
from holdfast.domain.errors import HoldfastError, LeaseLost, Misconfigured
from holdfast.domain.job import Job
from holdfast.domain.session_leases import SessionClaim
from holdfast.tasks.control_flow import Ask, Cancelled
from holdfast.testing.redirect import AnyQueue
from holdfast.worker.attempt import RunningAttempt, refused
from holdfast.worker.executors import ExecutorQueue, TaskExecutor, run_blocking
from holdfast.worker.session_turn import Turn, offer_checkpoints
from holdfast.worker.transactions import offer_transaction
from holdfast.worker.watched_attempts import watch_attempts

# The handler asked for nothing of this; its program is wrong.
_DEFECTS = frozenset({failures.PAYLOAD_INVALID, "result_invalid"})


@dataclass(frozen=True, slots=True)
class Ran:
    """One attempt that was run."""

    job: Job
    """The job as its settlement left it; of a turn, the first of its entries."""
    outcome: str
    """`done`, `failed`, `deferred`, `released`, or `lost` if the lease was gone."""
    error: BaseException | None = None
    """What the handler raised, or what its outcome was refused with."""

    def raise_defect(self) -> None:
        """Raise what went wrong, unless the handler asked for its outcome itself."""
        error = self.error
        if error is not None and not isinstance(error, Ask | Cancelled | asyncio.CancelledError):
            error.add_note(f"{self._place()}; give raises=False to settle it and go on")
            raise error
        found = self.job.failure
        if self.outcome == "failed" and found is not None and found.reason in _DEFECTS:
            raise AssertionError(f"{self._place()} failed with {found.reason}: {found.message}")

    def _place(self) -> str:
        return f"attempt {self.job.attempt} of job {self.job.id} ({self.job.kind})"


class InlineAttempt:
    """An attempt under way in the test itself."""

    def __init__(self, queue: AnyQueue, claim: Claim | SessionClaim, capabilities: Sequence[str] = ()) -> None:
        self.attempt = _attempt(queue, claim, capabilities)
        self._error: BaseException | None = None
        if self.attempt.task.takes_context:
            offer_transaction(self.attempt, queue.operations, queue.store)
        watch_attempts(queue.operations.watches, [self.attempt])
        noting = self._noting_async if self.attempt.task.is_async else self._noting
        self.attempt.function = noting(self.attempt.function)

    def _noting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except BaseException as error:
                self._error = error
                raise

        return run

    def _noting_async(self, function: Callable[..., Any]) -> Callable[..., Any]:
        async def run(*args: Any, **kwargs: Any) -> Any:
            try:
                return await function(*args, **kwargs)
            except BaseException as error:
                self._error = error
                raise

        return run

    def run(self) -> None:
        """Run the handler: one that blocks in this thread, one that is awaited in an event loop of its own."""
        if not self.attempt.task.is_async:
            run_blocking(self.attempt)
            return
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            asyncio.run(_run_awaited(self.attempt))
        else:
            raise Misconfigured("an event loop is running here: await drain_async or run_job_async")

    async def run_async(self) -> None:
        """Run the handler: one that is awaited in this event loop, one that blocks in a thread, as a worker does."""
        if self.attempt.task.is_async:
            await _run_awaited(self.attempt)
        else:
            await asyncio.to_thread(run_blocking, self.attempt)

    async def settle(self, operations: Operations) -> Ran:
        """Settle what the handler came to, and tell those who watch."""
        ran = await self._settle(operations)
        for watch in operations.watches:
            watch.ended(self.attempt.claim, ran.outcome, ran.job, self.attempt.run_seconds)
        return ran

    async def _settle(self, operations: Operations) -> Ran:
        attempt, job_id = self.attempt, self.attempt.claim.job.id
        if attempt.outcome is None:
            return Ran(await operations.get(job_id), "done" if attempt.settled else "lost", self._error)
        outcome = attempt.outcome
        try:
            job = _first(await attempt.settling(operations, outcome))
        except LeaseLost:
            return Ran(await operations.get(job_id), "lost", self._error)
        except HoldfastError as refusal:
            self._error = refusal
            job = _first(await attempt.settling(operations, outcome := refused(refusal)))
        return Ran(job, type(outcome).__name__.lower(), self._error)


def _attempt(queue: AnyQueue, claim: Claim | SessionClaim, capabilities: Sequence[str]) -> RunningAttempt:
    if isinstance(claim, Claim):
        return RunningAttempt(claim, queue.tasks.get(claim.job.kind), time.monotonic())
    turn = Turn(claim, queue.tasks, time.monotonic())
    offer_checkpoints(turn, queue.operations, queue.store, capabilities)
    return turn


def _first(settled: Job | list[Job]) -> Job:
    """Return the job, or the first entry of a turn."""
    return settled[0] if isinstance(settled, list) else settled


async def _run_awaited(attempt: RunningAttempt) -> None:
    ended = asyncio.Event()
    slots = TaskExecutor(lambda _attempt: ended.set())
    slots.line = ExecutorQueue(1, lambda _attempt: slots)
    slots.line.put([attempt])
    await ended.wait()
    await slots.close()
