"""Translate errors of SQLite to Holdfast's errors. Driver errors are translated only here."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.domain.errors import (
    HoldfastError,
    ReadOnlyStore,
    SchemaMismatch,
    StoreBusy,
    StoreDamaged,
    StoreFull,
    StoreUnreachable,
    UnsupportedStore,
)

_BY_CODE: dict[int, type[HoldfastError]] = {
    sqlite3.SQLITE_BUSY: StoreBusy,
    sqlite3.SQLITE_LOCKED: StoreBusy,
    sqlite3.SQLITE_FULL: StoreFull,
    sqlite3.SQLITE_READONLY: ReadOnlyStore,
    sqlite3.SQLITE_PERM: StoreUnreachable,
    sqlite3.SQLITE_CANTOPEN: StoreUnreachable,
    sqlite3.SQLITE_IOERR: StoreUnreachable,
    sqlite3.SQLITE_CORRUPT: StoreDamaged,
    sqlite3.SQLITE_NOTADB: UnsupportedStore,
}
_HINTS: dict[type[HoldfastError], str] = {
    StoreBusy: "other writers held the file for too long; try again",
    StoreFull: "the disk is full; nothing was stored",
    ReadOnlyStore: "the file can be read but not written; check its permissions and those of its folder",
    StoreUnreachable: "the file cannot be opened, read or written; check that its folder exists",
    UnsupportedStore: "the file is not a SQLite database, or is encrypted; check the path",
    StoreDamaged: "the file is not a valid SQLite database; restore it from a backup",
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
        return SchemaMismatch(f"this database has no Holdfast schema; open it with holdfast.connect first ({error})")
    return error
