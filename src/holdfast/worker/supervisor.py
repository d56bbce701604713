"""Several worker processes under one supervisor: started, watched, started again, and never left behind.

The supervisor runs no jobs and opens no store, so that nothing a handler does can bring it down. Each child is held
by a pipe that is its standard input: it ends with the supervisor, however that ended, and the child with it.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, TypeAlias

log = logging.getLogger("holdfast.worker")

Output: TypeAlias = Callable[[int, str | None], None]
"""Told of each line that a child writes, with the child's number; of none once it writes no more."""

# A child that lived for less is started again after a pause, longer each time.
_QUICK_SECONDS = 10.0
_PAUSE_SECONDS_FIRST, _PAUSE_SECONDS_LAST = 0.5, 30.0
# What a child needs beyond its grace period to give back its jobs and to end.
ENDING_SECONDS = 15.0
_ASKED_TO_END = frozenset({0, -signal.SIGTERM, -signal.SIGINT})


@dataclass
class _ProcessSlot:
    """One of the places for children, and who is in it."""

    number: int
    process: subprocess.Popen[str] | None = None
    started_at: float = 0.0
    quick_ends: int = 0
    start_at: float | None = field(default=None)
    """When the next child is started here, if one is to be; by the monotonic clock."""


@dataclass(frozen=True)
class _Ended:
    place: _ProcessSlot
    code: int


