"""Where each attempt runs: in the worker's process, in one of its own, or in the worker's while nothing else does.

A suspect, whose last attempt expired or died, may kill its worker. It runs in a process of its own even if its task
does not ask for it. Where its task cannot be found in another process it waits until no handler runs in this one, and
none starts before it has ended: if it is the poisonous one, it takes nobody with it.
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
from holdfast.worker.executors import Executors, Told
from holdfast.worker.isolation import exit_outcomes, log_records, os_limits, task_locator
from holdfast.worker.isolation.channel import Message
from holdfast.worker.isolation.executors import ProcessExecutor
from holdfast.worker.isolation.process_pool import Pool

log = logging.getLogger("holdfast.worker")


class IsolationSettings(NamedTuple):
    """What a worker says of isolation."""

    isolate_all: bool
    memory_limit_bytes: int | None
    recycle_after: int
    kill_after_seconds: float

    def isolates(self, task: AnyTask) -> bool:
        """Whether every attempt of *task* runs in a process of its own; turns of sessions need the worker's store."""
        asked = self.isolate_all or task.policy.isolate is not None
        return asked and not isinstance(task, BaseSessionTask)


def refuse_unfit(terms: IsolationSettings, tasks: Iterable[AnyTask]) -> None:
    """Raise `Misconfigured` for a task that is to be isolated and cannot be."""
    isolated = [task for task in tasks if terms.isolates(task)]
    for task in isolated:
        task_locator.place_of(task)
    limited = [terms.memory_limit_bytes, *(task.policy.memory_limit_bytes for task in isolated)]
    if not os_limits.limits_memory and any(limited):
        raise Misconfigured("memory_limit: this system holds no process to one; it works on Linux only")


class Places:
    """Hands attempts to slots; lives in the worker's event loop."""

    def __init__(
        self,
        terms: IsolationSettings,
        tasks: Callable[[], list[AnyTask]],
        *,
        told: Told,
        enter: Callable[[Sequence[RunningAttempt]], None],
        blocking: Executors,
        awaited: Executors,
        store: Store,
        words: ClaimOptions,
    ) -> None:
        self._terms = terms
        self._tasks = tasks
        self._told = told
        self._enter = enter
        self._blocking, self._awaited = blocking, awaited
        about = {"worker": words.get("worker", ""), "incarnation": words.get("incarnation", "")}
        self._about: Message = {"store": store.address(), **about}
        self._loop = asyncio.get_running_loop()
        self._pool = Pool(self._setup, terms.recycle_after)
        self.processes = ProcessExecutor(
            told,
            self._pool,
            kill_after_seconds=terms.kill_after_seconds,
            memory_limit_bytes=terms.memory_limit_bytes,
            unfound=self._unfound,
        )
        self._inside = 0
        """Attempts in this process, running or about to."""
        self._suspects: deque[RunningAttempt] = deque()
        """Those that wait to be alone in it."""
        self._alone: RunningAttempt | None = None

    @property
    def closed(self) -> bool:
        """Whether nothing new is to be claimed, because a suspect is to be alone."""
        return self._alone is not None or bool(self._suspects)

    # --- running ---------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Be ready for tasks that are to be isolated, or raise `Misconfigured` if they cannot be."""
        if any(map(self._terms.isolates, self._tasks())):
            await asyncio.to_thread(self._pool.start)

    def admit(self, attempts: Sequence[RunningAttempt]) -> list[RunningAttempt]:
        """Decide where attempts run; return those whose turn has come, without suspects that are to be alone."""
        admitted = []
        for attempt in attempts:
            if self._terms.isolates(attempt.task) or (attempt.suspect and self._can_be_found(attempt)):
                attempt.isolated = True
            elif attempt.suspect:
                continue
            else:
                self._inside += 1
            admitted.append(attempt)
        return admitted

    def slots_of(self, attempt: RunningAttempt) -> Executors:
        """Return where the attempt runs; from any thread."""
        if attempt.isolated:
            return self.processes
        return self._awaited if attempt.task.is_async else self._blocking

    def ended(self, attempt: RunningAttempt) -> None:
        """Note that an attempt is in no slot any more."""
        if attempt.isolated:
            return
        self._inside -= 1
        if self.closed:
            if attempt is self._alone:
                self._alone = None
            self._start_alone()

    def close(self) -> None:
        """Kill the handlers that run in processes of their own."""
        self.processes.close()

    # --- suspects --------------------------------------------------------------------------------------------------

    def _can_be_found(self, suspect: RunningAttempt) -> bool:
        """Tell whether another process may find the task of a suspect; if not, let it wait until it is alone."""
        job_id = suspect.claim.job.id
        try:
            self._place(suspect.task)
        except Misconfigured as error:
            self._wait_alone(suspect, str(error))
            return False
        log.info("job %s is suspect, because its last attempt expired or died: it runs isolated", job_id)
        return True

    def _unfound(self, problem: str, attempt: RunningAttempt) -> None:
        """Let an attempt whose task is not found elsewhere run alone, or fail if that is no help; from any thread."""
        if self._terms.isolates(attempt.task):
            attempt.decide(exit_outcomes.not_started(problem, attempt.task.policy, attempt.context))
            self._told(attempt)
            return
        with suppress(RuntimeError):  # the loop is closed: nobody is left to run it
            self._loop.call_soon_threadsafe(self._wait_alone, attempt, problem)

    def _wait_alone(self, attempt: RunningAttempt, problem: str) -> None:
        log.warning(
            "job %s is suspect, because its last attempt expired or died, and cannot be isolated: it runs alone (%s)",
            attempt.claim.job.id,
            problem,
        )
        # As if no slot had ever had it.
        attempt.started_at, attempt.isolated, attempt.slot_freed = None, False, False
        self._suspects.append(attempt)
        # Not before those that were claimed with it are known.
        self._loop.call_soon(self._start_alone)

    def _start_alone(self) -> None:
        if self._suspects and self._alone is None and not self._inside:
            self._alone = self._suspects.popleft()
            self._inside += 1
            self._enter([self._alone])

    def _place(self, task: AnyTask) -> Message:
        """Return where another process finds the task, or raise `Misconfigured` if it cannot, or must not look."""
        if _is_main(task) and not any(_is_main(other) for other in self._tasks() if self._terms.isolates(other)):
            # A program that knows nothing of isolation may do anything when it is imported again.
            raise Misconfigured(
                f"task {task.kind!r} is declared in the program's own file, which is imported again only for tasks"
                " with isolate='process'"
            )
        return task_locator.place_of(task)

    # --- what other processes need to know --------------------------------------------------------------------------

    def _setup(self) -> Message:
        tasks = self._tasks()
        places = {}
        for task in [task for task in tasks if self._terms.isolates(task)] or tasks:
            with suppress(Misconfigured):
                places[task.kind] = self._place(task)
        return {**self._about, **task_locator.surroundings(), "places": places, "levels": log_records.levels()}


def _is_main(task: AnyTask) -> bool:
    return "__main__" in {task.declared_in, task.function.__module__}
