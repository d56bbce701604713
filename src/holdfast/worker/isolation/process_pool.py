"""The worker's side of isolated processes: the connection to the fork server, and a pool of idle processes.

The pool reuses the most recently released process until that has run `recycle_after` attempts or its memory has
grown too much. There are at most as many processes as attempts that run at once.
"""

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

from holdfast.domain import errors, limits
from holdfast.worker.isolation.channel import Channel, Message

log = logging.getLogger("holdfast.worker")

# Only a module whose import hangs reaches this limit.
_IMPORT_SECONDS = 600.0
_FORK_SECONDS = 60.0
_EXIT_STATUS_SECONDS = 10.0
_ENDING_SECONDS = 2.0
_FAULTS_BYTES_MAX = 20_000
_PROGRAM: Final = (
    "import sys; sys.path.insert(0, sys.argv[1]); from holdfast.worker.isolation.fork_server import main; main()"
)


class ProcessUnavailable(Exception):  # noqa: N818
    """No isolated process could be started."""


class Child:
    """One isolated process."""

    def __init__(self, pid: int, channel: Channel, faults: IO[bytes], kill: Callable[[int], None]) -> None:
        self.pid = pid
        self.channel = channel
        self.killed = False
        """Whether the worker has killed it."""
        self.jobs = 0
        """The number of attempts it has run."""
        self.alive = True
        self._faults = faults
        self._kill = kill
        self._status: int | None = None
        self._dead = threading.Event()
        self._memory_at_first: int | None = None

    def kill(self) -> None:
        """Kill the process."""
        self.killed = True
        self._kill(self.pid)

    def mark_dead(self, status: int | None) -> None:
        """Record that the process has died, with its wait status."""
        self.alive = False
        self._status = status
        self._dead.set()
        # A process that it has started may still hold the other end of the socket.
        self.channel.shut_down()

    def status(self) -> int | None:
        """Wait for the wait status of the dead process and return it; None if unknown."""
        self._dead.wait(_EXIT_STATUS_SECONDS)
        return self._status

    def faults(self) -> str | None:
        """Return the Python frames that faulthandler wrote at a crash in C, if any."""
        try:
            self._faults.seek(0)
            return self._faults.read(_FAULTS_BYTES_MAX).decode("utf-8", "replace") or None
        except (OSError, ValueError):
            return None

    def has_grown(self, memory_bytes: int) -> bool:
        """Return whether its memory has grown beyond the limit since its first attempt."""
        if self._memory_at_first is None:
            self._memory_at_first = memory_bytes
        return memory_bytes - self._memory_at_first > limits.RECYCLE_GROWTH_BYTES

    def close(self) -> None:
        """Close the channel; the process exits when it notices."""
        self.alive = False
        self.channel.close()
        with suppress(OSError):
            self._faults.close()


