"""The executor of isolated handlers: a thread per slot sends an attempt to a process and receives its outcome."""

from __future__ import annotations

import logging
import os
import signal
import threading
from contextlib import suppress
from dataclasses import replace

from holdfast.domain import errors, failures, job, outcomes
from holdfast.tasks import control_flow, handler_state
from holdfast.tasks.outcomes import outcome_of
from holdfast.tasks.policy import Policy
from holdfast.worker import executors, timers
from holdfast.worker.attempt import RunningAttempt
from holdfast.worker.events import EventQueue, TaskNotFound
from holdfast.worker.isolation import codec, log_records, process_pool, task_locator
from holdfast.worker.isolation.channel import InvalidMessage, Message
from holdfast.worker.settings import IsolationSettings

log = logging.getLogger("holdfast.worker")

# How many processes to try: a process that dies before it reads the request does not count against the attempt.
_TRIES = 3


class ProcessExecutor(executors.ThreadExecutor):
    """Runs handlers in isolated processes, one thread per slot."""

    _NAME = "holdfast-isolated"

    def __init__(
        self,
        executor_queue: executors.ExecutorQueue,
        events: EventQueue,
        pool: process_pool.Pool,
        settings: IsolationSettings,
    ) -> None:
        super().__init__(executor_queue, events)
        self._pool = pool
        self._settings = settings
        self._locations: dict[str, Message] = {}

    def _handle(self, attempt: RunningAttempt) -> TaskNotFound | None:
        problem = self._run_safely(attempt)
        if problem is None:
            return None
        if not self._settings.isolates(attempt.task):
            return TaskNotFound(attempt, problem)
        attempt.decide(not_started(problem, attempt.task.policy, attempt.handler_state))
        return None

    def _run_safely(self, attempt: RunningAttempt) -> str | None:
        try:
            return self._run(attempt)
        except Exception as error:  # such as too many open files: the slot must continue
            log.exception("an isolated handler could not be run")
            self._fail_to_start(attempt, f"no process could be used: {error}")
            return None

    def close(self) -> None:
        """Kill the processes and make the threads exit."""
        self._pool.close()
        super().close()

    # --- one attempt -----------------------------------------------------------------------------------------------

    def _run(self, attempt: RunningAttempt) -> str | None:
        """Run an attempt in a process and decide it; return the reason if its task was not found there."""
        for _ in range(_TRIES):
            try:
                child = self._pool.acquire()
            except process_pool.ProcessUnavailable as error:
                self._fail_to_start(attempt, str(error))
                return None
            run = _ProcessRun(attempt, child, self._settings.kill_after_seconds)
            try:
                if self._begin(run) and run.receive():
                    continue
            finally:
                run.finish()
                attempt.ended_at = attempt.timer.monotonic()
            return self._return_process(run)
        self._fail_to_start(attempt, "its processes died before the handler started")
        return None

    def _begin(self, run: _ProcessRun) -> bool:
        """Send the request to the process; return whether the attempt was started."""
        attempt = run.attempt
        attempt.cancel_handler = run.stop
        if not attempt.start():
            return False
        run.send(self._request(attempt))
        if attempt.stopped is not None:
            # The stop was requested before the process could receive it.
            run.stop()
        return True

    def _request(self, attempt: RunningAttempt) -> Message:
        kind = attempt.task.kind
        location = self._locations.get(kind)
        if location is None:
            location = self._locations[kind] = task_locator.locate(attempt.task)
        limit = attempt.task.policy.memory_limit_bytes or self._settings.memory_limit_bytes
        return {"kind": kind, "location": location, "memory_limit": limit, **codec.encode_claim(attempt.claim)}

    def _return_process(self, run: _ProcessRun) -> str | None:
        """Return the process to the pool or close it; return the reason if its task was not found."""
        if run.lost:
            run.child.close()
        else:
            self._pool.release(run.child, run.memory_bytes, discard=run.discard)
        return run.task_not_found

    def _fail_to_start(self, attempt: RunningAttempt, problem: str) -> None:
        if attempt.start():
            attempt.decide(not_started(problem, attempt.task.policy, attempt.handler_state))


