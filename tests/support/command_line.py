"""The command line in processes of its own, which are forked from one that has imported it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import holdfast
from tests.support.forked_python import ForkedPython

SOURCE = Path(holdfast.__file__).parents[1]
PATIENCE_SECONDS = 120


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


class Command(ForkedPython):
    """A running `holdfast` with *arguments*. A *leader* has standard input as its controlling terminal."""

    imports = ("tests.support.warm", "tests.support.warm_command_line")

    def __init__(self, *arguments: str, env: dict[str, str], leader: bool = False, **options: Any) -> None:
        super().__init__([sys.executable, "-m", "holdfast.cli", *arguments], env=env, leader=leader, **options)
