"""Python programs in processes of their own, which are forked from one that has imported their modules.

`ForkedPython` is a `subprocess.Popen` of `python -m module` or `python -c program`. An interpreter takes up to 0.3 s
of processor time to start and import Holdfast, which hundreds of tests spent; a fork takes a hundredth. The process
is a child of the test's, has its own streams, environment and working folder, and exits as an interpreter does. Only
Linux lets a process adopt one that another forked; elsewhere, and with options or variables that an interpreter reads
when it starts, an interpreter is started.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import functools
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import types
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[2]
_PR_SET_CHILD_SUBREAPER = 36
# The variables of an interpreter that a forked process observes, or that have no effect on it.
_UNDERSTOOD = {"PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"}
# Above the numbers of descriptors that a test passes on.
_FREE_DESCRIPTORS = 512
_lock = threading.Lock()
servers: set[int] = set()
"""The ids of the processes from which others are forked."""


class ForkedPython(subprocess.Popen[Any]):
    """A running Python program; a *leader* has standard input as its controlling terminal."""

    imports: tuple[str, ...] = ("tests.support.warm",)
    """The modules that the process it is forked from has imported."""

    def __init__(
        self, args: list[str], *, env: dict[str, str] | None = None, leader: bool = False, **options: Any
    ) -> None:
        env = dict(os.environ) if env is None else env
        self._leader = leader
        self._is_forked = (
            sys.platform == "linux"
            and args[0] == sys.executable
            and next(argument for argument in args[1:3] if argument != "-B") in {"-m", "-c"}
            and not [name for name in env if name.startswith("PYTHON") and name not in _UNDERSTOOD]
        )
        if leader and not self._is_forked:
            options |= {"start_new_session": True, "preexec_fn": _take_terminal}
        super().__init__(args, env=env, **options)

    def __exit__(self, kind: type[BaseException] | None, *rest: Any) -> None:
        """Wait for its end; kill it first if the block has failed."""
        if kind is not None:
            self.kill()
        super().__exit__(kind, *rest)

    def _execute_child(self, args: list[str], *rest: Any) -> None:
        """Start the process; replaces the method of `Popen` that forks and executes a program."""
        if not self._is_forked:
            super()._execute_child(args, *rest)  # type: ignore[misc]
            return
        passed, cwd, env = rest[3], rest[4], rest[5]
        streams = [own if own >= 0 else number for number, own in enumerate((rest[9], rest[12], rest[14]))]
        request = {
            "arguments": args[2:] if args[1] == "-B" else args[1:],
            "descriptors": [0, 1, 2, *passed],
            "cwd": str(cwd or Path.cwd()),
            "env": env,
            "leader": self._leader,
            "group": rest[21] == 0,
        }
        self.pid = _fork(self.imports, request, [*streams, *passed])
        self._child_created = True
        self._close_pipe_fds(*rest[9:15])  # type: ignore[attr-defined]


# --- in the process of the tests ------------------------------------------------------------------------------------


def _fork(imports: tuple[str, ...], request: dict[str, Any], descriptors: list[int]) -> int:
    """Return the id of a new child of this process, which runs the program."""
    prctl = ctypes.CDLL(None).prctl
    with _lock:
        server, _ = _server(os.getpid(), imports)
        # The server's child forks the process and exits, and the nearest ancestor that asks becomes its parent.
        # Only during this call: all other orphans belong to the system's first process.
        prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            socket.send_fds(server, [json.dumps(request).encode()], descriptors)
            return int(server.recv(64))
        finally:
            prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@functools.cache
def _server(_process: int, imports: tuple[str, ...]) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """Return a process that has imported *imports*, and the connection to it; it ends when this one does."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    inherited = {name: value for name, value in os.environ.items() if name in {"PATH", "HOME"}}
    with theirs:
        started = subprocess.Popen(
            [sys.executable, "-m", __name__, str(theirs.fileno()), *imports],
            env={**inherited, "LANG": "C.UTF-8", "PYTHONPATH": os.pathsep.join([str(_ROOT / "src"), str(_ROOT)])},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
    servers.add(started.pid)
    atexit.register(started.wait)
    atexit.register(ours.close)
    return ours, started


# --- in the server --------------------------------------------------------------------------------------------------


def _serve(connection: socket.socket) -> list[str]:
    """Fork a process for each request, and return its arguments in that process. Exit when the tests have ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        message, descriptors, _, _ = socket.recv_fds(connection, 1 << 20, 16)
        if not message:
            sys.exit()
        reading, writing = os.pipe()
        between = os.fork()
        if between == 0:
            _fork_again(writing)
            os.close(reading)
            connection.close()
            request: dict[str, Any] = json.loads(message)
            _become(request, descriptors)
            return list(request["arguments"])
        os.close(writing)
        for descriptor in descriptors:
            os.close(descriptor)
        # Once this has exited, the process that it forked has its new parent.
        os.waitpid(between, 0)
        connection.send(os.read(reading, 64))
        os.close(reading)


def _fork_again(writing: int) -> None:
    """Fork, report the new process, and exit; in the new process, return once it was adopted."""
    between = os.getpid()
    if child := os.fork():
        os.write(writing, str(child).encode())
        os._exit(0)
    os.close(writing)
    while os.getppid() == between:
        os.sched_yield()


def _become(request: dict[str, Any], descriptors: list[int]) -> None:
    """Give this process what an interpreter with these arguments would have."""
    # The numbers that are wanted may be in use by other descriptors.
    moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, _FREE_DESCRIPTORS) for descriptor in descriptors]
    for descriptor in descriptors:
        os.close(descriptor)
    for number, descriptor in zip(request["descriptors"], moved, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)
    if request["leader"]:
        os.setsid()
        _take_terminal()
    if request["group"]:
        os.setpgid(0, 0)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    how, name, *rest = request["arguments"]
    sys.argv = ["-c" if how == "-c" else name, *rest]
    # The first entry of this process is its working folder, the next two were given by the tests.
    given = [entry for entry in request["env"].get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.path[:] = ["" if how == "-c" else request["cwd"], *given, *sys.path[3:]]
    sys.stdin = sys.__stdin__ = _stream(0, "r", sys.stdin)  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = _stream(1, "w", sys.stdout)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _stream(2, "w", sys.stderr)  # type: ignore[misc]


def _stream(number: int, mode: str, like: Any) -> Any:
    is_line_buffered = number == 2 or os.isatty(number)
    stream: Any = open(number, mode, encoding=like.encoding, errors=like.errors, closefd=False)  # noqa: SIM115
    stream.reconfigure(line_buffering=is_line_buffered, write_through=bool(os.environ.get("PYTHONUNBUFFERED")))
    return stream


def _take_terminal() -> None:
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _run(how: str, name: str) -> None:
    """Run a module or a program as an interpreter does."""
    if how == "-m":
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    else:
        sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(name, "<string>", "exec"), vars(sys.modules["__main__"]))


if __name__ == "__main__":
    # Not among the descriptors that a program gets.
    own = fcntl.fcntl(int(sys.argv[1]), fcntl.F_DUPFD_CLOEXEC, _FREE_DESCRIPTORS - 1)
    os.close(int(sys.argv[1]))
    for module in sys.argv[2:]:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    # A forked process goes on here, and ends as any other interpreter.
    _run(*_serve(socket.socket(fileno=own))[:2])
