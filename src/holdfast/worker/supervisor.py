"""A supervisor for several worker processes: starts them, restarts them, and ends them with itself.

The supervisor runs no jobs and opens no store, so that no handler can crash it. The standard input of each child is a
pipe from the supervisor: when the supervisor dies, the pipe closes and the child exits.
"""

import logging
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, TypeAlias

from holdfast.domain.backoff import RetryPolicy
from holdfast.worker import shutdown

log = logging.getLogger("holdfast.worker")

Output: TypeAlias = Callable[[int, str | None], None]
"""Called with a child's number and each line that the child writes; with None at the end of its output."""

# A child that ran for less time is restarted after a pause, from the second time on.
_QUICK_SECONDS = 10.0
_RESTARTS = RetryPolicy(first=0.5, last=30.0, jitter=0.0)
# How long a child may take after its grace period to release its jobs and exit.
ENDING_SECONDS = 15.0
# How long to wait for the last output of children that have exited; a process left behind may keep a pipe open.
_OUTPUT_SECONDS = 1.0
# How often to look for a signal that another thread has received, which does not wake the main thread: the system
# chooses any thread for a signal that arrived while the process was stopped.
_LOOK_SECONDS = 1.0
_REQUESTED_EXIT_CODES = frozenset({0, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP})


@dataclass
class _ProcessSlot:
    """One slot for a child process."""

    number: int
    process: subprocess.Popen[str] | None = None
    started_at: float = 0.0
    quick_exits: int = 0
    start_at: float | None = None
    """When to start the next child, by the monotonic clock; None if none is to be started."""


@dataclass(frozen=True)
class _ChildExit:
    slot: _ProcessSlot
    code: int


