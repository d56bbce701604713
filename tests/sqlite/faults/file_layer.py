"""The form of interception without requirements: functions in SQLite's file layer, installed with ctypes.

Only the functions that write the database and its log are replaced, in the library that the `sqlite3` module of this
process uses. All calls are passed on to the original functions.
"""

from __future__ import annotations

import _sqlite3
import ctypes
import errno
import os
import signal
import threading
from pathlib import Path
from typing import Any, ClassVar

from tests.sqlite.faults.interception import HEADER, Action, Call

_OK, _FULL, _CANNOT_OPEN = 0, 13, 14
# SQLite's own error code for a failure of each call.
_CODES = {
    Call.READ: 10 | 1 << 8,
    Call.WRITE: 10 | 3 << 8,
    Call.SYNC: 10 | 4 << 8,
    Call.TRUNCATE: 10 | 6 << 8,
    Call.UNLINK: 10 | 10 << 8,
    Call.CREATE: _CANNOT_OPEN,
    Call.OPEN: _CANNOT_OPEN,
}

# Names are passed as addresses: SQLite keeps the pointer, which must not become that of a copy.
_Open = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p
)
_Delete = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)
_Write = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int64)
_Truncate = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int64)
_Sync = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)


class _Layer(ctypes.Structure):
    """The head of `sqlite3_vfs`."""

    _fields_: ClassVar = [
        ("version", ctypes.c_int),
        ("file_size", ctypes.c_int),
        ("path_max", ctypes.c_int),
        ("next", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("data", ctypes.c_void_p),
        ("open", _Open),
        ("delete", _Delete),
    ]


class _Methods(ctypes.Structure):
    """`sqlite3_io_methods`, of which only a few are used."""

    _fields_: ClassVar = [
        ("version", ctypes.c_int),
        ("close", ctypes.c_void_p),
        ("read", _Write),
        ("write", _Write),
        ("truncate", _Truncate),
        ("sync", _Sync),
        ("others", ctypes.c_void_p * 13),
    ]


def _library() -> ctypes.CDLL:
    """Return the SQLite library that the `sqlite3` module uses: a shared library, or part of the module."""
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    found = [line.split(maxsplit=5)[5] for line in maps if "libsqlite3" in line]
    return ctypes.CDLL(found[0] if found else _sqlite3.__file__)


class FileLayer:
    """Intercepts the file operations of SQLite in this process."""

    def __init__(self) -> None:
        self._folder = "\0"
        self._log: int | None = None
        self._paths: dict[int, str] = {}
        self._unsynced_names: set[str] = set()
        self._armed: tuple[Call, Action, int, int, int, str] | None = None
        self._seen = 0
        self._mutex = threading.Lock()
        self._methods: dict[int, _Methods] = {}
        self._kept: list[Any] = []

    # --- commands --------------------------------------------------------------------------------------------------

    def watch(self, folder: str) -> None:
        self._folder = folder
        # Only now: a connection that is closed while the interpreter ends must not call functions of Python.
        if not self._kept:
            self._install()

    def record(self, log: str) -> None:
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def note(self, text: str) -> None:
        self._append(b"N", text)

    def arm(
        self,
        calls: Call,
        action: Action,
        at: int,
        *,
        error: int = errno.EIO,
        times: int = 1,
        suffix: str = "",
    ) -> None:
        self._seen = 0
        self._armed = (calls, action, at, error, times, suffix)

    def disarm(self) -> int:
        self._armed = None
        return self._seen

    # --- installation ----------------------------------------------------------------------------------------------

    def _install(self) -> None:
        find = _library().sqlite3_vfs_find
        find.restype = ctypes.POINTER(_Layer)
        layer = find(None).contents
        self._open_original = _Open(ctypes.cast(layer.open, ctypes.c_void_p).value or 0)
        self._delete_original = _Delete(ctypes.cast(layer.delete, ctypes.c_void_p).value or 0)
        self._kept = [_Open(self._open), _Delete(self._delete)]
        layer.open, layer.delete = self._kept

    def _open(self, layer: int, name: int | None, file: int, flags: int, flags_out: int | None) -> int:
        path = os.fsdecode(ctypes.string_at(name)) if name else ""
        concerned = path.startswith(self._folder)
        fresh = concerned and not Path(path).exists()
        then = self._before(Call.CREATE, path) if fresh else _OK
        if then == _OK and concerned:
            then = self._before(Call.OPEN, path)
        if then not in {_OK, -1}:
            return then
        result: int = self._open_original(layer, name, file, flags, flags_out)
        if result == _OK and concerned:
            self._paths[file] = path
            self._replace_methods(file)
            if fresh:
                self._unsynced_names.add(path)
                self._append(b"C", path)
        return self._after(then, result)

    def _replace_methods(self, file: int) -> None:
        pointer = ctypes.c_void_p.from_address(file)
        original = pointer.value or 0
        if original not in self._methods:
            self._methods[original] = self._methods_around(_Methods.from_address(original))
        pointer.value = ctypes.addressof(self._methods[original])

    def _methods_around(self, original: _Methods) -> _Methods:
        ours = _Methods.from_buffer_copy(original)
        # Bound to the addresses of the originals, not to the structure, which is about to change.
        read, write, truncate, sync = (
            kind(ctypes.cast(getattr(original, name), ctypes.c_void_p).value or 0)
            for kind, name in ((_Write, "read"), (_Write, "write"), (_Truncate, "truncate"), (_Sync, "sync"))
        )

        def read_ours(file: int, data: int, size: int, offset: int) -> int:
            then = self._before(Call.READ, self._paths[file])
            result: int = read(file, data, size, offset) if then in {_OK, -1} else then
            return self._after(then, result)

        def write_ours(file: int, data: int, size: int, offset: int) -> int:
            then = self._before(Call.WRITE, self._paths[file])
            if then not in {_OK, -1}:
                return then
            result: int = write(file, data, size, offset)
            if result == _OK:
                self._append(b"W", self._paths[file], offset, ctypes.string_at(data, size))
            return self._after(then, result)

        def truncate_ours(file: int, size: int) -> int:
            then = self._before(Call.TRUNCATE, self._paths[file])
            if then not in {_OK, -1}:
                return then
            result: int = truncate(file, size)
            if result == _OK:
                self._append(b"T", self._paths[file], size)
            return self._after(then, result)

        def sync_ours(file: int, flags: int) -> int:
            then = self._before(Call.SYNC, self._paths[file])
            if then not in {_OK, -1}:
                self._append(b"F", self._paths[file])
                return then
            result: int = sync(file, flags)
            if result == _OK:
                self._note_sync(self._paths[file])
            return self._after(then, result)

        functions = [_Write(read_ours), _Write(write_ours), _Truncate(truncate_ours), _Sync(sync_ours)]
        ours.read, ours.write, ours.truncate, ours.sync = functions
        self._kept += functions
        return ours

    def _note_sync(self, path: str) -> None:
        self._append(b"S", path)
        if path in self._unsynced_names and not path.endswith(".db"):
            # The first sync of a journal or log that SQLite created also syncs the folder.
            self._append(b"S", str(Path(path).parent))
            self._unsynced_names.clear()

    def _delete(self, layer: int, name: int, sync_folder: int) -> int:
        path = os.fsdecode(ctypes.string_at(name))
        if not path.startswith(self._folder):
            passed: int = self._delete_original(layer, name, sync_folder)
            return passed
        then = self._before(Call.UNLINK, path)
        if then not in {_OK, -1}:
            return then
        result: int = self._delete_original(layer, name, sync_folder)
        if result == _OK:
            self._append(b"U", path)
            if sync_folder:
                self._append(b"S", str(Path(path).parent))
        return self._after(then, result)

    # --- recording, killing, failing -------------------------------------------------------------------------------

    def _append(self, kind: bytes, path: str, offset: int = 0, data: bytes = b"") -> None:
        if self._log is not None:
            name = os.fsencode(path)
            with self._mutex:
                os.write(self._log, HEADER.pack(kind, len(name), offset, len(data)) + name + data)

    def _before(self, call: Call, path: str) -> int:
        """Count the call; return the code with which it fails, or -1 if the process ends after it."""
        if self._armed is None:
            return _OK
        calls, action, at, error, times, suffix = self._armed
        if call not in calls or not path.endswith(suffix):
            return _OK
        self._seen += 1
        if self._seen < at or 0 <= times <= self._seen - at:
            return _OK
        if action == Action.KILL_BEFORE:
            os.kill(os.getpid(), signal.SIGKILL)
        if action == Action.KILL_AFTER:
            return -1
        return _FULL if error == errno.ENOSPC and call in {Call.WRITE, Call.TRUNCATE} else _CODES[call]

    def _after(self, then: int, result: int) -> int:
        if then == -1:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
