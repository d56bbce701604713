"""Which file systems lock files only on paper."""

from __future__ import annotations

from pathlib import Path

_MOUNTS = Path("/proc/self/mountinfo")
_NETWORK = (
    *("nfs", "cifs", "smb", "9p", "afs", "ceph", "glusterfs", "lustre", "beegfs", "gpfs"),
    *("fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.glusterfs", "fuse.ceph", "fuse.rclone", "fuse.juicefs"),
)


def network_file_system(path: str) -> str | None:
    """Return the kind of the file system on which *path* lies if it is one over a network, else None."""
    kind = file_system(path)
    return kind if kind is not None and kind.startswith(_NETWORK) else None


def file_system(path: str) -> str | None:
    """Return the kind of the innermost mount above *path*, or None where the system does not tell."""
    try:
        lines = _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    best, kind = "", None
    for line in lines:
        left, _, right = line.partition(" - ")
        mounted = left.split()[4].encode().decode("unicode_escape")
        inside = mounted in {"/", path} or path.startswith(f"{mounted}/")
        # Of two mounts on one place the later one is seen.
        if inside and len(mounted) >= len(best):
            best, kind = mounted, right.split()[0]
    return kind
