"""Executors for isolated handlers: a thread for each, which hands an attempt to a process and hears how it goes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

from holdfast.domain.errors import HoldfastError
from holdfast.domain.outcomes import Outcome
from holdfast.tasks.control_flow import Cancelled
from holdfast.tasks.outcomes import outcome_of
from holdfast.worker.attempt import RunningAttempt
from holdfast.worker.executors import ThreadExecutor, Told
from holdfast.worker.isolation import codec, exit_outcomes, log_records, task_locator
from holdfast.worker.isolation.channel import Garbled, Message
from holdfast.worker.isolation.process_pool import Child, NoProcess, Pool
from holdfast.worker.timers import Scheduled

log = logging.getLogger("holdfast.worker")

# A process that died before it had read what to do is no fault of the attempt, which is given to another.
_TRIES = 3


class ProcessExecutor(ThreadExecutor):
    """Threads for handlers in processes of their own.

    *unfound* is told why no other process finds the task of an attempt, and which.
    """

    _NAME = "holdfast-isolated"

    def __init__(
        self,
        told: Told,
        pool: Pool,
        *,
        kill_after_seconds: float,
        memory_limit_bytes: int | None,
        unfound: Callable[[str, RunningAttempt], None],
    ) -> None:
        super().__init__(told)
        self._pool = pool
        self._kill_after_seconds = kill_after_seconds
        self._memory_limit_bytes = memory_limit_bytes
        self._unfound = unfound
        self._places: dict[str, Message] = {}

    def _handle(self, attempt: RunningAttempt) -> Told:
        problem = self._run_or_give_up(attempt)
        return self._told if problem is None else partial(self._unfound, problem)

    def _run_or_give_up(self, attempt: RunningAttempt) -> str | None:
        try:
            return self._run(attempt)
        except Exception as error:  # such as no file left to open: a slot must live on
            log.exception("an isolated handler could not be run")
            self._give_up(attempt, f"no process could be used: {error}")
            return None

    def close(self) -> None:
        """Kill what still runs and let the threads end."""
        self._pool.close()
        super().close()

    # --- one attempt -----------------------------------------------------------------------------------------------

    def _run(self, attempt: RunningAttempt) -> str | None:
        """Run an attempt in a process and let what comes of it decide; return why its task was not found, if so."""
        for _ in range(_TRIES):
            try:
                child = self._pool.take()
            except NoProcess as error:
                self._give_up(attempt, str(error))
                return None
            run = _Run(attempt, child, self._kill_after_seconds)
            try:
                if self._begin(run) and run.hear():
                    continue
            finally:
                run.over()
                attempt.ended_at = attempt.timer.monotonic()
            return self._after(run)
        self._give_up(attempt, "its processes died before they had begun")
        return None

    def _begin(self, run: _Run) -> bool:
        """Tell the process what to run; tell whether there is anything to hear."""
        attempt = run.attempt
        attempt.cancel_handler = run.stop
        if not attempt.start():
            return False
        run.send(self._request(attempt))
        if attempt.stopped is not None:
            # It was told before there was anybody to pass it on to.
            run.stop()
        return True

    def _request(self, attempt: RunningAttempt) -> Message:
        kind = attempt.task.kind
        place = self._places.get(kind)
        if place is None:
            place = self._places[kind] = task_locator.place_of(attempt.task)
        limit = attempt.task.policy.memory_limit_bytes or self._memory_limit_bytes
        return {"kind": kind, "place": place, "memory_limit": limit, **codec.claim_to(attempt.claim)}

    def _after(self, run: _Run) -> str | None:
        """Keep the process or bury it; return why its task was not found, if so."""
        if run.lost:
            run.child.close()
        else:
            self._pool.give_back(run.child, run.memory_bytes, spent=run.spent)
        return run.unfound

    def _give_up(self, attempt: RunningAttempt, problem: str) -> None:
        if attempt.start():
            attempt.decide(exit_outcomes.not_started(problem, attempt.task.policy, attempt.context))


class _Run:
    """One attempt in one process, from the word to begin to the last that is heard of it."""

    def __init__(self, attempt: RunningAttempt, child: Child, kill_after_seconds: float) -> None:
        self.attempt = attempt
        self.child = child
        self.lost = False
        """Whether the process is dead, or not to be trusted any more."""
        self.spent = False
        self.memory_bytes = 0
        self.unfound: str | None = None
        self._kill_after_seconds = kill_after_seconds
        self._lock = threading.Lock()
        self._sent = False
        self._over = False
        self._killing: Scheduled | None = None

    def send(self, request: Message) -> None:
        """Tell the process what to run, unless it is dead."""
        with suppress(OSError):
            self.child.channel.send(request)
            self._sent = True

    # --- stopping it -----------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Tell the handler to stop, and kill its process if it does not; from any thread."""
        message = {"stop": self.attempt.stopped, "key": list(self.attempt.key)}
        with self._lock:
            if self._over:
                return
            if self._killing is None:
                self._killing = self.attempt.timer.call_later(self._kill_after_seconds, self._kill)
        with suppress(OSError):
            self.child.channel.send(message)

    def _kill(self) -> None:
        with self._lock:
            # By now the process may run another attempt.
            if not self._over:
                self.child.kill()

    def over(self) -> None:
        """Stop nothing any more."""
        with self._lock:
            self._over = True
            self.attempt.cancel_handler = None
            if self._killing is not None:
                self._killing.cancel()

    # --- hearing of it ---------------------------------------------------------------------------------------------

    def hear(self) -> bool:
        """Hear the process out and let what it says, or its death, decide; tell whether it never began."""
        if not self._sent:
            self.child.close()
            return True
        try:
            while (received := self.child.channel.receive()) is not None:
                if self._heed(*received):
                    return False
        except ConnectionResetError:
            # It died with something unread. If that can only be the request, the attempt has not begun.
            if self.attempt.stopped is None and not self.child.killed:
                self.child.close()
                return True
        except (Garbled, OSError, ValueError, KeyError, TypeError, HoldfastError) as error:
            # Whatever it says cannot be trusted any more.
            self.child.kill()
            self.lost = True
            self.attempt.decide(exit_outcomes.garbled(error, self.attempt.task.policy, self.attempt.context))
            return False
        self.lost = True
        self.attempt.decide(self._death())
        return False

    def _heed(self, message: Message, blobs: list[bytes]) -> bool:
        """Do as a message says; tell whether it was the last."""
        if "note" in message:
            if message["key"] == list(self.attempt.key):
                self.attempt.context.note_progress(*message["note"])
        elif "record" in message:
            log_records.handle(message)
        elif "unfound" in message:
            self.unfound = message["unfound"]
            return True
        else:
            self._conclude(message, blobs)
            return True
        return False

    def _conclude(self, message: Message, blobs: list[bytes]) -> None:
        outcome: Outcome | None = None
        if message["ended"] == "outcome":
            outcome = codec.outcome_from(message, blobs)
        elif message["ended"] == "settled":
            self.attempt.settled = True
        self.memory_bytes = message["memory"]
        self.spent = bool(message.get("spent"))
        self.attempt.decide(outcome)

    def _death(self) -> Outcome:
        policy, context = self.attempt.task.policy, self.attempt.context
        if self.child.killed and self.attempt.stopped is not None:
            return outcome_of(Cancelled(self.attempt.stopped), policy, context)
        return replace(exit_outcomes.failed_by(self.child.status(), policy, context), traceback=self.child.faults())
