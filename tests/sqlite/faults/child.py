"""The process under test, forked from a server: `python -m tests.sqlite.faults.child FORM`.

The server has imported everything and opened nothing. For each line of its standard input, a function and its
arguments as JSON, it forks a process. The function gets the interception first, and its result is printed as JSON.
Many cases run in forks of that process.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from tests.sqlite.faults.file_layer import FileLayer
from tests.sqlite.faults.interception import Form, Interception, SystemCalls, environment

_ROOT = Path(__file__).resolve().parents[3]
_IMPORTED = ("failures", "forks", "kills", "visits", "workload")


def run_child(form: Form, built: Path, function: Callable[..., object], **arguments: object) -> Any:
    """Run *function* of a module in a separate process; *built* is the folder for compiled files."""
    server = _server(form, built, os.getpid())
    assert server.stdin is not None
    assert server.stdout is not None
    with tempfile.NamedTemporaryFile("r") as errors:
        request = [function.__module__, function.__name__, arguments, errors.name]
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        status, answer = json.loads(server.stdout.readline())
        assert status == 0, f"{function.__name__} ended with {status}: {errors.read()}"
    return answer


@functools.cache
def _server(form: Form, built: Path, _process: int) -> subprocess.Popen[str]:
    """Return the server of this process; it ends when this process does."""
    search = os.pathsep.join(entry or str(_ROOT) for entry in [str(_ROOT), *sys.path])
    server = subprocess.Popen(
        [sys.executable, "-m", __name__, form],
        cwd=_ROOT,
        env={**os.environ, "PYTHONPATH": search, **environment(form, built)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(server.communicate)
    return server


def forked(case: Callable[[Callable[[Any], None]], None]) -> tuple[int, list[Any]]:
    """Run *case* in a fork of this process; return its exit code (as in `subprocess`) and its messages.

    The case gets a function to send messages, which arrive even if the process is killed right afterwards.
    """
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(reading)
        _run_case(case, writing)
    os.close(writing)
    with os.fdopen(reading) as said:
        heard = [json.loads(line) for line in said]
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), heard


def _run_case(case: Callable[[Callable[[Any], None]], None], writing: int) -> NoReturn:
    def say(what: Any) -> None:
        os.write(writing, json.dumps(what).encode() + b"\n")

    try:
        case(say)
        os._exit(0)
    except BaseException:
        say(traceback.format_exc())
        os._exit(1)


# --- in the server --------------------------------------------------------------------------------------------------


def _serve() -> tuple[str, int]:
    """Fork a process for each request; in that process, return the request and where to write the result."""
    for line in sys.stdin:
        reading, writing = os.pipe()
        process = os.fork()
        if process == 0:
            os.close(reading)
            return line, writing
        os.close(writing)
        with os.fdopen(reading) as said:
            answer = json.loads(said.read() or "null")
        status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        print(json.dumps([status, answer]), flush=True)
    sys.exit()


def _run_function(form: str, request: str, writing: int) -> NoReturn:
    module, function, arguments, errors = json.loads(request)
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    os.dup2(os.open(errors, os.O_WRONLY), 1)
    os.dup2(1, 2)
    interception: Interception = SystemCalls() if form == "system-calls" else FileLayer()
    answer = getattr(importlib.import_module(module), function)(interception, **arguments)
    with os.fdopen(writing, "w") as said:
        json.dump(answer, said)
    # Open files must not be closed while the interpreter, and the replaced file layer with it, shuts down.
    os._exit(0)


def _import_everything() -> None:
    importlib.import_module("tests.support.warm")
    for name in _IMPORTED:
        importlib.import_module(f"{__package__}.{name}")
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    _import_everything()
    # A forked process goes on here, and ends as any other interpreter.
    _run_function(sys.argv[1], *_serve())
