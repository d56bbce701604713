"""The database file's path: resolved once, and checked each time a connection is opened."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import NamedTuple

from holdfast.domain.errors import InvalidInput, StoreUnreachable, UnsupportedStore

MEMORY = ":memory:"


def resolve_path(path: str) -> str:
    """Return *path* absolute and without symbolic links; the file need not exist. Nothing is opened.

    All files of the database, the log and the lock file, are beside its real path. A path resolved at each opening
    would name another file after `os.chdir`.
    """
    if path == MEMORY:
        return path
    try:
        return os.path.realpath(path)
    except FileNotFoundError as error:
        raise InvalidInput(
            "url", f"{path!r} is relative, and the current directory no longer exists; give an absolute path"
        ) from error


class Identity(NamedTuple):
    """The identity of a file, independent of its names."""

    device: int
    inode: int


def identity_of(path: str) -> Identity | None:
    """Return the identity of the file at *path*, None if there is no file."""
    try:
        status = os.stat(path)  # noqa: PTH116  # a path object costs more than the call
    except OSError:
        return None
    return Identity(status.st_dev, status.st_ino)


def check_path(path: str) -> bool:
    """Return whether there is a file at *path*; raise if it cannot hold a database."""
    if (now := os.path.realpath(path)) != path:
        raise StoreUnreachable(
            f"{path!r} now leads to {now!r}: it was replaced by a symbolic link after connect; call connect again"
        )
    try:
        status = os.stat(path)  # noqa: PTH116  # a path object adds nothing
    except FileNotFoundError:
        _check_directory(path)
        return False
    except OSError as error:
        raise StoreUnreachable(f"{path!r} cannot be opened ({error.strerror}); check the path") from error
    if not stat.S_ISREG(status.st_mode):
        kind = "a directory" if stat.S_ISDIR(status.st_mode) else "not a regular file"
        raise UnsupportedStore(f"{path!r} is {kind}; give the path of a SQLite file")
    if status.st_nlink > 1:
        raise UnsupportedStore(
            f"{path!r} has {status.st_nlink} hard links; processes that open it by different names do not share its"
            " log and lock file, and would destroy it. Remove the other links, or use a copy"
        )
    return True


def _check_directory(path: str) -> None:
    directory = Path(path).parent
    if not directory.is_dir():
        raise StoreUnreachable(f"the directory {str(directory)!r} does not exist; create it, or correct the path")