class WorkerProcesses:
    """Keeps *size* child processes running until a signal stops it.

    *command* returns the command line of a child by its number, from 1. A child that has not exited *grace_seconds*
    plus *ending_seconds* after the request to stop is killed. *fatal_exit_codes* are codes after which a restart
    would fail again: a child that exits with one stops all children. *output* receives the lines that the children
    write; without it they write to this process's streams.
    """

    def __init__(
        self,
        command: Callable[[int], Sequence[str]],
        size: int,
        *,
        environment: Mapping[str, str],
        grace_seconds: float,
        fatal_exit_codes: frozenset[int] = frozenset(),
        output: Output | None = None,
        ending_seconds: float = ENDING_SECONDS,
    ) -> None:
        self._command = command
        self._environment = dict(environment)
        self._grace_seconds = grace_seconds
        self._ending_seconds = ending_seconds
        self._fatal_exit_codes = fatal_exit_codes
        self._output = output
        self._slots = [_ProcessSlot(number) for number in range(1, size + 1)]
        # `SimpleQueue.put` is reentrant: signal handlers may call it.
        self._events: queue.SimpleQueue[int | _ChildExit] = queue.SimpleQueue()
        self._readers: list[threading.Thread] = []
        """The threads that read the output of children, of ended ones too."""
        self._signals = 0
        self._kill_at: float | None = None
        self._exit_code = 0

    @property
    def stopping(self) -> bool:
        """Whether the supervisor shuts down."""
        return self._signals > 0

    # --- running ---------------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Keep the children running; return 0 if all exited cleanly, 1 if not, or the fatal exit code."""
        with self._signal_handlers():
            try:
                for slot in self._slots:
                    self._start(slot)
                while not self.stopping or self._alive_processes():
                    self._handle_event(self._next_event())
            finally:
                self._kill_alive_processes()
        self._read_last_output()
        return self._exit_code

    @contextmanager
    def _signal_handlers(self) -> Iterator[None]:
        before = {
            number: signal.signal(number, lambda got, _frame: self._events.put(got))
            for number in shutdown.stop_signals()
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _next_event(self) -> int | _ChildExit | None:
        """Wait for a signal, the exit of a child, or the next due action (None)."""
        now = time.monotonic()
        due_times = [now + _LOOK_SECONDS, *(slot.start_at for slot in self._slots if slot.start_at is not None)]
        if self._kill_at is not None:
            due_times.append(self._kill_at)
        seconds = max(min(due_times) - now, 0)
        try:
            return self._events.get(timeout=seconds)
        except queue.Empty:
            return None

    def _handle_event(self, event: int | _ChildExit | None) -> None:
        match event:
            case _ChildExit():
                self._child_ended(event.slot, event.code)
            case int():
                self._stop()
            case None:
                self._run_due_actions(time.monotonic())

    def _run_due_actions(self, now: float) -> None:
        for slot in self._slots:
            if slot.start_at is not None and slot.start_at <= now:
                self._start(slot)
        if self._kill_at is not None and self._kill_at <= now:
            self._kill_at = None
            self._kill_alive_processes()

    # --- one child -------------------------------------------------------------------------------------------------

    def _start(self, slot: _ProcessSlot) -> None:
        slot.start_at = None
        slot.started_at = time.monotonic()
        stream = None if self._output is None else subprocess.PIPE
        slot.process = subprocess.Popen(  # noqa: S603  # our own command line
            self._command(slot.number),
            stdin=subprocess.PIPE,
            stdout=stream,
            stderr=None if stream is None else subprocess.STDOUT,
            env=self._environment,
            text=True,
            errors="replace",
            # A terminal interrupts the whole process group; only the supervisor signals the children.
            process_group=0,
        )
        log.info("worker process %d runs as process %d", slot.number, slot.process.pid)
        self._watch_child(slot, slot.process)

    def _watch_child(self, slot: _ProcessSlot, process: subprocess.Popen[str]) -> None:
        """Start threads that wait for the child's exit and read its output."""
        _in_thread(lambda: self._events.put(_ChildExit(slot, process.wait())))
        output, stream = self._output, process.stdout
        if output is not None and stream is not None:
            self._readers = [reader for reader in self._readers if reader.is_alive()]
            self._readers.append(_in_thread(lambda: _forward_output(slot.number, stream, output)))

    def _read_last_output(self) -> None:
        """Wait until what the children wrote was passed on, so that nothing follows the end of `run`."""
        until = time.monotonic() + _OUTPUT_SECONDS
        for reader in self._readers:
            reader.join(max(until - time.monotonic(), 0))

    def _child_ended(self, slot: _ProcessSlot, code: int) -> None:
        if slot.process is not None and slot.process.stdin is not None:
            slot.process.stdin.close()
        slot.process = None
        if self.stopping:
            if code not in _REQUESTED_EXIT_CODES:
                log.error("worker process %d did not exit cleanly: %s", slot.number, _describe_exit(code))
                self._exit_code = self._exit_code or 1
        elif code in self._fatal_exit_codes:
            log.error("worker process %d exited: %s; a restart would not help", slot.number, _describe_exit(code))
            self._exit_code = code
            self._stop()
        else:
            self._schedule_restart(slot, code)

    def _schedule_restart(self, slot: _ProcessSlot, code: int) -> None:
        now = time.monotonic()
        quick = now - slot.started_at < _QUICK_SECONDS
        slot.quick_exits = slot.quick_exits + 1 if quick else 0
        pause = pause_before_start(slot.quick_exits)
        slot.start_at = now + pause
        when = f"in {pause:g} s" if pause else "at once"
        log.warning("worker process %d exited: %s; restarting %s", slot.number, _describe_exit(code), when)

    # --- shutdown --------------------------------------------------------------------------------------------------

    def _stop(self) -> None:
        """Send SIGTERM to every child; a second SIGTERM makes them exit at once."""
        self._signals += 1
        seconds = self._ending_seconds + (self._grace_seconds if self._signals == 1 else 0)
        self._kill_at = time.monotonic() + seconds
        for slot in self._slots:
            slot.start_at = None
        for process in self._alive_processes():
            process.send_signal(signal.SIGTERM)

    def _alive_processes(self) -> list[subprocess.Popen[str]]:
        return [slot.process for slot in self._slots if slot.process is not None]

    def _kill_alive_processes(self) -> None:
        for process in self._alive_processes():
            log.error("process %d did not exit in time and is killed", process.pid)
            process.kill()


def pause_before_start(quick_exits: int) -> float:
    """Return how many seconds to wait before a restart after *quick_exits* quick exits in a row."""
    return 0.0 if quick_exits < 2 else _RESTARTS.pause_seconds(quick_exits - 1, 0.0)


def end_with_parent(grace_seconds: float) -> None:
    """Make this process, a child of `WorkerProcesses`, exit when its supervisor dies: first SIGTERM, then SIGKILL.

    Standard input, the pipe from the supervisor, is replaced, because processes that handlers start must not read it.
    """
    supervisor_pipe = os.dup(0)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    _in_thread(lambda: _exit_after_supervisor(supervisor_pipe, grace_seconds + ENDING_SECONDS))


def _exit_after_supervisor(supervisor_pipe: int, seconds: float) -> None:
    while os.read(supervisor_pipe, 4096):
        pass
    log.warning("the supervisor has exited: this worker stops too")
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGKILL)


def _forward_output(number: int, stream: IO[str], output: Output) -> None:
    with stream:
        for line in stream:
            output(number, line.rstrip("\n"))
    output(number, None)


def _in_thread(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, name="holdfast-supervisor", daemon=True)
    thread.start()
    return thread


def _describe_exit(code: int) -> str:
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"
