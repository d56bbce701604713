"""Stop a test's PostgreSQL server when no process uses it any more, however they ended.

Run as a program with the folder of the server, and others to remove with it. Each process that uses the server holds
a shared lock on a file in that folder, which the kernel releases when the process ends, even if it is killed. Uses
only the standard library.
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
    """Register this process as a user of the server in *folder*, for as long as the returned file is open.

    Raises `FileNotFoundError` if its last user has ended before.
    """
    descriptor = os.open(folder / "users", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    (folder / "users").stat()
    return descriptor


def let_go(descriptor: int) -> None:
    """Unregister this process."""
    os.close(descriptor)


def start(folder: Path, *beside: Path) -> subprocess.Popen[bytes]:
    """Start the program as a process that outlives this one."""
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
    """Let *process* outlive this one without a warning."""
    if process.poll() is None:
        process.returncode = 0


def watch(folder: Path, *beside: Path) -> None:
    """Wait until no process uses the server in *folder*, then stop it and remove its files, and those *beside*."""
    descriptor = os.open(folder / "users", os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    process = server_process(folder / "data")
    if process is not None:
        _end(process, folder / "data")
    for left in (folder, *beside):
        shutil.rmtree(left, ignore_errors=True)


def server_process(data: Path) -> int | None:
    """Return the process id of the server on the folder *data*, as stored there."""
    try:
        return int((data / "postmaster.pid").read_text().split("\n", 1)[0])
    except (OSError, ValueError):
        return None


def _end(process: int, data: Path) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGQUIT)
        until = time.monotonic() + STOP_SECONDS
        # It may remain as a zombie process, so its own status file counts as well.
        while server_process(data) == process and time.monotonic() < until:
            os.kill(process, 0)
            time.sleep(0.02)
        os.kill(process, signal.SIGKILL)


if __name__ == "__main__":
    watch(*map(Path, sys.argv[1:]))
