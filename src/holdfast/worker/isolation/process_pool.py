"""The worker's side of isolated processes: the template they are forked from, and a pool of those that are free.

A process is used again for the next attempt, the one that was free last first, until it has run so many, or has
grown. The pool has as many as run at once.
"""

from __future__ import annotations

import logging
import os
import queue
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

from holdfast.domain import limits
from holdfast.domain.errors import Misconfigured
from holdfast.worker.isolation.channel import Channel, Message

log = logging.getLogger("holdfast.worker")

# Only a module that never comes to the end of its import reaches this.
_IMPORT_SECONDS = 600.0
_FORK_SECONDS = 60.0
_BURIAL_SECONDS = 10.0
_ENDING_SECONDS = 2.0
_FAULTS_BYTES_MAX = 20_000
_PROGRAM: Final = (
    "import sys; sys.path.insert(0, sys.argv[1]); from holdfast.worker.isolation.fork_server import main; main()"
)


class NoProcess(Exception):  # noqa: N818  # what there is
    """No process could be had."""


class Child:
    """One isolated process."""

    def __init__(self, pid: int, channel: Channel, faults: IO[bytes], kill: Callable[[int], None]) -> None:
        self.pid = pid
        self.channel = channel
        self.killed = False
        """Whether the worker has killed it."""
        self.jobs = 0
        """How many attempts it has run."""
        self.alive = True
        self._faults = faults
        self._kill = kill
        self._status: int | None = None
        self._buried = threading.Event()
        self._memory_at_first: int | None = None

    def kill(self) -> None:
        """End it at once."""
        self.killed = True
        self._kill(self.pid)

    def bury(self, status: int | None) -> None:
        """Note that it is dead, and how it died."""
        self.alive = False
        self._status = status
        self._buried.set()
        # A process that it has started may hold its end of the socket.
        self.channel.hang_up()

    def status(self) -> int | None:
        """Return how it died, as soon as that is known; none if it is not."""
        self._buried.wait(_BURIAL_SECONDS)
        return self._status

    def faults(self) -> str | None:
        """Return the Python frames that led to a crash in C, if it had time to leave them."""
        try:
            self._faults.seek(0)
            return self._faults.read(_FAULTS_BYTES_MAX).decode("utf-8", "replace") or None
        except (OSError, ValueError):
            return None

    def has_grown(self, memory_bytes: int) -> bool:
        """Tell whether it has much more memory in use than after its first attempt."""
        if self._memory_at_first is None:
            self._memory_at_first = memory_bytes
        return memory_bytes - self._memory_at_first > limits.RECYCLE_GROWTH_BYTES

    def close(self) -> None:
        """Let go of it; it ends when it notices."""
        self.alive = False
        self.channel.close()
        with suppress(OSError):
            self._faults.close()