class WorkerProcesses:
    """Keeps *size* children running until a signal ends it.

    *command* gives the command line of a child by its number, from 1. One that is told to end and has not done so
    *grace_seconds* and *ending_seconds* later is killed. *hopeless* are exit codes that another start would only
    bring again: a child that ends so ends the whole crew. With *output* the children's lines go there instead of
    straight to this process's own streams.
    """

    def __init__(
        self,
        command: Callable[[int], Sequence[str]],
        size: int,
        *,
        environment: Mapping[str, str],
        grace_seconds: float,
        hopeless: frozenset[int] = frozenset(),
        output: Output | None = None,
        ending_seconds: float = ENDING_SECONDS,
    ) -> None:
        self._command = command
        self._environment = dict(environment)
        self._grace_seconds = grace_seconds
        self._ending_seconds = ending_seconds
        self._hopeless = hopeless
        self._output = output
        self._places = [_ProcessSlot(number) for number in range(1, size + 1)]
        # Its `put` may be called in the middle of anything, as handlers of signals are.
        self._news: queue.SimpleQueue[int | _Ended] = queue.SimpleQueue()
        self._signals = 0
        self._kill_at: float | None = None
        self._exit_code = 0

    @property
    def stopping(self) -> bool:
        """Whether no child is started any more."""
        return self._signals > 0

    # --- running ---------------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Keep the children running; return 0 if all ended in good order, 1 if not, or the hopeless code."""
        with self._taking_signals():
            try:
                for place in self._places:
                    self._start(place)
                while not self.stopping or self._living():
                    self._heed(self._next_news())
            finally:
                self._kill_living()
        return self._exit_code

    @contextmanager
    def _taking_signals(self) -> Iterator[None]:
        before = {
            number: signal.signal(number, lambda got, _frame: self._news.put(got))
            for number in (signal.SIGTERM, signal.SIGINT)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _next_news(self) -> int | _Ended | None:
        """Wait for a signal, the end of a child, or the next moment at which there is something to do."""
        moments = [place.start_at for place in self._places if place.start_at is not None]
        if self._kill_at is not None:
            moments.append(self._kill_at)
        seconds = max(min(moments) - time.monotonic(), 0) if moments else None
        try:
            return self._news.get(timeout=seconds)
        except queue.Empty:
            return None

    def _heed(self, news: int | _Ended | None) -> None:
        match news:
            case _Ended():
                self._child_ended(news.place, news.code)
            case int():
                self._stop()
            case None:
                self._do_what_is_due(time.monotonic())

    def _do_what_is_due(self, now: float) -> None:
        for place in self._places:
            if place.start_at is not None and place.start_at <= now:
                self._start(place)
        if self._kill_at is not None and self._kill_at <= now:
            self._kill_at = None
            self._kill_living()

    # --- one child -------------------------------------------------------------------------------------------------

    def _start(self, place: _ProcessSlot) -> None:
        place.start_at = None
        place.started_at = time.monotonic()
        piped = None if self._output is None else subprocess.PIPE
        place.process = subprocess.Popen(  # noqa: S603  # our own command line
            self._command(place.number),
            stdin=subprocess.PIPE,
            stdout=piped,
            stderr=None if piped is None else subprocess.STDOUT,
            env=self._environment,
            text=True,
            errors="replace",
            # A terminal sends its interrupt to a whole group; children are told by the supervisor alone.
            process_group=0,
        )
        log.info("worker process %d runs as process %d", place.number, place.process.pid)
        self._attend(place, place.process)

    def _attend(self, place: _ProcessSlot, process: subprocess.Popen[str]) -> None:
        """Let threads wait for the end of a child and read what it writes."""
        _in_thread(lambda: self._news.put(_Ended(place, process.wait())))
        output, stream = self._output, process.stdout
        if output is not None and stream is not None:
            _in_thread(lambda: _read_out(place.number, stream, output))

    def _child_ended(self, place: _ProcessSlot, code: int) -> None:
        if place.process is not None and place.process.stdin is not None:
            place.process.stdin.close()
        place.process = None
        if self.stopping:
            if code not in _ASKED_TO_END:
                log.error("worker process %d did not end in good order: %s", place.number, _told(code))
                self._exit_code = self._exit_code or 1
        elif code in self._hopeless:
            log.error("worker process %d ended: %s; another start would not help", place.number, _told(code))
            self._exit_code = code
            self._stop()
        else:
            self._start_again(place, code)

    def _start_again(self, place: _ProcessSlot, code: int) -> None:
        now = time.monotonic()
        quick = now - place.started_at < _QUICK_SECONDS
        place.quick_ends = place.quick_ends + 1 if quick else 0
        pause = pause_before_start(place.quick_ends)
        place.start_at = now + pause
        soon = f"in {pause:g} s" if pause else "at once"
        log.warning("worker process %d ended: %s; the next starts %s", place.number, _told(code), soon)

    # --- going down ------------------------------------------------------------------------------------------------

    def _stop(self) -> None:
        """Tell every child to end; told again, they end at once."""
        self._signals += 1
        patience = self._ending_seconds + (self._grace_seconds if self._signals == 1 else 0)
        self._kill_at = time.monotonic() + patience
        for place in self._places:
            place.start_at = None
        for process in self._living():
            process.send_signal(signal.SIGTERM)

    def _living(self) -> list[subprocess.Popen[str]]:
        return [place.process for place in self._places if place.process is not None]

    def _kill_living(self) -> None:
        for process in self._living():
            log.error("process %d did not end in time and is killed", process.pid)
            process.kill()


def pause_before_start(quick_ends: int) -> float:
    """Return how many seconds a place stays empty after so many children in a row that ended quickly."""
    if quick_ends < 2:
        return 0.0
    # The exponent is bounded: after a day of quick ends the power would not fit a float.
    return min(_PAUSE_SECONDS_FIRST * 2.0 ** min(quick_ends - 2, 16), _PAUSE_SECONDS_LAST)


def end_with_parent(grace_seconds: float) -> None:
    """End this process, a child of `WorkerProcesses`, when its supervisor is gone: in good order, or by force.

    Standard input, which tells of it, is taken away: what handlers start must not read from it.
    """
    held = os.dup(0)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    _in_thread(lambda: _end_after(held, grace_seconds + ENDING_SECONDS))


def _end_after(held: int, seconds: float) -> None:
    while os.read(held, 4096):
        pass
    log.warning("the supervisor is gone: this worker ends too")
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGKILL)


def _read_out(number: int, stream: IO[str], output: Output) -> None:
    with stream:
        for line in stream:
            output(number, line.rstrip("\n"))
    output(number, None)


def _in_thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="holdfast-crew", daemon=True).start()


def _told(code: int) -> str:
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"
