"""The template: a process with one thread that has imported the tasks, from which isolated processes are forked.

The worker, which has many threads, is never forked. The template runs no handler, so that nothing a handler does can
harm it. It forks, kills and buries; it ends when the worker does, and takes with it all that it forked, and what that
has started.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import sys
import threading
from collections import deque
from contextlib import suppress
from typing import NoReturn

from holdfast.worker import isolation
from holdfast.worker.isolation import os_limits
from holdfast.worker.isolation.channel import Channel, Message, unpacked
from holdfast.worker.isolation.child import IsolatedProcess
from holdfast.worker.isolation.task_locator import NotFound, TaskLocator

_BYTES_AT_ONCE = 1 << 16
_DESCRIPTORS_AT_ONCE = 16
_ENDS = (signal.SIGTERM, signal.SIGINT)


def main() -> NoReturn:
    """Be a template; the number of its socket and its parent are on the command line."""
    descriptor, parent = int(sys.argv[2]), int(sys.argv[3])
    os_limits.end_with(parent, signal.SIGHUP)
    _leave_ends_to_worker()
    isolation.inside = True
    ForkServer(socket.socket(fileno=descriptor)).serve()


class ForkServer:
    """Does what the worker asks for over a socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._channel = Channel(sock)
        self._buffer = bytearray()
        self._descriptors: deque[int] = deque()
        self._children: set[int] = set()
        self._setup = self._wait_for_message()
        self._finder = TaskLocator(self._setup)

    def serve(self) -> NoReturn:
        """Import, say so, and do what is asked for until the worker is gone."""
        try:
            self._serve()
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            # Whatever happened, nothing is left behind.
            self._end()

    def _serve(self) -> NoReturn:
        missing = {}
        for kind, place in self._setup["places"].items():
            try:
                self._finder.find(kind, place)
            except NotFound as error:
                missing[kind] = str(error)
        threads = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
        # What is shared with those to be forked stays shared: the collector would touch, and so copy, all of it.
        gc.collect()
        gc.freeze()
        heard, woken = self._take_signals()
        self._tell({"ready": True, "missing": missing, "threads": threads})
        while True:
            ready, _, _ = select.select([self._socket, heard], [], [])
            if heard in ready:
                with suppress(BlockingIOError):
                    heard.recv(_BYTES_AT_ONCE)
                self._bury()
            if self._socket in ready:
                self._receive()
            while (message := unpacked(self._buffer)) is not None:
                self._do(message, (heard, woken))

    def _take_signals(self) -> tuple[socket.socket, socket.socket]:
        heard, woken = socket.socketpair()
        heard.settimeout(0)
        woken.settimeout(0)
        signal.set_wakeup_fd(woken.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _do_nothing)
        signal.signal(signal.SIGHUP, lambda *_: self._end())
        # The imported modules may have taken them.
        _leave_ends_to_worker()
        return heard, woken

    # --- the worker's word -----------------------------------------------------------------------------------------

    def _wait_for_message(self) -> Message:
        while (message := unpacked(self._buffer)) is None:
            self._receive()
        return message

    def _receive(self) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._socket, _BYTES_AT_ONCE, _DESCRIPTORS_AT_ONCE)
        except ConnectionResetError:
            data, descriptors = b"", []
        self._descriptors.extend(descriptors)
        if not data:
            self._end()
        self._buffer += data

    def _do(self, message: Message, ours: tuple[socket.socket, ...]) -> None:
        if "fork" in message:
            self._fork(ours)
        elif message["kill"] in self._children:
            # It is not buried yet, so that the number is still its own.
            with suppress(ProcessLookupError):
                os.kill(message["kill"], signal.SIGKILL)

    def _tell(self, message: Message) -> None:
        try:
            self._channel.send(message)
        except OSError:
            # The worker is gone.
            self._end()

    # --- children --------------------------------------------------------------------------------------------------

    def _fork(self, ours: tuple[socket.socket, ...]) -> None:
        theirs, faults = self._descriptors.popleft(), self._descriptors.popleft()
        template = os.getpid()
        try:
            child = os.fork()
        except OSError as error:
            self._tell({"refused": str(error)})
        else:
            if child == 0:
                self._be_child(template, theirs, faults, ours)
            self._children.add(child)
            # Both do it, so that it is done whoever comes first.
            with suppress(OSError):
                os.setpgid(child, child)
            self._tell({"forked": child})
        os.close(theirs)
        os.close(faults)

    def _be_child(self, template: int, theirs: int, faults: int, ours: tuple[socket.socket, ...]) -> NoReturn:
        code = 1
        try:
            os_limits.end_with(template, signal.SIGKILL)
            os.setpgid(0, 0)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGHUP, signal.SIG_DFL)
            os.register_at_fork(before=_hold_signals, after_in_parent=_let_signals, after_in_child=_heed_signals)
            for sock in ours:
                sock.close()
            self._channel.close()
            IsolatedProcess(socket.socket(fileno=theirs), faults, self._finder, self._setup).serve()
            code = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            for stream in (sys.stdout, sys.stderr):
                with suppress(Exception):
                    stream.flush()
            os._exit(code)

    def _bury(self) -> None:
        """Tell of children that ended, and end what those have left behind."""
        for child in list(self._children):
            if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                continue
            # As long as it is not buried, its group cannot be anybody else's.
            with suppress(OSError):
                os.killpg(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            self._children.discard(child)
            self._tell({"buried": child, "status": status})

    def _end(self) -> NoReturn:
        for child in self._children:
            with suppress(OSError):
                os.killpg(child, signal.SIGKILL)
        for child in self._children:
            with suppress(OSError):
                os.waitpid(child, 0)
        os._exit(0)


def _leave_ends_to_worker() -> None:
    """Do nothing when told to end, as a service manager may tell every process: the worker says when.

    Not by ignoring the signals, because what handlers start would inherit that.
    """
    for number in _ENDS:
        signal.signal(number, _do_nothing)


def _do_nothing(*_: object) -> None:
    """Be there, so that the signal does nothing else."""


def _hold_signals() -> None:
    # One that comes before the forked process heeds it waits, and is not lost.
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)


def _let_signals() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDS)


def _heed_signals() -> None:
    """In what a handler forks, as `multiprocessing` does: there the usual signals mean what they usually do."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _let_signals()
