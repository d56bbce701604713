"""A worker started by its command line; the tests read the output of the worker and its handlers."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.command_line import PATIENCE_SECONDS, Command, environment

APP = '''
import json
import os
import time
from pathlib import Path

import holdfast
from holdfast import AsyncSessionContext, Context

queue = holdfast.connect("jobs.db")


def say(**arguments: object) -> None:
    os.write(1, (json.dumps(arguments) + "\\n").encode())


@queue.task("add")
def add(one: int, other: int) -> int:
    return one + other


@queue.task("hold", max_attempts=3)
def hold(context: Context) -> str:
    """Report the process, and run until the file `go` exists, even if cancelled."""
    say(handler="hold", process=os.getpid(), attempt=context.attempt)
    while not Path("go").exists():
        time.sleep(0.01)
    return "held"


@queue.task("talk", max_attempts=3)
def talk() -> None:
    """Print, and count it in the file `said`, until the file `go` exists."""
    while not Path("go").exists():
        with open("said", "ab") as said:
            said.write(b".")
        say(handler="talk")
        time.sleep(0.01)


@queue.session_task("chat.message", join=True)
async def answer(context: AsyncSessionContext[str], messages: list[str]) -> list[str]:
    return messages + await context.checkpoint()
'''


def write_app(folder: Path, text: str = APP) -> None:
    """Write the module `app` that workers in *folder* run."""
    (folder / "app.py").write_text(text, encoding="utf-8")


class RunningWorker:
    """A running worker; its output streams are read as one."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.process = Command(
            "worker",
            "app:queue",
            *arguments,
            cwd=folder,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []
        self._rest = ""

    def line(self, matches: Callable[[str], bool]) -> str:
        """Return the next line that matches; fail if the output ends first."""
        while (line := self._next_line()) is not None:
            self.lines.append(line)
            if matches(line):
                return line
        raise AssertionError(f"the output ended without a match: {self.lines}")

    def document(self, **expected: Any) -> dict[str, Any]:
        """Return the next JSON object with these values."""
        found: dict[str, Any] = json.loads(self.line(lambda line: _matches(line, expected)))
        return found

    def prints(self, text: str) -> str:
        """Return the next line with *text* in it."""
        return self.line(lambda line: text in line)

    def read_to_the_end(self) -> None:
        """Read until the process and its children have exited."""
        while (line := self._next_line()) is not None:
            self.lines.append(line)

    def finish(self) -> int:
        """Return the exit code after the process and its children have exited."""
        self.read_to_the_end()
        return self.process.wait(timeout=PATIENCE_SECONDS)

    def _next_line(self) -> str | None:
        assert self.process.stdout is not None
        descriptor = self.process.stdout.fileno()
        while "\n" not in self._rest:
            ready, _, _ = select.select([descriptor], [], [], PATIENCE_SECONDS)
            assert ready, f"nothing more came after {self.lines}"
            part = os.read(descriptor, 65_536).decode()
            if not part:
                return None
            self._rest += part
        line, _, self._rest = self._rest.partition("\n")
        return line


@contextmanager
def running(folder: Path, *arguments: str) -> Iterator[RunningWorker]:
    """Run a worker for a block and kill it afterwards."""
    worker = RunningWorker(folder, *arguments)
    try:
        yield worker
    finally:
        # Its children notice and exit too.
        worker.process.kill()
        worker.process.wait()
        assert worker.process.stdout is not None
        worker.process.stdout.close()


class WorkerOnTerminal:
    """A worker on a pseudo-terminal, to which tests write input."""

    def __init__(self, folder: Path, *arguments: str, kind: str = "xterm") -> None:
        self._screen, inner = pty.openpty()
        self.process = Command(
            "worker",
            "app:queue",
            *arguments,
            cwd=folder,
            env=environment(TERM=kind, COLUMNS="100", LINES="24"),
            stdin=inner,
            stdout=inner,
            stderr=inner,
            leader=True,
        )
        os.close(inner)
        self.seen = ""
        self._closed = False

    def read_until(self, expected: str) -> None:
        """Read until *expected* has been printed."""
        patient_until = time.monotonic() + PATIENCE_SECONDS
        while expected not in self.seen:
            part = self._part()
            # The screen is redrawn periodically, so the output never stops; check the time too.
            assert part, f"{expected!r} is not in {self.seen!r}"
            assert time.monotonic() < patient_until, f"{expected!r} is not in {self.seen!r}"

    def type(self, text: str) -> None:
        """Type *text*, which may be a control character."""
        os.write(self._screen, text.encode())

    def finish(self) -> int:
        """Return the exit code after the process and its children have exited."""
        while self._part():
            pass
        return self.process.wait(timeout=PATIENCE_SECONDS)

    def hang_up(self) -> None:
        """Close the terminal."""
        self._closed = True
        os.close(self._screen)

    def close(self) -> None:
        """Kill the process if it is still running."""
        self.process.kill()
        self.process.wait()
        if not self._closed:
            os.close(self._screen)

    def _part(self) -> str:
        ready, _, _ = select.select([self._screen], [], [], PATIENCE_SECONDS)
        assert ready, f"nothing more came after {self.seen!r}"
        try:
            part = os.read(self._screen, 65_536).decode(errors="replace")
        except OSError:  # on Linux: the other end was closed
            part = ""
        self.seen += part
        return part


@contextmanager
def on_terminal(folder: Path, *arguments: str, kind: str = "xterm") -> Iterator[WorkerOnTerminal]:
    """Run a worker on a terminal of this kind for a block and kill it afterwards."""
    worker = WorkerOnTerminal(folder, *arguments, kind=kind)
    try:
        yield worker
    finally:
        worker.close()


def _matches(line: str, expected: dict[str, Any]) -> bool:
    try:
        found = json.loads(line)
    except ValueError:
        return False
    return isinstance(found, dict) and found.items() >= expected.items()
