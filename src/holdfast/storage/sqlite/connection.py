"""Open connections to the file: check it, apply settings, migrate it."""

import errno
import os
import re
import sqlite3
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar
from urllib.parse import quote

from holdfast.domain import errors
from holdfast.domain.clock import Clock, Now
from holdfast.storage.migrations import not_migrated
from holdfast.storage.sqlite import fork_safety, lock_file, migrate as migrations, sql

T = TypeVar("T")

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
        raise errors.InvalidInput(
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
        raise errors.StoreUnreachable(
            f"{path!r} now leads to {now!r}: it was replaced by a symbolic link after connect; call connect again"
        )
    try:
        status = os.stat(path)  # noqa: PTH116  # a path object adds nothing
    except FileNotFoundError:
        _check_directory(path)
        return False
    except OSError as error:
        raise errors.StoreUnreachable(f"{path!r} cannot be opened ({error.strerror}); check the path") from error
    if not stat.S_ISREG(status.st_mode):
        kind = "a directory" if stat.S_ISDIR(status.st_mode) else "not a regular file"
        raise errors.UnsupportedStore(f"{path!r} is {kind}; give the path of a SQLite file")
    if status.st_nlink > 1:
        raise errors.UnsupportedStore(
            f"{path!r} has {status.st_nlink} hard links; processes that open it by different names do not share its"
            " log and lock file, and would destroy it. Remove the other links, or use a copy"
        )
    return True


def _check_directory(path: str) -> None:
    directory = Path(path).parent
    if not directory.is_dir():
        raise errors.StoreUnreachable(
            f"the directory {str(directory)!r} does not exist; create it, or correct the path"
        )


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


BUSY_SECONDS = 10.0
_OLDEST_SQLITE = (3, 37, 0)  # strict tables
_STATEMENTS_KEPT = 256


class SqliteConnector:
    """Opens connections to the database at *path*, a real path; its clock is known once one is open."""

    def __init__(self, path: str, *, relaxed: bool, migrates: bool, network_files: bool, clock: Clock | None) -> None:
        self.path = path
        self.in_memory = path == MEMORY
        self.applied: list[str] = []
        """The migrations that the newest connection applied."""
        self._relaxed = relaxed
        self._migrates = migrates
        self._network_files = network_files
        self._clock = clock
        self._injected_clock = clock
        self._identity: Identity | None = None
        """The identity of the file opened first; all later connections must be to the same file."""

    @property
    def clock(self) -> Clock:
        """The store's clock; requires that a connection was opened before."""
        assert self._clock is not None  # noqa: S101  # opening sets it
        return self._clock

    # --- connections -----------------------------------------------------------------------------------------------

    def writing_connection(self) -> sqlite3.Connection:
        """Return a read-write connection to a database whose schema is current.

        It waits only `CHECK_SECONDS` for a lock of another program; the caller repeats the call.
        """
        self._check_location()
        self._refuse_read_only()
        connection = self._connect(self.path, busy_seconds=lock_file.CHECK_SECONDS)
        try:
            self._refuse_foreign(connection)
            _use_wal(connection)
            connection.execute(f"pragma wal_autocheckpoint = {CHECKPOINT_PAGES}")
            connection.execute(f"pragma journal_size_limit = {LOG_BYTES_LONG}")
            self.applied = migrations.migrate(connection)
            self._clock = self._injected_clock or _file_clock(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def reading_connection(self) -> sqlite3.Connection | None:
        """Return a read-only connection, or None if the file must be created or written first.

        It waits only `CHECK_SECONDS` for a lock of another program, and so does each of its statements; the caller
        repeats them.
        """
        self._check_location()
        if not self._exists() and self._writable():
            return None
        path, uri = (self.path, False) if self._writable() else (_read_only(self.path), True)
        connection = self._connect(path, uri=uri, busy_seconds=lock_file.CHECK_SECONDS)
        try:
            if migrations.pending(connection) or not self._load_clock(connection):
                self._refuse_foreign(connection)
                connection.close()
                return None
            connection.execute("pragma query_only = 1")
        except BaseException:
            connection.close()
            raise
        return connection

    def read_clock(self) -> Clock:
        """Return the clock without writing: the caller's own transaction may block all other writers."""
        if self._clock is None:
            self._check_location()
            if not self._exists():
                raise errors.SchemaMismatch(f"there is no file {self.path!r}; call queue.migrate() before you begin")
            connection = self._connect(self.path)
            try:
                if migrations.pending(connection):
                    raise errors.SchemaMismatch(
                        "this database has no current schema; call queue.migrate() before you begin"
                    )
                if not self._load_clock(connection):
                    raise errors.Misconfigured(
                        "the file has not been used since this machine started; call queue.migrate() before you begin"
                    )
            finally:
                connection.close()
        return self.clock

    def open_lock_file(self) -> lock_file.LockFile:
        """Open the lock file; it is created only if this store can use the database.

        It waits only `CHECK_SECONDS` for a lock of another program; the caller repeats the call.
        """
        self._check_location()
        self._refuse_read_only()
        try:
            try:
                return lock_file.LockFile(self.path, create=False)
            except FileNotFoundError:
                self._make_database()
                return lock_file.LockFile(self.path)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise errors.StoreFull(f"the disk is full; nothing was stored ({error})") from error
            raise errors.StoreUnreachable(
                f"the lock file cannot be opened ({error}); users who write the database must be able to write its"
                " lock file: check the permissions of both, or delete the lock file while no process uses the queue"
            ) from error

    def _make_database(self) -> None:
        """Create an empty database if there is no file; raise if there is one that cannot be used."""
        connection = self._connect(self.path, busy_seconds=lock_file.CHECK_SECONDS)
        try:
            self._refuse_foreign(connection)
        finally:
            connection.close()

    # --- file identity ---------------------------------------------------------------------------------------------

    def check_unmoved(self) -> None:
        """Raise if the opened file is no longer the one at its path: writes would be lost."""
        if self._identity is None:
            return
        try:
            status = os.stat(self.path)  # noqa: PTH116  # a path object costs more than the call
        except OSError:
            status = None
        if status is None or (status.st_dev, status.st_ino) != self._identity:
            raise errors.StoreUnreachable(
                f"{self.path!r} was deleted, moved or replaced while this queue was open, and nothing was stored. Put"
                " the file back; or stop all processes that use it, delete the -wal and -shm files of the old"
                " database if you have replaced it, and start them again"
            )

    def forget_file(self) -> None:
        """Let the next connection open any file at the path."""
        self._identity = None

    def _connect(self, path: str, *, uri: bool = False, busy_seconds: float = BUSY_SECONDS) -> sqlite3.Connection:
        connection = sqlite3.connect(
            path,
            timeout=busy_seconds,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=_STATEMENTS_KEPT,
            uri=uri,
        )
        try:
            connection.execute(f"pragma synchronous = {'normal' if self._relaxed else 'full'}")
            self._refuse_encoding(connection)
            if not self.in_memory:
                self._identity = self._identity or identity_of(self.path)
                self.check_unmoved()
        except BaseException:
            connection.close()
            raise
        return connection

    def _load_clock(self, connection: sqlite3.Connection) -> bool:
        self._clock = self._clock or stored_clock(connection)
        return self._clock is not None

    # --- checks ----------------------------------------------------------------------------------------------------

    def _check_location(self) -> None:
        if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
            needed = ".".join(map(str, _OLDEST_SQLITE))
            raise errors.UnsupportedStore(
                f"this Python links SQLite {sqlite3.sqlite_version}; {needed} or later is needed"
            )
        if self.in_memory:
            return
        fork_safety.refuse_unusable(self.path)
        self.check_unmoved()
        if not check_path(self.path) and not self._migrates:
            raise errors.StoreUnreachable(f"there is no file {self.path!r}, and this queue does not create one")
        # A file that was opened before has not moved, so it is on the same file system.
        checked = self._network_files or self._identity is not None
        if not checked and (kind := network_file_system(self.path)):
            raise errors.UnsupportedStore(
                f"{self.path!r} is on a network file system ({kind}), where file locks are unreliable;"
                " move it to a local disk, or connect with network_files=True at your own risk"
            )

    def _exists(self) -> bool:
        return Path(self.path).exists()

    def _refuse_read_only(self) -> None:
        """Raise if the permissions of the file or its folder do not allow to write."""
        if self._writable():
            return
        check = f"check the permissions of the folder {str(Path(self.path).parent)!r}"
        if not self._exists():
            raise errors.ReadOnlyStore(f"{self.path!r} cannot be created; {check}")
        if os.access(self.path, os.W_OK):
            raise errors.ReadOnlyStore(f"{self.path!r} cannot be written: SQLite needs files beside it; {check}")
        may = "can be read but not written" if os.access(self.path, os.R_OK) else "cannot be read or written"
        raise errors.ReadOnlyStore(f"{self.path!r} {may}; check its owner and its permissions")

    def _writable(self) -> bool:
        if self.in_memory:
            return True
        writable = os.access(Path(self.path).parent, os.W_OK)
        return writable and (not self._exists() or os.access(self.path, os.W_OK))

    def _refuse_encoding(self, connection: sqlite3.Connection) -> None:
        """Raise for UTF-16, in which SQLite sorts text differently, which would change the claim order."""
        [encoding] = connection.execute("pragma encoding").fetchone()
        if encoding != "UTF-8":
            raise errors.UnsupportedStore(
                f"{self.path!r} is encoded in {encoding}, and Holdfast needs UTF-8; use another file, or convert this"
                " one with `sqlite3 OLD .dump | sqlite3 NEW`"
            )

    def _refuse_foreign(self, connection: sqlite3.Connection) -> None:
        if not self._migrates and (missing := migrations.pending(connection)):
            raise not_migrated(missing, "Holdfast schema")


def wait_while_busy(call: Callable[[], T], interrupted: Callable[[], bool]) -> T:
    """Return the result of *call*, which raises soon if another program has locked the file, and is repeated.

    SQLite's own wait for a lock cannot be interrupted, so it is short. In between Python handles signals, and this
    function raises `StoreBusy` if the caller is *interrupted*.
    """
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            return call()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline:
                raise
            if interrupted():
                raise errors.StoreBusy(lock_file.INTERRUPTED) from error


def _read_only(path: str) -> str:
    """Return the URI that opens a file read-only.

    Without a log nothing is writing, and the file can be read without creating the files that a log needs.
    """
    unlogged = not Path(f"{path}-wal").exists()
    return f"file:{quote(os.fsencode(path))}?mode=ro{'&immutable=1' if unlogged else ''}"


def _use_wal(connection: sqlite3.Connection) -> None:
    """Switch to the write-ahead log. SQLite does not wait for a lock here by itself, so this function does."""
    deadline = time.monotonic() + lock_file.CHECK_SECONDS
    while True:
        try:
            connection.execute("pragma journal_mode = wal")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.005)
        else:
            return


def _file_clock(connection: sqlite3.Connection) -> Clock:
    clock = stored_clock(connection)
    if clock is None:
        connection.execute("begin immediate")
        set_clock(connection)
        connection.execute("commit")
        clock = stored_clock(connection)
    assert clock is not None  # noqa: S101  # it was set above
    return clock


CHECKPOINT_PAGES = 1_000


LOG_BYTES_LONG = 16 << 20
"""From this length on, a commit waits for readers so that the log can be truncated."""


_CHECKPOINT_TIMEOUT_MS = 50


def trim_log(connection: sqlite3.Connection, path: str) -> None:
    """Truncate a long log if readers permit it. Requires the write lock and no open transaction."""
    try:
        size = os.stat(f"{path}-wal").st_size  # noqa: PTH116  # a path object costs more than the call
    except OSError:
        return
    if size < LOG_BYTES_LONG:
        return
    [busy_timeout_ms] = connection.execute("pragma busy_timeout").fetchone()
    try:
        connection.execute(f"pragma busy_timeout = {_CHECKPOINT_TIMEOUT_MS}")
        connection.execute("pragma wal_checkpoint(truncate)").fetchall()
    except sqlite3.OperationalError:
        # A reader prevents it. The next commit tries again.
        pass
    finally:
        connection.execute(f"pragma busy_timeout = {busy_timeout_ms}")


_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def _boot() -> str | None:
    """Return the identifier of this boot, or None if the system does not provide one."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return None


# The constructor of a frozen dataclass sets each field by name, in three times as long; every call reads the clock.
_new = object.__new__
_set_wall_ms, _set_lease_ms = (getattr(Now, name).__set__ for name in ("wall_ms", "lease_ms"))


class SystemClock:
    """The clock of one database file on this machine. Without a boot identifier, leases use the wall clock."""

    def __init__(self, lease_offset_ms: int | None) -> None:
        self._lease_offset_ms = lease_offset_ms
        self._last = Now(0, 0)

    def now(self) -> Now:
        """Return the time of both clocks."""
        lease_ms = wall_ms = time.time_ns() // 1_000_000
        if self._lease_offset_ms is not None:
            lease_ms = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000 + self._lease_offset_ms
        now = self._last
        if now.wall_ms != wall_ms or now.lease_ms != lease_ms:
            now = _new(Now)
            _set_wall_ms(now, wall_ms)
            _set_lease_ms(now, lease_ms)
            self._last = now
        return now


def boot_time_ms() -> int:
    """Return the milliseconds since boot, including sleep."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def stored_clock(connection: sqlite3.Connection) -> SystemClock | None:
    """Return the clock that the file stores for this boot, if any."""
    boot = _boot()
    if boot is None or not hasattr(time, "CLOCK_BOOTTIME"):
        return SystemClock(None)
    known = connection.execute(sql.QUERIES["clock_read"]).fetchone()
    remembered, _, offset = known[0].partition(" ") if known else ("", "", "")
    return SystemClock(int(offset)) if remembered == boot else None


def set_clock(connection: sqlite3.Connection) -> None:
    """Start the lease clock for this boot, unless another process has; requires an open write transaction."""
    if stored_clock(connection) is None:
        [latest] = connection.execute(sql.QUERIES["clock_latest_lease"]).fetchone()
        offset_ms = max(time.time_ns() // 1_000_000, latest + 1) - boot_time_ms()
        connection.execute(sql.QUERIES["clock_write"], {"value": f"{_boot()} {offset_ms}"})
