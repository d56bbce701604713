"""Runs one attempt in the test itself with the worker's code: claimed, run, decided and settled as in a worker.

There are no slots, lease renewals or timeouts.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from holdfast.client import queue_state
from holdfast.client.async_api.enqueued import AsyncEnqueued
from holdfast.client.async_api.queue import AsyncQueue
from holdfast.client.async_api.worker_calls import AsyncWorkerCalls
from holdfast.client.middleware import EndedAs
from holdfast.client.sync_api.enqueued import Enqueued
from holdfast.client.sync_api.queue import Queue
from holdfast.client.sync_api.worker_calls import WorkerCalls
from holdfast.domain import errors, failures
from holdfast.domain.claims import Claim, ClaimOptions
from holdfast.domain.job import Job
from holdfast.domain.new_job import NewJob
from holdfast.domain.session_claims import SessionClaim
from holdfast.tasks.control_flow import Cancelled, OutcomeRequest
from holdfast.testing.clock import ManualClock
from holdfast.worker import executors, transactions
from holdfast.worker.attempt import RunningAttempt, emitted, fail_refused, failure_from_refusal, outcome_name
from holdfast.worker.session_turn import Turn, offer_checkpoints
from holdfast.worker.subscription import Subscription
from holdfast.worker.worker import Worker

AnyQueue: TypeAlias = Queue | AsyncQueue
"""A sync or an async queue."""


@contextmanager
def redirected(queue: AnyQueue, to: AnyQueue) -> Iterator[None]:
    """Make *queue*, its tasks and its workers use the store of *to* during the block; its middleware stays."""
    original, other = queue_state.state_of(queue), queue_state.state_of(to)
    queue_state.use_state(queue, replace(original, store=other.store, claimer=other.claimer))
    try:
        yield
    finally:
        queue_state.use_state(queue, original)


JobReference: TypeAlias = NewJob | Enqueued[Any] | AsyncEnqueued[Any] | Job | str
"""A job to enqueue, an enqueued job, or the id of one."""


@dataclass(frozen=True, slots=True)
class Drained:
    """The attempts that a drain has run, in order."""

    ran: tuple[Ran, ...]
    """The attempts; the object itself can be iterated too."""

    @property
    def counts(self) -> dict[str, int]:
        """The number of attempts by outcome."""
        return dict(Counter(ran.outcome for ran in self.ran))

    @property
    def jobs(self) -> tuple[Job, ...]:
        """The job of each attempt, as it was after the attempt."""
        return tuple(ran.job for ran in self.ran)

    def __len__(self) -> int:
        return len(self.ran)

    def __iter__(self) -> Iterator[Ran]:
        return iter(self.ran)


def subscription_of(queue: AnyQueue, options: ClaimOptions) -> Subscription:
    """Return the subscription of a worker with these options."""
    worker = Worker(queue, **options)
    claim_options: ClaimOptions = {**options, "worker": worker.name, "incarnation": worker.incarnation}
    return Subscription(queue_state.state_of(queue).tasks, claim_options)


def job_or_raise(ran: Ran, *, raises: bool) -> Job:
    """Return the job of an attempt; with *raises*, raise its error."""
    if raises:
        raise_defect(ran)
    return ran.job


def unclaimable_reason(job: Job, clock: ManualClock | None) -> str:
    """Return why a job that was to be run cannot be claimed."""
    if job.finished:
        return f"it is already {job.state}"
    if job.state == "scheduled" and clock is None:
        return f"it is due at {job.due_at}; pass clock= to advance the time"
    return f"it is {job.state} in the lane {job.lane!r}; is the lane paused, or the job held by another worker?"


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


def raise_defect(ran: Ran) -> None:
    """Raise the error of the attempt, unless the handler chose its outcome with it."""
    error, job = ran.error, ran.job
    description = f"attempt {job.attempt} of job {job.id} ({job.kind})"
    if error is not None and not isinstance(error, OutcomeRequest | Cancelled | asyncio.CancelledError):
        error.add_note(f"{description}; pass raises=False to settle it and continue")
        raise error
    failure = job.failure
    if ran.outcome == "failed" and failure is not None and failure.reason in _DEFECTS:
        raise AssertionError(f"{description} failed with {failure.reason}: {failure.message}")


class InlineAttempt:
    """An attempt that runs in the test itself."""

    def __init__(self, queue: AnyQueue, claim: Claim | SessionClaim, capabilities: Sequence[str] = ()) -> None:
        self.attempt = _create_attempt(queue, claim, capabilities)
        self._error: BaseException | None = None
        state = queue_state.state_of(queue)
        if self.attempt.task.takes_context:
            transactions.offer_transaction(self.attempt, state)
        self._middleware = state.middleware
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
            executors.run_blocking(self.attempt)
            return
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            asyncio.run(_run_async_handler(self.attempt))
        else:
            raise errors.Misconfigured(
                "an event loop is running in this thread; use await drain_async or run_job_async"
            )

    async def run_async(self) -> None:
        """Run the handler: an async handler in this event loop, a sync handler in a thread, as a worker does."""
        if self.attempt.task.is_async:
            await _run_async_handler(self.attempt)
        else:
            await asyncio.to_thread(executors.run_blocking, self.attempt)

    def settle(self, queue: Queue) -> Ran:
        """Settle the outcome of the handler and report it to middleware."""
        attempt, job_id = self.attempt, self.attempt.claim.job.id
        if attempt.outcome is None:
            return self._ended([queue.get(job_id)], "done" if attempt.settled else "lost")
        WorkerCalls(queue_state.state_of(queue).store).flush_output(emitted([attempt]))
        fail_refused([attempt])
        outcome = attempt.outcome
        try:
            jobs = attempt.settle(queue, outcome)
        except errors.LeaseLost:
            return self._ended([queue.get(job_id)], "lost")
        except errors.HoldfastError as refusal:
            self._error, outcome = refusal, failure_from_refusal(refusal)
            jobs = attempt.settle(queue, outcome)
        return self._ended(jobs, outcome_name(outcome))

    async def settle_async(self, queue: AsyncQueue) -> Ran:
        """Do the same in a running event loop."""
        attempt, job_id = self.attempt, self.attempt.claim.job.id
        if attempt.outcome is None:
            return self._ended([await queue.get(job_id)], "done" if attempt.settled else "lost")
        await AsyncWorkerCalls(queue_state.state_of(queue).store).flush_output(emitted([attempt]))
        fail_refused([attempt])
        outcome = attempt.outcome
        try:
            jobs = await attempt.settle_async(queue, outcome)
        except errors.LeaseLost:
            return self._ended([await queue.get(job_id)], "lost")
        except errors.HoldfastError as refusal:
            self._error, outcome = refusal, failure_from_refusal(refusal)
            jobs = await attempt.settle_async(queue, outcome)
        return self._ended(jobs, outcome_name(outcome))

    def _ended(self, jobs: Sequence[Job], outcome: EndedAs) -> Ran:
        known = self.attempt.outcome is not None and outcome != "lost"
        self.attempt.report_ended(self._middleware, outcome, jobs if known else ())
        return Ran(jobs[0], outcome, self._error)


def _create_attempt(queue: AnyQueue, claim: Claim | SessionClaim, capabilities: Sequence[str]) -> RunningAttempt:
    state = queue_state.state_of(queue)
    if isinstance(claim, Claim):
        return RunningAttempt(claim, state.tasks.get(claim.job.kind), time.monotonic())
    turn = Turn(claim, state.tasks, time.monotonic())
    offer_checkpoints(turn, state, capabilities)
    return turn


async def _run_async_handler(attempt: RunningAttempt) -> None:
    async def run() -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  # this code runs in a task
        await executors.run_async(attempt, task)

    # Its own task, as in a worker: a handler may cancel the task that it runs in.
    await asyncio.create_task(run())
