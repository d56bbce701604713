"""Inspection of processes: children, open files and memory."""

from __future__ import annotations

import os
from pathlib import Path

from tests.chaos.threads import wait_until
from tests.support import forked_python


def is_gone(process: int) -> bool:
    """Return whether the process does not exist or is a zombie."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return True
    return stat.rpartition(")")[2].split()[0] in "ZX"


def isolated(process: int) -> set[int]:
    """Return the running fork server and isolated processes that descend from *process*."""
    return {found for found in _descendants(process) - forked_python.servers if _is_ours(found)}


def _is_ours(process: int) -> bool:
    try:
        return b"holdfast.worker.isolation" in Path(f"/proc/{process}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def _descendants(process: int) -> set[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and not is_gone(int(entry.name)):
            try:
                stat = (entry / "stat").read_text(encoding="utf-8", errors="replace")
            except (FileNotFoundError, ProcessLookupError):
                continue
            children.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(entry.name))
    found: set[int] = set()
    left = [process]
    while left:
        new = [child for child in children.get(left.pop(), []) if child not in found]
        found.update(new)
        left += new
    return found


def open_files(process: int) -> int:
    """Return the number of open files of the process."""
    return len(list(Path(f"/proc/{process}/fd").iterdir()))


def memory_bytes(process: int) -> int:
    """Return the memory usage of the process."""
    pages = int(Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def marked(place: Path) -> int:
    """Wait until a handler has written its pid to *place* and return the pid."""
    wait_until(place.exists)
    return int(place.read_text(encoding="utf-8"))
