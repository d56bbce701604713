"""Operating system calls for isolation: exit with the parent, memory limit, memory usage."""

import ctypes
import os
import resource
import sys
from pathlib import Path
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_STATM: Final = Path("/proc/self/statm")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")

supports_memory_limit: Final = sys.platform == "linux"
"""Whether the kernel enforces a limit on a process's writable memory."""


def exit_with_parent(parent: int, number: int) -> None:
    """Make the kernel send this process a signal when its parent exits; exit now if the parent is gone."""
    if sys.platform != "linux":
        # On other systems only the closed socket signals the parent's exit.
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)


def limit_memory(limit_bytes: int | None) -> None:
    """Set or remove the memory limit of this process.

    The limit counts private writable memory: the heap and anonymous mappings. It does not count the whole address
    space, of which libraries reserve far more than they use, nor read-only mapped files.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    soft = hard if limit_bytes is None else limit_bytes
    if resource.RLIM_INFINITY not in {hard, soft}:
        soft = min(soft, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def memory_bytes() -> int:
    """Return the resident memory of this process in bytes, or 0 if unknown."""
    try:
        return int(_STATM.read_bytes().split()[1]) * _PAGE_BYTES
    except OSError:
        return 0
