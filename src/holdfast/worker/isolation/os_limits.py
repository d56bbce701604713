"""What isolation asks of the kernel: an end that comes with the parent's, a limit of memory, how much is used."""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from pathlib import Path
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_STATM: Final = Path("/proc/self/statm")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")

limits_memory: Final = sys.platform == "linux"
"""Whether the kernel holds a process to a limit on what it may write to."""


def end_with(parent: int, number: int) -> None:
    """Let the kernel send this process a signal once its parent, which may be gone already, ends."""
    if sys.platform != "linux":
        # There the end of the parent is noticed by its socket alone.
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)


def limit_memory(limit_bytes: int | None) -> None:
    """Bound the memory of this process, or lift the bound.

    Counted is what is private and can be written to: the heap, and anonymous mappings. Not the whole address space,
    of which libraries reserve far more than they use, and not files that are only read.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    soft = hard if limit_bytes is None else limit_bytes
    if resource.RLIM_INFINITY not in {hard, soft}:
        soft = min(soft, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def memory_bytes() -> int:
    """Return how much memory this process has in use, or 0 where that is not known."""
    try:
        return int(_STATM.read_bytes().split()[1]) * _PAGE_BYTES
    except OSError:
        return 0
