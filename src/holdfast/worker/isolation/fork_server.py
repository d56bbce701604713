"""The fork server: a single-threaded process that imports the tasks and forks the isolated processes.

The worker is never forked, because it has many threads. The fork server runs no handlers, so that no handler can
damage it. It forks, kills and reaps processes. When the worker dies it exits, and kills the processes it has forked
and their process groups.
"""

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
from holdfast.worker.isolation import channel, child, os_limits, task_locator

_BYTES_AT_ONCE = 1 << 16
_DESCRIPTORS_AT_ONCE = 16
# SIG_IGN if the worker was started by nohup.
_hangup_handler = signal.getsignal(signal.SIGHUP)
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main() -> NoReturn:
    """Run the fork server; the command line contains its socket's descriptor and the pid of its parent."""
    descriptor, parent = int(sys.argv[2]), int(sys.argv[3])
    os_limits.exit_with_parent(parent, signal.SIGHUP)
    _ignore_stop_signals()
    isolation.inside = True
    ForkServer(socket.socket(fileno=descriptor)).serve()


class ForkServer:
    """Handles the worker's requests, which arrive over a socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._channel = channel.Channel(sock)
        self._buffer = bytearray()
        self._descriptors: deque[int] = deque()
        self._children: set[int] = set()
        self._setup = self._wait_for_message()
        self._locator = task_locator.TaskLocator(self._setup)

    def serve(self) -> NoReturn:
        """Import the tasks, report the result, and handle requests until the worker is gone."""
        try:
            self._serve()
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            # Kill all children after an error too.
            self._exit()

    def _serve(self) -> NoReturn:
        missing = {}
        for kind, location in self._setup["locations"].items():
            try:
                self._locator.find(kind, location)
            except task_locator.NotFound as error:
                missing[kind] = str(error)
        threads = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
        # Freeze the objects: the garbage collector of a child would write to them, which copies their shared pages.
        gc.collect()
        gc.freeze()
        signal_reader, signal_writer = self._install_signal_handlers()
        self._send({"ready": True, "missing": missing, "threads": threads})
        while True:
            ready, _, _ = select.select([self._socket, signal_reader], [], [])
            if signal_reader in ready:
                with suppress(BlockingIOError):
                    signal_reader.recv(_BYTES_AT_ONCE)
                self._reap_children()
            if self._socket in ready:
                self._receive()
            while (message := channel.unpack_message(self._buffer)) is not None:
                self._handle_message(message, (signal_reader, signal_writer))

    def _install_signal_handlers(self) -> tuple[socket.socket, socket.socket]:
        signal_reader, signal_writer = socket.socketpair()
        signal_reader.settimeout(0)
        signal_writer.settimeout(0)
        signal.set_wakeup_fd(signal_writer.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _do_nothing)
        signal.signal(signal.SIGHUP, lambda *_: self._exit())
        # The imported modules may have set their own handlers.
        _ignore_stop_signals()
        return signal_reader, signal_writer

    # --- messages --------------------------------------------------------------------------------------------------

    def _wait_for_message(self) -> channel.Message:
        while (message := channel.unpack_message(self._buffer)) is None:
            self._receive()
        return message

    def _receive(self) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._socket, _BYTES_AT_ONCE, _DESCRIPTORS_AT_ONCE)
        except ConnectionResetError:
            data, descriptors = b"", []
        self._descriptors.extend(descriptors)
        if not data:
            self._exit()
        self._buffer += data

    def _handle_message(self, message: channel.Message, own_sockets: tuple[socket.socket, ...]) -> None:
        if "fork" in message:
            self._fork(own_sockets)
        elif message["kill"] in self._children:
            # The child is not reaped yet, so its pid cannot belong to another process.
            with suppress(ProcessLookupError):
                os.kill(message["kill"], signal.SIGKILL)

    def _send(self, message: channel.Message) -> None:
        try:
            self._channel.send(message)
        except OSError:
            # The worker is gone.
            self._exit()

    # --- children --------------------------------------------------------------------------------------------------

    def _fork(self, own_sockets: tuple[socket.socket, ...]) -> None:
        child_socket, fault_fd = self._descriptors.popleft(), self._descriptors.popleft()
        server_pid = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            self._send({"refused": str(error)})
        else:
            if pid == 0:
                self._run_child(server_pid, child_socket, fault_fd, own_sockets)
            self._children.add(pid)
            # Parent and child both set the group, because either may run first.
            with suppress(OSError):
                os.setpgid(pid, pid)
            self._send({"forked": pid})
        os.close(child_socket)
        os.close(fault_fd)

    def _run_child(
        self, server_pid: int, child_socket: int, fault_fd: int, own_sockets: tuple[socket.socket, ...]
    ) -> NoReturn:
        code = 1
        try:
            os_limits.exit_with_parent(server_pid, signal.SIGKILL)
            os.setpgid(0, 0)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGHUP, signal.SIG_DFL)
            os.register_at_fork(
                before=_block_stop_signals,
                after_in_parent=_unblock_stop_signals,
                after_in_child=_restore_stop_signals,
            )
            for sock in own_sockets:
                sock.close()
            self._channel.close()
            child.IsolatedProcess(socket.socket(fileno=child_socket), fault_fd, self._locator, self._setup).serve()
            code = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            for stream in (sys.stdout, sys.stderr):
                with suppress(Exception):
                    stream.flush()
            os._exit(code)

    def _reap_children(self) -> None:
        """Report children that have exited, and kill the processes they have left in their groups."""
        for pid in list(self._children):
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                continue
            # Before the child is reaped, its group id cannot be reused.
            with suppress(OSError):
                os.killpg(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            self._children.discard(pid)
            self._send({"exited": pid, "status": status})

    def _exit(self) -> NoReturn:
        for pid in self._children:
            with suppress(OSError):
                os.killpg(pid, signal.SIGKILL)
        for pid in self._children:
            with suppress(OSError):
                os.waitpid(pid, 0)
        os._exit(0)


def _ignore_stop_signals() -> None:
    """Do nothing on signals that a terminal or a service manager may send to every process: the worker decides.

    SIG_IGN is not used, because processes that handlers start would inherit it.
    """
    for number in _STOP_SIGNALS:
        signal.signal(number, _do_nothing)


def _do_nothing(*_: object) -> None:
    """Handle a signal without effect."""


def _block_stop_signals() -> None:
    # A signal that arrives before the forked process has restored its handlers stays pending.
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)


def _unblock_stop_signals() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)


def _restore_stop_signals() -> None:
    """Restore the default signal handlers in processes that a handler forks, such as with `multiprocessing`."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, _hangup_handler)
    _unblock_stop_signals()
