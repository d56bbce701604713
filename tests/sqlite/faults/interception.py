"""Interception between SQLite and its files, in the process under test: to record, to kill, to let calls fail.

There are two forms. `system-calls` is a small preloaded C library that sees the calls that reach the kernel,
including those on the lock file. `file-layer` replaces functions of SQLite's own file layer and needs neither
compiler nor tool. Both write the same log and take the same commands.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import struct
import subprocess
from enum import IntEnum, IntFlag
from functools import cache
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

Form: TypeAlias = Literal["system-calls", "file-layer"]
FORMS: tuple[Form, ...] = ("system-calls", "file-layer")

HEADER = struct.Struct("<cIQI")
"""Of each record: what was done, how long the path is, where, and how many bytes follow the path."""


class Call(IntFlag):
    """The intercepted file operations."""

    WRITE = 1
    SYNC = 2
    TRUNCATE = 4
    UNLINK = 8
    CREATE = 16
    CHANGE = 31
    READ = 32
    OPEN = 64


class Action(IntEnum):
    """The action on the selected call."""

    KILL_BEFORE = 1
    KILL_AFTER = 2
    FAIL = 3


class Interception(Protocol):
    """The interface of both forms."""

    def watch(self, folder: str) -> None:
        """Intercept the files of *folder* from now on."""

    def record(self, log: str) -> None:
        """Append each call that succeeded to the file *log*."""

    def note(self, text: str) -> None:
        """Append a note of the process itself to the log."""

    def arm(
        self,
        calls: Call,
        action: Action,
        at: int,
        *,
        error: int = errno.EIO,
        times: int = 1,
        suffix: str = "",
    ) -> None:
        """Do *action* to the *at*-th of *calls* from now and to those after it, *times* in all (-1: no limit)."""

    def disarm(self) -> int:
        """Let every call pass again; return how many were counted."""


class SystemCalls:
    """Controls the library preloaded into this process."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None)

    def watch(self, folder: str) -> None:
        self._library.holdfast_watch(os.fsencode(folder))

    def record(self, log: str) -> None:
        self._library.holdfast_record(os.fsencode(log))

    def note(self, text: str) -> None:
        self._library.holdfast_note(text.encode())

    def arm(
        self,
        calls: Call,
        action: Action,
        at: int,
        *,
        error: int = errno.EIO,
        times: int = 1,
        suffix: str = "",
    ) -> None:
        self._library.holdfast_arm(int(calls), suffix.encode(), at, int(action), error, times)

    def disarm(self) -> int:
        seen: int = self._library.holdfast_seen()
        self._library.holdfast_arm(0, b"", 0, 0, 0, 0)
        return seen


# --- preparing the process under test ------------------------------------------------------------------------------


@cache
def compiler() -> str | None:
    """Return a C compiler, if this machine has one."""
    return next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None)


@cache
def _preloaded(folder: str) -> str:
    source = Path(__file__).with_name("system_calls.c")
    library = Path(folder) / "system_calls.so"
    command = [str(compiler()), "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True, timeout=60)
    return str(library)


def environment(form: Form, folder: Path) -> dict[str, str]:
    """Return the environment variables of a process for *form*; compiled files go into *folder*."""
    return {"LD_PRELOAD": _preloaded(str(folder))} if form == "system-calls" else {}
