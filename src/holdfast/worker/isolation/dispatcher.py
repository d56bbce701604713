"""Chooses where each attempt runs: in the worker's process, in its own process, or alone in the worker's process.

A suspect job, whose last attempt expired or died, may kill its worker. It runs in its own process even if its task
does not require it. If another process cannot find its task, the suspect waits until no handler runs in this process,
and no other handler starts before it has ended: if it kills the process, it affects no other job.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress

from holdfast.domain import errors
from holdfast.tasks import definition
from holdfast.worker.attempt import RunningAttempt
from holdfast.worker.events import EventQueue
from holdfast.worker.executors import ExecutorQueue
from holdfast.worker.isolation import channel, executors, log_records, os_limits, process_pool, task_locator
from holdfast.worker.settings import IsolationSettings, WorkerSettings

log = logging.getLogger("holdfast.worker")


def check_isolatable(settings: IsolationSettings, tasks: Iterable[definition.TaskDefinition]) -> None:
    """Raise `Misconfigured` if a task that must run isolated cannot."""
    isolated = [task for task in tasks if settings.isolates(task)]
    for task in isolated:
        task_locator.locate(task)
    limited = [settings.memory_limit_bytes, *(task.policy.memory_limit_bytes for task in isolated)]
    if not os_limits.supports_memory_limit and any(limited):
        raise errors.Misconfigured("memory_limit: is supported on Linux only")


class Dispatcher:
    """Chooses which attempts run isolated; runs in the worker's event loop.

    A worker creates it when the first attempt has to be isolated, while *running* others run in its process.
    """

    def __init__(
        self, settings: WorkerSettings, executor_queue: ExecutorQueue, events: EventQueue, *, running: int
    ) -> None:
        self._isolation = settings.isolation
        self._tasks = settings.tasks_served
        options = settings.subscription.options
        about = {"worker": options.get("worker", ""), "incarnation": options.get("incarnation", "")}
        self._worker_info: channel.Message = {"store": settings.store.address(), **about}
        self._pool = process_pool.Pool(self._setup, self._isolation.recycle_after)
        self.processes = executors.ProcessExecutor(executor_queue, events, self._pool, self._isolation)
        """The executor of isolated attempts."""
        self._running_here = running
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
        """Start the fork server; raise `Misconfigured` if it cannot find a task that runs isolated."""
        await asyncio.to_thread(self._pool.start)

    def admit(self, attempts: Sequence[RunningAttempt]) -> list[RunningAttempt]:
        """Choose where attempts run; return all but the suspects that must wait to run alone."""
        admitted = []
        for attempt in attempts:
            if self._isolation.isolates(attempt.task) or (attempt.suspect and self._is_locatable(attempt)):
                attempt.isolated = True
            elif attempt.suspect:
                continue
            else:
                self._running_here += 1
            admitted.append(attempt)
        return admitted

    def slot_freed(self, attempt: RunningAttempt) -> None:
        """Record that an attempt has left its slot."""
        if not attempt.isolated:
            self._running_here -= 1
            if attempt is self._alone:
                self._alone = None

    def next_alone(self) -> list[RunningAttempt]:
        """Return the suspect that can run now, because nothing else runs in this process; else an empty list."""
        if not self._waiting_suspects or self._alone is not None or self._running_here:
            return []
        self._alone = self._waiting_suspects.popleft()
        self._running_here += 1
        return [self._alone]

    def close(self) -> None:
        """Kill the isolated processes."""
        self.processes.close()

    # --- suspects --------------------------------------------------------------------------------------------------

    def _is_locatable(self, suspect: RunningAttempt) -> bool:
        """Return whether another process can find the task of a suspect; if not, queue the suspect to run alone."""
        job_id = suspect.claim.job.id
        try:
            self._locate(suspect.task)
        except errors.Misconfigured as error:
            self._wait_alone(suspect, str(error))
            return False
        log.info("job %s is suspect, because its last attempt expired or died: it runs isolated", job_id)
        return True

    def _wait_alone(self, attempt: RunningAttempt, problem: str) -> None:
        log.warning(
            "job %s is suspect, because its last attempt expired or died, and cannot be isolated: it runs alone (%s)",
            attempt.claim.job.id,
            problem,
        )
        self._waiting_suspects.append(attempt)

    def task_not_found(self, attempt: RunningAttempt, problem: str) -> None:
        """Queue a suspect whose task an isolated process did not find to run alone."""
        # Reset the attempt: it has not started.
        attempt.started_at, attempt.isolated, attempt.slot_freed = None, False, False
        self._wait_alone(attempt, problem)

    def _locate(self, task: definition.TaskDefinition) -> channel.Message:
        """Return where another process finds the task; raise `Misconfigured` if it cannot or must not import it."""
        if _is_main(task) and not any(_is_main(other) for other in self._tasks() if self._isolation.isolates(other)):
            # A program that does not use isolation may have side effects when it is imported again.
            raise errors.Misconfigured(
                f"task {task.kind!r} is declared in the main module, which is imported again only for tasks"
                " with isolate='process'"
            )
        return task_locator.locate(task)

    # --- setup of other processes -----------------------------------------------------------------------------------

    def _setup(self) -> channel.Message:
        tasks = self._tasks()
        locations = {}
        for task in [task for task in tasks if self._isolation.isolates(task)] or tasks:
            with suppress(errors.Misconfigured):
                locations[task.kind] = self._locate(task)
        return {
            **self._worker_info,
            **task_locator.import_environment(),
            "locations": locations,
            "levels": log_records.levels(),
        }


def _is_main(task: definition.TaskDefinition) -> bool:
    return "__main__" in {task.declared_in, task.function.__module__}
