"""Special file systems: a small disk, a disk that becomes read-only, a folder that other users may enter."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_MEMORY = Path("/dev/shm")
# For the files of tests and the servers of eight processes.
_BYTES_NEEDED = 4 << 30


def _memory_folder() -> str | None:
    is_usable = os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > _BYTES_NEEDED
    return str(_MEMORY) if is_usable else None


# A folder on a file system in memory that is large enough for a run; None for the default.
MEMORY_FOLDER = _memory_folder()


@contextmanager
def small_disk(place: Path, size: str, reason: str) -> Iterator[Path]:
    """Yield a separate file system of *size*, or skip with *reason* if none can be mounted."""
    place.mkdir()
    mount = shutil.which("mount")
    arguments = [str(mount), "-t", "tmpfs", "-o", f"size={size},mode=755", "tmpfs", str(place)]
    if (
        mount is None
        or os.geteuid() != 0
        or subprocess.run(arguments, check=False, capture_output=True).returncode != 0
    ):
        pytest.skip(f"NO FILE SYSTEM CAN BE MOUNTED HERE (root is needed): {reason}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def turn_read_only(place: Path) -> None:
    """Make a mounted file system read-only for all users, including root."""
    subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)


@contextmanager
def quick_folder() -> Iterator[Path]:
    """Yield a folder for files that need not survive a power cut: in memory, if the machine provides that.

    Syncing a file is free there. Tests of faults use real disks.
    """
    with tempfile.TemporaryDirectory(prefix="holdfast-", dir=MEMORY_FOLDER, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@contextmanager
def open_folder() -> Iterator[Path]:
    """Yield a folder that every user may enter, unlike those of pytest."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