class _ProcessRun:
    """One attempt in one process, from the request to the last message."""

    def __init__(self, attempt: RunningAttempt, child: process_pool.Child, kill_after_seconds: float) -> None:
        self.attempt = attempt
        self.child = child
        self.lost = False
        """Whether the process is dead or can no longer be trusted."""
        self.discard = False
        self.memory_bytes = 0
        self.task_not_found: str | None = None
        self._kill_after_seconds = kill_after_seconds
        self._lock = threading.Lock()
        self._sent = False
        self._finished = False
        self._kill_timer: timers.Scheduled | None = None

    def send(self, request: Message) -> None:
        """Send the request to the process, unless it is dead."""
        with suppress(OSError):
            self.child.channel.send(request)
            self._sent = True

    # --- stopping --------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Request the handler to stop, and kill its process if it does not. Safe to call from any thread."""
        message = {"stop": self.attempt.stopped, "key": list(self.attempt.key)}
        with self._lock:
            if self._finished:
                return
            if self._kill_timer is None:
                self._kill_timer = self.attempt.timer.call_later(self._kill_after_seconds, self._kill)
        with suppress(OSError):
            self.child.channel.send(message)

    def _kill(self) -> None:
        with self._lock:
            # The process may already run another attempt.
            if not self._finished:
                self.child.kill()

    def finish(self) -> None:
        """Ignore later requests to stop, and cancel the kill timer."""
        with self._lock:
            self._finished = True
            self.attempt.cancel_handler = None
            if self._kill_timer is not None:
                self._kill_timer.cancel()

    # --- messages --------------------------------------------------------------------------------------------------

    def receive(self) -> bool:
        """Receive messages until the attempt is decided; return whether the process died before it started it."""
        if not self._sent:
            self.child.close()
            return True
        try:
            while (received := self.child.channel.receive()) is not None:
                if self._handle_message(*received):
                    return False
        except ConnectionResetError:
            # It died with messages unread. If only the request was sent, the attempt has not started.
            if self.attempt.stopped is None and not self.child.killed:
                self.child.close()
                return True
        except (InvalidMessage, OSError, ValueError, KeyError, TypeError, errors.HoldfastError) as error:
            # The process can no longer be trusted.
            self.child.kill()
            self.lost = True
            self.attempt.decide(invalid_message(error, self.attempt.task.policy, self.attempt.handler_state))
            return False
        self.lost = True
        self.attempt.decide(self._exit_outcome())
        return False

    def _handle_message(self, message: Message, blobs: list[bytes]) -> bool:
        """Handle a message; return whether it was the last."""
        if "note" in message:
            if message["key"] == list(self.attempt.key):
                self.attempt.handler_state.note_progress(*message["note"])
        elif "output" in message:
            if message["key"] == list(self.attempt.key):
                self._emit(message["output"])
        elif "flush" in message:
            self._flush()
        elif "record" in message:
            log_records.handle(message)
        elif "not_found" in message:
            self.task_not_found = message["not_found"]
            return True
        else:
            self._conclude(message, blobs)
            return True
        return False

    def _emit(self, texts: list[str]) -> None:
        # If the attempt has ended, or the store has refused its output, there is no handler to tell here.
        with suppress(errors.LeaseLost, errors.InvalidInput):
            for text in texts:
                self.attempt.handler_state.emit(text)

    def _flush(self) -> None:
        """Write the text that the handler has emitted, and tell its process how many parts are stored."""
        reply: Message = {"flushed": None, "key": list(self.attempt.key)}
        try:
            if self.attempt.flush_output is not None:
                self.attempt.flush_output()
            reply["flushed"] = 0 if self.attempt.output is None else self.attempt.output.written
        except errors.HoldfastError as error:
            reply["why"] = str(error)
        with suppress(OSError):
            self.child.channel.send(reply)

    def _conclude(self, message: Message, blobs: list[bytes]) -> None:
        outcome: outcomes.Outcome | None = None
        if message["ended"] == "outcome":
            outcome = codec.decode_outcome(message, blobs)
        elif message["ended"] == "settled":
            self.attempt.settled = True
        self.memory_bytes = message["memory"]
        self.discard = bool(message.get("discard"))
        self.attempt.decide(outcome)

    def _exit_outcome(self) -> outcomes.Outcome:
        policy, state = self.attempt.task.policy, self.attempt.handler_state
        if self.child.killed and self.attempt.stopped is not None:
            return outcome_of(control_flow.Cancelled(self.attempt.stopped), policy, state)
        return replace(process_died(self.child.status(), policy, state), traceback=self.child.faults())


def process_died(status: int | None, policy: Policy, state: handler_state.HandlerState) -> outcomes.Failed:
    """Return the failure of an attempt whose process died with the wait status *status*, or None if unknown."""
    # The job may or may not die again; max_attempts limits its retries.
    return _failed(describe_exit(status), failures.PROCESS_DIED, policy, state)


def invalid_message(error: Exception, policy: Policy, state: handler_state.HandlerState) -> outcomes.Failed:
    """Return the failure of an attempt whose process sent an invalid message, such as after memory corruption."""
    message = f"its process sent an invalid message and was killed: {error}"
    return _failed(message, failures.PROCESS_DIED, policy, state)


def not_started(problem: str, policy: Policy, state: handler_state.HandlerState) -> outcomes.Failed:
    """Return the failure of an attempt for which no process could be started."""
    return _failed(problem, failures.ISOLATION_FAILED, policy, state)


def _failed(message: str, reason: str, policy: Policy, state: handler_state.HandlerState) -> outcomes.Failed:
    backoff = policy.backoff if job.row_of(state.job).backoff_json is None else None
    return outcomes.Failed(message, reason=reason, backoff=backoff)


def describe_exit(status: int | None) -> str:
    """Return a description of how a process died."""
    if status is None:
        return "its process died, and its exit status is unknown"
    if os.WIFSIGNALED(status):
        return f"its process was killed by {_describe_signal(os.WTERMSIG(status))}"
    return f"its process ended with exit code {os.waitstatus_to_exitcode(status)} before the handler had returned"


def _describe_signal(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        # Real-time signals have no names.
        return f"signal {number}"
    hint = ": by a user or program, or by the kernel (out of memory)" if number == signal.SIGKILL else ""
    return f"signal {number} ({name}){hint}"
