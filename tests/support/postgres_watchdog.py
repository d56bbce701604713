"""Ends a test's PostgreSQL server when nobody uses it any more, however they came to their end.

Run as a program with the server's folder, and others to remove with it. Whoever uses the server holds a shared lock on
a file in that folder, which the kernel lets go of when the process is gone, killed or not. Uses nothing but the
standard library.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

STOP_SECONDS = 10.0


def hold(folder: Path) -> int:
    """Say that this process uses the server in *folder*, for as long as the file returned is open.

    Raises `FileNotFoundError` if the last of its users was gone before.
    """
    descriptor = os.open(folder / "users", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    (folder / "users").stat()
    return descriptor


def watch(folder: Path, *beside: Path) -> None:
    """Wait until nobody uses the server in *folder*, then end it and remove all it had, and what is *beside*."""
    descriptor = os.open(folder / "users", os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    process = server_process(folder / "data")
    if process is not None:
        _end(process, folder / "data")
    for left in (folder, *beside):
        shutil.rmtree(left, ignore_errors=True)


def server_process(data: Path) -> int | None:
    """Return the process of the server on the folder *data*, as it says itself."""
    try:
        return int((data / "postmaster.pid").read_text().split("\n", 1)[0])
    except (OSError, ValueError):
        return None


def _end(process: int, data: Path) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGQUIT)
        until = time.monotonic() + STOP_SECONDS
        # It may stay on as a process that nobody waits for, so its word counts as well.
        while server_process(data) == process and time.monotonic() < until:
            os.kill(process, 0)
            time.sleep(0.02)
        os.kill(process, signal.SIGKILL)


if __name__ == "__main__":
    watch(*map(Path, sys.argv[1:]))
