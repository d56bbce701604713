"""Detect network file systems, whose file locks are unreliable."""

from __future__ import annotations

import os
import re
from pathlib import Path

_MOUNTS = Path("/proc/self/mountinfo")
_ESCAPED = re.compile(rb"\\([0-3][0-7]{2})")
_NETWORK = (
    *("nfs", "cifs", "smb", "9p", "afs", "ceph", "glusterfs", "lustre", "beegfs", "gpfs"),
    *("fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.glusterfs", "fuse.ceph", "fuse.rclone", "fuse.juicefs"),
)


def network_file_system(path: str) -> str | None:
    """Return the type of the file system of *path* if it is a network file system, else None."""
    kind = file_system(path)
    return kind if kind is not None and kind.startswith(_NETWORK) else None


def file_system(path: str) -> str | None:
    """Return the type of the innermost mount above *path*, or None if the system does not provide it."""
    try:
        lines = _MOUNTS.read_bytes().split(b"\n")
    except OSError:
        return None
    # Compared as bytes: a mount point may be in any encoding.
    name = os.fsencode(path)
    best, kind = b"", None
    for line in lines:
        left, separator, right = line.partition(b" - ")
        if not separator:
            continue
        mounted = _ESCAPED.sub(lambda found: bytes([int(found[1], 8)]), left.split(b" ")[4])
        inside = mounted in {b"/", name} or name.startswith(mounted + b"/")
        # Of two mounts on the same directory the later one is visible.
        if inside and len(mounted) >= len(best):
            best, kind = mounted, right.split(b" ")[0].decode(errors="replace")
    return kind
