"""The command line in processes of its own, which are forked from one that has imported it.

`Command` is a `subprocess.Popen` of `python -m holdfast.cli`. An interpreter takes a third of a second of processor
time to start and import it, which two hundred tests spent; a fork takes a hundredth. The process is a child of the
test's, has its own streams, environment and working folder, and exits as an interpreter does. Only Linux lets a
process adopt one that another forked; elsewhere, and with variables that an interpreter reads when it starts, an
interpreter is started.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import holdfast

SOURCE = Path(holdfast.__file__).parents[1]
PATIENCE_SECONDS = 120
_INTERPRETER = [sys.executable, "-m", "holdfast.cli"]
_PR_SET_CHILD_SUBREAPER = 36
_lock = threading.Lock()


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a process that uses Holdfast from this checkout."""
    inherited = {name: value for name, value in os.environ.items() if name in {"PATH", "HOME", "LANG"}}
    return {**inherited, "PYTHONPATH": str(SOURCE), **more}


def run(
    *arguments: str, cwd: Path, env: dict[str, str], stdin: str | None = None, stdout: int = subprocess.PIPE
) -> subprocess.CompletedProcess[str]:
    """Run the command line to its end, as `subprocess.run` does, and return its output."""
    given = subprocess.DEVNULL if stdin is None else subprocess.PIPE
    with Command(
        *arguments, cwd=cwd, env=env, stdin=given, stdout=stdout, stderr=subprocess.PIPE, text=True
    ) as running:
        try:
            output, errors = running.communicate(stdin, timeout=PATIENCE_SECONDS)
        finally:
            running.kill()
    return subprocess.CompletedProcess(arguments, running.returncode, output, errors)


class Command(subprocess.Popen[Any]):
    """A running `holdfast` with *arguments*. A *leader* has standard input as its controlling terminal."""

    def __init__(self, *arguments: str, env: dict[str, str], leader: bool = False, **options: Any) -> None:
        self._leader = leader
        self._is_forked = sys.platform == "linux" and not any(
            name.startswith("PYTHON") and name != "PYTHONPATH" for name in env
        )
        if leader and not self._is_forked:
            options |= {"start_new_session": True, "preexec_fn": _take_terminal}
        super().__init__([*_INTERPRETER, *arguments], env=env, **options)

    def _execute_child(self, args: list[str], *rest: Any) -> None:
        """Start the process; replaces the method of `Popen` that forks and executes a program."""
        if not self._is_forked:
            super()._execute_child(args, *rest)  # type: ignore[misc]
            return
        cwd, env = rest[4], rest[5]
        streams = rest[9], rest[12], rest[14]
        request = {"arguments": args[len(_INTERPRETER) :], "cwd": str(cwd or Path.cwd()), "env": env}
        self.pid = _fork(
            {**request, "leader": self._leader}, [own if own >= 0 else n for n, own in enumerate(streams)]
        )
        self._child_created = True
        self._close_pipe_fds(*rest[9:15])  # type: ignore[attr-defined]


# --- in the process of the tests ------------------------------------------------------------------------------------


def _fork(request: dict[str, Any], streams: list[int]) -> int:
    """Return the id of a new child of this process, which runs the command line."""
    prctl = ctypes.CDLL(None).prctl
    with _lock:
        server, _ = _server(os.getpid())
        # The server's child forks the process and exits, and the nearest ancestor that asks becomes its parent.
        # Only during this call: all other orphans belong to the system's first process.
        prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            socket.send_fds(server, [json.dumps(request).encode()], streams)
            return int(server.recv(64))
        finally:
            prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@functools.cache
def _server(_process: int) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """Return a process that has imported the command line, and the connection to it; it ends when this one does."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        started = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())],
            env=environment(LANG="C.UTF-8"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
    atexit.register(started.wait)
    atexit.register(ours.close)
    return ours, started


# --- in the server --------------------------------------------------------------------------------------------------


def _serve(connection: socket.socket) -> dict[str, Any]:
    """Fork a process for each request, and return the request in that process. Exit when the tests have ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        message, streams, _, _ = socket.recv_fds(connection, 1 << 20, 3)
        if not message:
            sys.exit()
        reading, writing = os.pipe()
        between = os.fork()
        if between == 0:
            if child := os.fork():
                os.write(writing, str(child).encode())
                os._exit(0)
            os.close(reading)
            os.close(writing)
            connection.close()
            request: dict[str, Any] = json.loads(message)
            _become(request, streams)
            return request
        os.close(writing)
        for stream in streams:
            os.close(stream)
        # Once this has exited, the process that it forked has its new parent.
        os.waitpid(between, 0)
        connection.send(os.read(reading, 64))
        os.close(reading)


def _become(request: dict[str, Any], streams: list[int]) -> None:
    """Give this process what an interpreter with these arguments would have."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    if request["leader"]:
        os.setsid()
        _take_terminal()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["holdfast", *request["arguments"]]
    # The first entry of this process is the folder of this module, the second was given by the tests.
    given = [entry for entry in request["env"].get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.path[:] = [request["cwd"], *given, *sys.path[2:]]
    sys.stdin = sys.__stdin__ = _stream(0, "r", sys.stdin)  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = _stream(1, "w", sys.stdout)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _stream(2, "w", sys.stderr)  # type: ignore[misc]


def _stream(number: int, mode: str, like: Any) -> Any:
    is_line_buffered = number == 2 or os.isatty(number)
    stream: Any = open(number, mode, encoding=like.encoding, errors=like.errors, closefd=False)  # noqa: SIM115
    stream.reconfigure(line_buffering=is_line_buffered)
    return stream


def _take_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _import_command_line() -> None:
    import importlib
    import pkgutil

    import holdfast.cli

    for module in pkgutil.walk_packages(holdfast.cli.__path__, "holdfast.cli."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    with holdfast.connect(":memory:") as queue:
        queue.migrate()
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    import runpy

    _import_command_line()
    _serve(socket.socket(fileno=int(sys.argv[1])))
    # A forked process goes on here, and ends as any other interpreter.
    runpy.run_module("holdfast.cli", run_name="__main__", alter_sys=True)
