"""Translate errors of SQLite to Holdfast's errors. Driver errors are translated only here."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.domain import errors

_BY_CODE: dict[int, type[errors.HoldfastError]] = {
    sqlite3.SQLITE_BUSY: errors.StoreBusy,
    sqlite3.SQLITE_LOCKED: errors.StoreBusy,
    sqlite3.SQLITE_FULL: errors.StoreFull,
    sqlite3.SQLITE_READONLY: errors.ReadOnlyStore,
    sqlite3.SQLITE_PERM: errors.StoreUnreachable,
    sqlite3.SQLITE_CANTOPEN: errors.StoreUnreachable,
    sqlite3.SQLITE_IOERR: errors.StoreUnreachable,
    sqlite3.SQLITE_CORRUPT: errors.StoreDamaged,
    sqlite3.SQLITE_NOTADB: errors.UnsupportedStore,
}
_HINTS: dict[type[errors.HoldfastError], str] = {
    errors.StoreBusy: "other writers held the file for too long; try again",
    errors.StoreFull: "the disk is full; nothing was stored",
    errors.ReadOnlyStore: "the file can be read but not written; check its permissions and those of its folder",
    errors.StoreUnreachable: "the file cannot be opened, read or written; check its folder and permissions",
    errors.UnsupportedStore: "the file is not a SQLite database, or is encrypted; check the path",
    errors.StoreDamaged: "the file is not a valid SQLite database; restore it from a backup",
}


@contextmanager
def translated() -> Iterator[None]:
    """Translate driver errors raised within the block to Holdfast's errors."""
    try:
        yield
    except sqlite3.Error as error:
        raise translate(error) from error


def translate(error: Exception) -> Exception:
    """Return the error to raise for *error*: itself if it is not a driver error, or is a programming error."""
    code = getattr(error, "sqlite_errorcode", None)
    found = None if code is None else _BY_CODE.get(code & 0xFF)
    if found is not None:
        return found(f"{_HINTS[found]} ({error})")
    if "no such table: holdfast_" in str(error) or "no such view: holdfast_" in str(error):
        return errors.SchemaMismatch(
            f"this database has no Holdfast schema; open it with holdfast.connect first ({error})"
        )
    return error