class ForkServerProcess:
    """A template that runs; made anew once it has died."""

    def __init__(self, setup: Message) -> None:
        self._setup = setup
        self._channel: Channel | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._children: dict[int, Child] = {}
        self._answers: queue.SimpleQueue[Message | Child | None] = queue.SimpleQueue()
        self._asked: tuple[Channel, IO[bytes]] | None = None
        self.gone = False
        # The kernel ends the template with the thread that started it, so that this must live as long.
        self._thread = threading.Thread(target=self._attend, name="holdfast-template", daemon=True)
        self._thread.start()
        self._missing: dict[str, str] | None = None

    def wait_ready(self) -> dict[str, str]:
        """Wait until it has imported the tasks; return what is wrong with those that it did not find."""
        if self._missing is None:
            self._missing = self._hear_ready()
        return self._missing

    def _hear_ready(self) -> dict[str, str]:
        answer = self._answer(_IMPORT_SECONDS)
        if not isinstance(answer, dict) or "ready" not in answer:
            self.close()
            raise NoProcess("the template for isolated processes ended before it had imported the tasks")
        if answer["threads"]:
            log.warning(
                "importing the tasks started threads (%s): processes forked beside them may hang;"
                " start threads in handlers, not at import",
                ", ".join(answer["threads"]),
            )
        missing: dict[str, str] = answer["missing"]
        return missing

    def _answer(self, seconds: float) -> Message | Child | None:
        try:
            return self._answers.get(timeout=seconds)
        except queue.Empty:
            return None

    # --- its words, in a thread of their own -----------------------------------------------------------------------

    def _attend(self) -> None:
        try:
            self._start()
            self._channel_or_refuse().send(self._setup)
            while (received := self._channel_or_refuse().receive()) is not None:
                self._heed(received[0])
        except Exception as error:  # whatever it is, those who wait must not wait for ever
            log.error("the template for isolated processes cannot be used: %s", error)
        finally:
            self._end()

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        self._channel = Channel(ours)
        package = str(Path(__file__).parents[3])
        words = [package, str(theirs.fileno()), str(os.getpid())]
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603  # our own command line
                # With the interpreter's own options, which say for example whether assertions count.
                [sys.executable, *subprocess._args_from_interpreter_flags(), "-c", _PROGRAM, *words],  # type: ignore[attr-defined]  # as multiprocessing does
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                # A terminal sends its interrupt to a whole group; only the worker tells these to end.
                process_group=0,
            )

    def _heed(self, message: Message) -> None:
        if "buried" in message:
            child = self._children.pop(message["buried"], None)
            if child is not None:
                child.bury(message["status"])
        elif "forked" in message and self._asked is not None:
            # Known from here on, so that its end cannot be missed.
            child = self._children[message["forked"]] = Child(message["forked"], *self._asked, self.kill)
            self._answers.put(child)
        else:
            self._answers.put(message)

    def _end(self) -> None:
        self.gone = True
        if self._process is not None:
            try:
                self._process.wait(_ENDING_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        for child in list(self._children.values()):
            # They have died with it.
            child.bury(None)
        self._answers.put(None)

    # --- what is asked of it ---------------------------------------------------------------------------------------

    def fork(self) -> Child:
        """Return a new process, or raise `NoProcess`."""
        ours, theirs = socket.socketpair()
        faults = _file_in_memory()
        with self._lock, theirs:
            self._asked = (Channel(ours), faults)
            try:
                self._channel_or_refuse().send_with({"fork": True}, theirs.fileno(), faults.fileno())
                answer = self._answer(_FORK_SECONDS)
            except (OSError, NoProcess):
                answer = None
            if isinstance(answer, Child):
                return answer
            self._asked[0].close()
            faults.close()
            # One that does not answer is not asked again.
            self.gone = self.gone or answer is None
            raise NoProcess(f"no process could be forked: {answer['refused'] if answer else 'its template is gone'}")

    def kill(self, pid: int) -> None:
        """Kill one of its processes; only the template knows whether the number is still that one's."""
        with suppress(OSError, NoProcess):
            self._channel_or_refuse().send({"kill": pid})

    def _channel_or_refuse(self) -> Channel:
        if self._channel is None or self.gone:
            raise NoProcess("its template is gone")
        return self._channel

    def close(self) -> None:
        """End it, and with it every process forked from it."""
        if self._channel is not None:
            self._channel.hang_up()
        self._thread.join(_ENDING_SECONDS * 2)
        if self._channel is not None:
            self._channel.close()


def _file_in_memory() -> IO[bytes]:
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("holdfast-faults"), "w+b")
    return tempfile.TemporaryFile()


class Pool:
    """Processes that are free, and where more of them come from."""

    def __init__(self, setup: Callable[[], Message], recycle_after: int) -> None:
        self._setup = setup
        self._recycle_after = recycle_after
        self._lock = threading.Lock()
        self._starting = threading.Lock()
        self._idle: list[Child] = []
        self._template: ForkServerProcess | None = None
        self._closed = False

    def start(self) -> None:
        """Start the template, or raise `Misconfigured` if a task that is to be isolated is not found there."""
        try:
            missing = self._usable_template().wait_ready()
        except NoProcess as error:
            raise Misconfigured(str(error)) from error
        for kind, problem in missing.items():
            raise Misconfigured(f"task {kind!r} cannot run in a process of its own: {problem}")

    def _usable_template(self) -> ForkServerProcess:
        with self._starting:
            if self._closed:
                raise NoProcess("the worker goes down")
            if self._template is None or self._template.gone:
                if self._template is not None:
                    self._template.close()
                self._template = ForkServerProcess(self._setup())
            if self._closed:
                # It was closed before there was anything to close.
                self._template.close()
            self._template.wait_ready()
            return self._template

    def take(self) -> Child:
        """Return a free process, forked if need be, or raise `NoProcess`."""
        with self._lock:
            while self._idle:
                child = self._idle.pop()
                if child.alive:
                    return child
                child.close()
        return self._usable_template().fork()

    def give_back(self, child: Child, memory_bytes: int, *, spent: bool = False) -> None:
        """Keep a process for the next attempt, unless it has run enough of them, has grown, or is spent."""
        child.jobs += 1
        used_up = spent or child.jobs >= self._recycle_after or child.has_grown(memory_bytes)
        with self._lock:
            if not used_up and child.alive and not self._closed:
                self._idle.append(child)
                return
        child.close()

    def close(self) -> None:
        """End every process, whatever it does."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for child in idle:
            child.close()
        template = self._template
        if template is not None:
            template.close()
