"""Runs one attempt in the test itself with the worker's code: claimed, run, decided and settled as in a worker.

There are no slots, lease renewals or timeouts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.client.async_api.queue import AsyncQueue
from holdfast.client.async_api.worker_calls import AsyncWorkerCalls
from holdfast.client.middleware import EndedAs
from holdfast.client.sync_api.queue import Queue
from holdfast.client.sync_api.worker_calls import WorkerCalls
from holdfast.domain import failures
from holdfast.domain.claims import Claim
from holdfast.domain.errors import HoldfastError, LeaseLost, Misconfigured
from holdfast.domain.job import Job
from holdfast.domain.session_claims import SessionClaim
from holdfast.tasks.control_flow import Cancelled, OutcomeRequest
from holdfast.testing.redirect import AnyQueue
from holdfast.worker.attempt import RunningAttempt, failure_from_refusal, outcome_name
from holdfast.worker.executors import run_async, run_blocking
from holdfast.worker.output import emitted, fail_refused
from holdfast.worker.session_turn import Turn, offer_checkpoints
from holdfast.worker.transactions import offer_transaction

# The handler did not choose these failures: they are defects of the program.
_DEFECTS = frozenset({failures.PAYLOAD_INVALID, "result_invalid"})


@dataclass(frozen=True, slots=True)
class Ran:
    """One attempt that has run."""

    job: Job
    """The job after its settlement; for a turn, its first entry."""
    outcome: str
    """`done`, `failed`, `deferred`, `released`, or `lost` if the lease was lost."""
    error: BaseException | None = None
    """The exception that the handler raised, or with which its outcome was refused."""

    def raise_defect(self) -> None:
        """Raise the error of the attempt, unless the handler chose its outcome with it."""
        error = self.error
        if error is not None and not isinstance(error, OutcomeRequest | Cancelled | asyncio.CancelledError):
            error.add_note(f"{self._description()}; pass raises=False to settle it and continue")
            raise error
        failure = self.job.failure
        if self.outcome == "failed" and failure is not None and failure.reason in _DEFECTS:
            raise AssertionError(f"{self._description()} failed with {failure.reason}: {failure.message}")

    def _description(self) -> str:
        return f"attempt {self.job.attempt} of job {self.job.id} ({self.job.kind})"


class InlineAttempt:
    """An attempt that runs in the test itself."""

    def __init__(self, queue: AnyQueue, claim: Claim | SessionClaim, capabilities: Sequence[str] = ()) -> None:
        self.attempt = _create_attempt(queue, claim, capabilities)
        self._error: BaseException | None = None
        if self.attempt.task.takes_context:
            offer_transaction(self.attempt, queue._state)
        self._middleware = queue._state.middleware
        self.attempt.wrap_handler(self._middleware)
        wrap = self._record_error_async if self.attempt.task.is_async else self._record_error
        self.attempt.function = wrap(self.attempt.function)

    def _record_error(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except BaseException as error:
                self._error = error
                raise

        return run

    def _record_error_async(self, function: Callable[..., Any]) -> Callable[..., Any]:
        async def run(*args: Any, **kwargs: Any) -> Any:
            try:
                return await function(*args, **kwargs)
            except BaseException as error:
                self._error = error
                raise

        return run

    def run(self) -> None:
        """Run the handler: a sync handler in this thread, an async handler in a new event loop."""
        if not self.attempt.task.is_async:
            run_blocking(self.attempt)
            return
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            asyncio.run(_run_async_handler(self.attempt))
        else:
            raise Misconfigured("an event loop is running in this thread; use await drain_async or run_job_async")

    async def run_async(self) -> None:
        """Run the handler: an async handler in this event loop, a sync handler in a thread, as a worker does."""
        if self.attempt.task.is_async:
            await _run_async_handler(self.attempt)
        else:
            await asyncio.to_thread(run_blocking, self.attempt)

    def settle(self, queue: Queue) -> Ran:
        """Settle the outcome of the handler and report it to middleware."""
        attempt, job_id = self.attempt, self.attempt.claim.job.id
        if attempt.outcome is None:
            return self._ended([queue.get(job_id)], "done" if attempt.settled else "lost")
        WorkerCalls(queue.store).flush_output(emitted([attempt]))
        fail_refused([attempt])
        outcome = attempt.outcome
        try:
            jobs = attempt.settle(queue, outcome)
        except LeaseLost:
            return self._ended([queue.get(job_id)], "lost")
        except HoldfastError as refusal:
            self._error, outcome = refusal, failure_from_refusal(refusal)
            jobs = attempt.settle(queue, outcome)
        return self._ended(jobs, outcome_name(outcome))

    async def settle_async(self, queue: AsyncQueue) -> Ran:
        """Do the same in a running event loop."""
        attempt, job_id = self.attempt, self.attempt.claim.job.id
        if attempt.outcome is None:
            return self._ended([await queue.get(job_id)], "done" if attempt.settled else "lost")
        await AsyncWorkerCalls(queue.store).flush_output(emitted([attempt]))
        fail_refused([attempt])
        outcome = attempt.outcome
        try:
            jobs = await attempt.settle_async(queue, outcome)
        except LeaseLost:
            return self._ended([await queue.get(job_id)], "lost")
        except HoldfastError as refusal:
            self._error, outcome = refusal, failure_from_refusal(refusal)
            jobs = await attempt.settle_async(queue, outcome)
        return self._ended(jobs, outcome_name(outcome))

    def _ended(self, jobs: Sequence[Job], outcome: EndedAs) -> Ran:
        known = self.attempt.outcome is not None and outcome != "lost"
        self.attempt.report_ended(self._middleware, outcome, jobs if known else ())
        return Ran(jobs[0], outcome, self._error)


def _create_attempt(queue: AnyQueue, claim: Claim | SessionClaim, capabilities: Sequence[str]) -> RunningAttempt:
    if isinstance(claim, Claim):
        return RunningAttempt(claim, queue.tasks.get(claim.job.kind), time.monotonic())
    turn = Turn(claim, queue.tasks, time.monotonic())
    offer_checkpoints(turn, queue._state, capabilities)
    return turn


async def _run_async_handler(attempt: RunningAttempt) -> None:
    async def run() -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  # this code runs in a task
        await run_async(attempt, task)

    # Its own task, as in a worker: a handler may cancel the task that it runs in.
    await asyncio.create_task(run())
