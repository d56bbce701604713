"""The process under test: `python -m tests.sqlite.faults.child FORM MODULE FUNCTION ARGUMENTS`, arguments as JSON.

The function gets the interception first, and its result is printed as JSON. Many cases run in forks of one such
process, made before any file is opened, which avoids starting an interpreter and importing modules.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from tests.sqlite.faults.file_layer import FileLayer
from tests.sqlite.faults.interception import Form, Interception, SystemCalls, environment

_ROOT = Path(__file__).resolve().parents[3]


def run_child(form: Form, built: Path, function: Callable[..., object], **arguments: object) -> Any:
    """Run *function* of a module in a separate process; *built* is the folder for compiled files."""
    command = [sys.executable, "-m", __name__, form, function.__module__, function.__name__, json.dumps(arguments)]
    search = os.pathsep.join(entry or str(_ROOT) for entry in [str(_ROOT), *sys.path])
    surroundings = {**os.environ, "PYTHONPATH": search, **environment(form, built)}
    finished = subprocess.run(
        command, cwd=_ROOT, env=surroundings, capture_output=True, text=True, timeout=600, check=False
    )
    assert finished.returncode == 0, f"{function.__name__} ended with {finished.returncode}: {finished.stderr}"
    return json.loads(finished.stdout.splitlines()[-1])


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


def _main() -> None:
    form, module, function, arguments = sys.argv[1:]
    importlib.import_module("tests.support.warm")
    interception: Interception = SystemCalls() if form == "system-calls" else FileLayer()
    answer = getattr(importlib.import_module(module), function)(interception, **json.loads(arguments))
    print(json.dumps(answer), flush=True)
    # Open files must not be closed while the interpreter, and the replaced file layer with it, shuts down.
    os._exit(0)


if __name__ == "__main__":
    _main()
