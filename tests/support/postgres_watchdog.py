"""Ends a test's PostgreSQL server when nobody uses it any more, however they came to their end.

Run as a program with the folder of the server, and others to remove with it. Whoever uses the server holds a shared
lock on a file in that folder, which the kernel lets go of when the process is gone, killed or not. Uses nothing but
the standard library.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import signal
import subprocess
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


def let_go(descriptor: int) -> None:
    """Say that this process does not use it any more."""
    os.close(descriptor)


def start(folder: Path, *beside: Path) -> subprocess.Popen[bytes]:
    """Start the program beside this process, which it outlives."""
    started = subprocess.Popen(
        [sys.executable, "-I", __file__, str(folder), *map(str, beside)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
    )
    atexit.register(leave, started)
    return started


def leave(process: subprocess.Popen[bytes]) -> None:
    """Let *process* live on after this one without a warning that it does."""
    if process.poll() is None:
        process.returncode = 0


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
