"""A user at a terminal: an interactive shell on a pseudo-terminal, with typed input and displayed output."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from tests.support.screen import Screen

PATIENCE_SECONDS = 120
# Makes standard input the controlling terminal, from which interrupts come.
_LEADS = (
    "import fcntl, os, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execvp('bash', ['bash', '--norc', '-i'])"
)
PROMPT = "typed> "

_T = TypeVar("_T")


class Shell:
    """A shell on its own terminal."""

    def __init__(self, folder: Path, environment: Mapping[str, str], width: int = 100, height: int = 30) -> None:
        self.screen = Screen(width, height)
        self._outer, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        self._process = subprocess.Popen(
            [sys.executable, "-c", _LEADS],
            cwd=folder,
            env={**environment, "TERM": "xterm", "PS1": PROMPT, "LANG": "C.UTF-8"},
            stdin=inner,
            stdout=inner,
            stderr=inner,
            start_new_session=True,
        )
        os.close(inner)
        self._output_start = 0

    def __enter__(self) -> Shell:
        self.prompted()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        # Programs in the shell receive a hangup signal.
        os.close(self._outer)

    @property
    def output(self) -> list[str]:
        """The lines below the last command."""
        return self.screen.lines[self._output_start :]

    def type(self, text: str) -> None:
        """Type *text* unchanged, such as a control character."""
        os.write(self._outer, text.encode())

    def run(self, command: str) -> None:
        """Type a command and Enter."""
        self._output_start = self.screen.row + 1
        self.type(f"{command}\n")

    def sees(self, pattern: str) -> re.Match[str]:
        """Read until a line below the last command matches *pattern*, and return the match."""
        return self._read_until(
            lambda: next(filter(None, (re.search(pattern, line) for line in self.output)), None), pattern
        )

    def _read_until(self, condition: Callable[[], _T | None], name: str) -> _T:
        """Read until *condition* returns something true, and return it."""
        patient_until = time.monotonic() + PATIENCE_SECONDS
        while not (found := condition()):
            left = patient_until - time.monotonic()
            assert left > 0, f"{name!r} was not shown: {self.screen.lines}"
            ready, _, _ = select.select([self._outer], [], [], left)
            if ready:
                self.screen.write(os.read(self._outer, 65_536).decode(errors="replace"))
        return found

    def prompted(self) -> list[str]:
        """Wait until the last command has ended; return its output on the screen.

        The prompt is the last line. A prompt with lines below it is from before the command: the shell writes another
        one if a key was pressed before it started the command.
        """
        self._read_until(lambda: bool(self._written()) and self._written()[-1] == PROMPT.rstrip(), "the prompt")
        return self._written()[:-1]

    def _written(self) -> list[str]:
        """The output without the empty lines that a live screen may have left below it."""
        lines = self.output
        while lines and not lines[-1]:
            lines.pop()
        return lines