class ForkServerProcess:
    """A running fork server; the pool replaces it if it dies."""

    def __init__(self, setup: Message) -> None:
        self._setup = setup
        self._channel: Channel | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._children: dict[int, Child] = {}
        self._answers: queue.SimpleQueue[Message | Child | None] = queue.SimpleQueue()
        self._pending: tuple[Channel, IO[bytes]] | None = None
        self.gone = False
        # The kernel signals the fork server when the thread that started it exits, so this thread must outlive it.
        self._thread = threading.Thread(target=self._serve, name="holdfast-fork-server", daemon=True)
        self._thread.start()
        self._missing: dict[str, str] | None = None

    def wait_ready(self) -> dict[str, str]:
        """Wait until it has imported the tasks; return the problem of each kind that it did not find."""
        if self._missing is None:
            self._missing = self._receive_ready()
        return self._missing

    def _receive_ready(self) -> dict[str, str]:
        answer = self._next_answer(_IMPORT_SECONDS)
        if not isinstance(answer, dict) or "ready" not in answer:
            self.close()
            raise ProcessUnavailable("the fork server for isolated processes exited before it had imported the tasks")
        if answer["threads"]:
            log.warning(
                "importing the tasks started threads (%s): processes forked while they run may hang;"
                " start threads in handlers, not at import",
                ", ".join(answer["threads"]),
            )
        missing: dict[str, str] = answer["missing"]
        return missing

    def _next_answer(self, seconds: float) -> Message | Child | None:
        try:
            return self._answers.get(timeout=seconds)
        except queue.Empty:
            return None

    # --- messages, in their own thread ------------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            self._start()
            self._open_channel().send(self._setup)
            while (received := self._open_channel().receive()) is not None:
                self._handle_message(received[0])
        except Exception as error:  # callers that wait for an answer must not wait forever
            log.error("the fork server for isolated processes cannot be used: %s", error)
        finally:
            self._shut_down()

    def _start(self) -> None:
        own_socket, child_socket = socket.socketpair()
        self._channel = Channel(own_socket)
        package = str(Path(__file__).parents[3])
        arguments = [package, str(child_socket.fileno()), str(os.getpid())]
        with child_socket:
            self._process = subprocess.Popen(  # noqa: S603  # our own command line
                # Pass on the interpreter's options, such as -O.
                [sys.executable, *subprocess._args_from_interpreter_flags(), "-c", _PROGRAM, *arguments],  # type: ignore[attr-defined]  # as multiprocessing does
                stdin=subprocess.DEVNULL,
                pass_fds=[child_socket.fileno()],
                # A terminal interrupts the whole process group; only the worker stops these processes.
                process_group=0,
            )

    def _handle_message(self, message: Message) -> None:
        if "exited" in message:
            child = self._children.pop(message["exited"], None)
            if child is not None:
                child.mark_dead(message["status"])
        elif "forked" in message and self._pending is not None:
            # Register the child before the next message, which may report its exit.
            child = self._children[message["forked"]] = Child(message["forked"], *self._pending, self.kill)
            self._answers.put(child)
        else:
            self._answers.put(message)

    def _shut_down(self) -> None:
        self.gone = True
        if self._process is not None:
            try:
                self._process.wait(_ENDING_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        for child in list(self._children.values()):
            # The children died with the fork server.
            child.mark_dead(None)
        self._answers.put(None)

    # --- requests --------------------------------------------------------------------------------------------------

    def fork(self) -> Child:
        """Return a new process, or raise `ProcessUnavailable`."""
        own_socket, child_socket = socket.socketpair()
        faults = _file_in_memory()
        with self._lock, child_socket:
            self._pending = (Channel(own_socket), faults)
            try:
                self._open_channel().send_with_descriptors({"fork": True}, child_socket.fileno(), faults.fileno())
                answer = self._next_answer(_FORK_SECONDS)
            except (OSError, ProcessUnavailable):
                answer = None
            if isinstance(answer, Child):
                return answer
            self._pending[0].close()
            faults.close()
            # A fork server that does not answer is replaced.
            self.gone = self.gone or answer is None
            raise ProcessUnavailable(
                f"no process could be forked: {answer['refused'] if answer else 'its fork_server is gone'}"
            )

    def kill(self, pid: int) -> None:
        """Kill one of its processes; only the fork server knows whether the pid is still valid."""
        with suppress(OSError, ProcessUnavailable):
            self._open_channel().send({"kill": pid})

    def _open_channel(self) -> Channel:
        if self._channel is None or self.gone:
            raise ProcessUnavailable("its fork server is gone")
        return self._channel

    def close(self) -> None:
        """Stop the fork server and every process forked from it."""
        if self._channel is not None:
            self._channel.shut_down()
        self._thread.join(_ENDING_SECONDS * 2)
        if self._channel is not None:
            self._channel.close()


def _file_in_memory() -> IO[bytes]:
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("holdfast-faults"), "w+b")
    return tempfile.TemporaryFile()


class Pool:
    """A pool of idle processes, which forks more on demand."""

    def __init__(self, setup: Callable[[], Message], recycle_after: int) -> None:
        self._setup = setup
        self._recycle_after = recycle_after
        self._lock = threading.Lock()
        self._starting = threading.Lock()
        self._idle: list[Child] = []
        self._fork_server: ForkServerProcess | None = None
        self._closed = False

    def start(self) -> None:
        """Start the fork server; raise `Misconfigured` if it does not find a task that runs isolated."""
        try:
            missing = self._ready_fork_server().wait_ready()
        except ProcessUnavailable as error:
            raise errors.Misconfigured(str(error)) from error
        for kind, problem in missing.items():
            raise errors.Misconfigured(f"task {kind!r} cannot run isolated: {problem}")

    def _ready_fork_server(self) -> ForkServerProcess:
        with self._starting:
            if self._closed:
                raise ProcessUnavailable("the worker shuts down")
            if self._fork_server is None or self._fork_server.gone:
                if self._fork_server is not None:
                    self._fork_server.close()
                self._fork_server = ForkServerProcess(self._setup())
            if self._closed:
                # The pool was closed while the fork server started.
                self._fork_server.close()
            self._fork_server.wait_ready()
            return self._fork_server

    def acquire(self) -> Child:
        """Return an idle process or fork a new one; raise `ProcessUnavailable` if that fails."""
        with self._lock:
            while self._idle:
                child = self._idle.pop()
                if child.alive:
                    return child
                child.close()
        return self._ready_fork_server().fork()

    def release(self, child: Child, memory_bytes: int, *, discard: bool = False) -> None:
        """Keep a process for the next attempt, unless it is to be recycled, has grown or must be discarded."""
        child.jobs += 1
        retired = discard or child.jobs >= self._recycle_after or child.has_grown(memory_bytes)
        with self._lock:
            if not retired and child.alive and not self._closed:
                self._idle.append(child)
                return
        child.close()

    def close(self) -> None:
        """Kill every process."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for child in idle:
            child.close()
        fork_server = self._fork_server
        if fork_server is not None:
            fork_server.close()
