"""Places with a nature of their own: a small disk, a disk that turns read-only, a folder that others may enter."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

# Where files are kept in memory; None for the usual place.
QUICK_PLACE = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@contextmanager
def small_disk(place: Path, size: str, reason: str) -> Iterator[Path]:
    """Give a file system of its own of *size*, or skip with *reason* where none can be mounted."""
    place.mkdir()
    mount = shutil.which("mount")
    words = [str(mount), "-t", "tmpfs", "-o", f"size={size},mode=755", "tmpfs", str(place)]
    if mount is None or os.geteuid() != 0 or subprocess.run(words, check=False, capture_output=True).returncode != 0:
        pytest.skip(f"NO FILE SYSTEM CAN BE MOUNTED HERE (root is needed): {reason}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def turn_read_only(place: Path) -> None:
    """Let nobody, not even root, write to a mounted place from now on."""
    subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)


@contextmanager
def quick_folder() -> Iterator[Path]:
    """Give a folder for files that no power cut has to spare: in memory, if the machine has a place for that.

    To sync a file costs nothing there. Tests of faults use real disks.
    """
    with tempfile.TemporaryDirectory(prefix="holdfast-", dir=QUICK_PLACE, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@contextmanager
def open_folder() -> Iterator[Path]:
    """Give a folder that every user may enter, unlike those that pytest makes."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
