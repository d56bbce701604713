"""Chooses where each attempt runs: in the worker's process, in its own process, or alone in the worker's process.

A suspect job, whose last attempt expired or died, may kill its worker. It runs in its own process even if its task
does not require it. If another process cannot find its task, the suspect waits until no handler runs in this process,
and no other handler starts before it has ended: if it kills the process, it affects no other job.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from holdfast.domain.claims import ClaimOptions
from holdfast.domain.errors import Misconfigured
from holdfast.storage.store import Store
from holdfast.tasks.session_tasks import BaseSessionTask
from holdfast.tasks.task import AnyTask
from holdfast.worker.attempt import RunningAttempt
from holdfast.worker.executors import EndedCallback, Executor
from holdfast.worker.isolation import exit_outcomes, log_records, os_limits, task_locator
from holdfast.worker.isolation.channel import Message
from holdfast.worker.isolation.executors import ProcessExecutor
from holdfast.worker.isolation.process_pool import Pool

log = logging.getLogger("holdfast.worker")


class IsolationSettings(NamedTuple):
    """The worker's options for isolation."""

    isolate_all: bool
    memory_limit_bytes: int | None
    recycle_after: int
    kill_after_seconds: float

    def isolates(self, task: AnyTask) -> bool:
        """Return whether *task* always runs isolated; session tasks never do, as they need the worker's store."""
        isolated = self.isolate_all or task.policy.isolate is not None
        return isolated and not isinstance(task, BaseSessionTask)


def check_isolatable(settings: IsolationSettings, tasks: Iterable[AnyTask]) -> None:
    """Raise `Misconfigured` if a task that must run isolated cannot."""
    isolated = [task for task in tasks if settings.isolates(task)]
    for task in isolated:
        task_locator.locate(task)
    limited = [settings.memory_limit_bytes, *(task.policy.memory_limit_bytes for task in isolated)]
    if not os_limits.supports_memory_limit and any(limited):
        raise Misconfigured("memory_limit: is supported on Linux only")


class Dispatcher:
    """Assigns attempts to executors; runs in the worker's event loop."""

    def __init__(
        self,
        settings: IsolationSettings,
        tasks: Callable[[], list[AnyTask]],
        *,
        on_ended: EndedCallback,
        submit: Callable[[Sequence[RunningAttempt]], None],
        sync_executor: Executor,
        async_executor: Executor,
        store: Store,
        options: ClaimOptions,
    ) -> None:
        self._settings = settings
        self._tasks = tasks
        self._on_ended = on_ended
        self._submit = submit
        self._sync_executor, self._async_executor = sync_executor, async_executor
        about = {"worker": options.get("worker", ""), "incarnation": options.get("incarnation", "")}
        self._worker_info: Message = {"store": store.address(), **about}
        self._loop = asyncio.get_running_loop()
        self._pool = Pool(self._setup, settings.recycle_after)
        self.processes = ProcessExecutor(
            on_ended,
            self._pool,
            kill_after_seconds=settings.kill_after_seconds,
            memory_limit_bytes=settings.memory_limit_bytes,
            task_not_found=self._task_not_found,
        )
        self._running_here = 0
        """The number of attempts that run, or are queued to run, in this process."""
        self._waiting_suspects: deque[RunningAttempt] = deque()
        """Attempts that wait to run alone in this process."""
        self._alone: RunningAttempt | None = None

    @property
    def paused(self) -> bool:
        """Whether to claim nothing, because a suspect runs or waits to run alone."""
        return self._alone is not None or bool(self._waiting_suspects)

    # --- running ---------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the fork server if a task runs isolated; raise `Misconfigured` if it cannot find the task."""
        if any(map(self._settings.isolates, self._tasks())):
            await asyncio.to_thread(self._pool.start)

    def admit(self, attempts: Sequence[RunningAttempt]) -> list[RunningAttempt]:
        """Choose where attempts run; return all but the suspects that must wait to run alone."""
        admitted = []
        for attempt in attempts:
            if self._settings.isolates(attempt.task) or (attempt.suspect and self._is_locatable(attempt)):
                attempt.isolated = True
            elif attempt.suspect:
                continue
            else:
                self._running_here += 1
            admitted.append(attempt)
        return admitted

    def executor_for(self, attempt: RunningAttempt) -> Executor:
        """Return the executor of *attempt*. Safe to call from any thread."""
        if attempt.isolated:
            return self.processes
        return self._async_executor if attempt.task.is_async else self._sync_executor

    def slot_freed(self, attempt: RunningAttempt) -> None:
        """Record that an attempt has left its slot."""
        if attempt.isolated:
            return
        self._running_here -= 1
        if self.paused:
            if attempt is self._alone:
                self._alone = None
            self._start_alone()

    def close(self) -> None:
        """Kill the isolated processes."""
        self.processes.close()

    # --- suspects --------------------------------------------------------------------------------------------------

    def _is_locatable(self, suspect: RunningAttempt) -> bool:
        """Return whether another process can find the task of a suspect; if not, queue the suspect to run alone."""
        job_id = suspect.claim.job.id
        try:
            self._locate(suspect.task)
        except Misconfigured as error:
            self._wait_alone(suspect, str(error))
            return False
        log.info("job %s is suspect, because its last attempt expired or died: it runs isolated", job_id)
        return True

    def _task_not_found(self, problem: str, attempt: RunningAttempt) -> None:
        """Queue an attempt whose task another process did not find to run alone.

        Fail it instead if it must be isolated. Safe to call from any thread.
        """
        if self._settings.isolates(attempt.task):
            attempt.decide(exit_outcomes.not_started(problem, attempt.task.policy, attempt.context))
            self._on_ended(attempt)
            return
        with suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(self._wait_alone, attempt, problem)

    def _wait_alone(self, attempt: RunningAttempt, problem: str) -> None:
        log.warning(
            "job %s is suspect, because its last attempt expired or died, and cannot be isolated: it runs alone (%s)",
            attempt.claim.job.id,
            problem,
        )
        # Reset the attempt: it has not started.
        attempt.started_at, attempt.isolated, attempt.slot_freed = None, False, False
        self._waiting_suspects.append(attempt)
        # Wait until the attempts that were claimed in the same call are admitted.
        self._loop.call_soon(self._start_alone)

    def _start_alone(self) -> None:
        if self._waiting_suspects and self._alone is None and not self._running_here:
            self._alone = self._waiting_suspects.popleft()
            self._running_here += 1
            self._submit([self._alone])

    def _locate(self, task: AnyTask) -> Message:
        """Return where another process finds the task; raise `Misconfigured` if it cannot or must not import it."""
        if _is_main(task) and not any(_is_main(other) for other in self._tasks() if self._settings.isolates(other)):
            # A program that does not use isolation may have side effects when it is imported again.
            raise Misconfigured(
                f"task {task.kind!r} is declared in the main module, which is imported again only for tasks"
                " with isolate='process'"
            )
        return task_locator.locate(task)

    # --- setup of other processes -----------------------------------------------------------------------------------

    def _setup(self) -> Message:
        tasks = self._tasks()
        locations = {}
        for task in [task for task in tasks if self._settings.isolates(task)] or tasks:
            with suppress(Misconfigured):
                locations[task.kind] = self._locate(task)
        return {
            **self._worker_info,
            **task_locator.import_environment(),
            "locations": locations,
            "levels": log_records.levels(),
        }


def _is_main(task: AnyTask) -> bool:
    return "__main__" in {task.declared_in, task.function.__module__}
