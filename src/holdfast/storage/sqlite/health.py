"""Health checks of the SQLite library, the file and its modes."""

import shutil
from pathlib import Path

from holdfast.domain import results
from holdfast.storage.sql_transaction import SqlTransaction
from holdfast.storage.sqlite import connection

# Releases before 3.51.3 that contain the fix for a write-ahead log reset racing a checkpoint.
_WAL_RESET_FIXED = {(3, 50, 7), (3, 44, 6)}
_SPACE_LOW = 256 << 20
_SYNCHRONOUS = {0: "off", 1: "normal", 2: "full", 3: "extra"}


async def examine(tx: SqlTransaction, path: str) -> list[results.Finding]:
    """Return findings about the library, journal, durability, schema, file and disk."""
    [[version]] = await tx.query("health_version")
    [[journal]] = await tx.query("health_journal_mode")
    [[synchronous]] = await tx.query("health_synchronous")
    [[schema]] = await tx.query("health_schema")
    [[integrity]] = await tx.query("health_integrity")
    return [
        _version(version),
        _journal(journal),
        _synchronous(synchronous),
        results.Finding("schema", "ok", f"at {schema}"),
        _integrity(integrity),
        *([] if path == connection.MEMORY else [_log_size(path), _file_system(path), _space(path)]),
    ]


def _version(version: str) -> results.Finding:
    parts = tuple(int(part) for part in version.split("."))
    if parts >= (3, 51, 3) or parts in _WAL_RESET_FIXED:
        return results.Finding("SQLite", "ok", version)
    return results.Finding(
        "SQLite",
        "warning",
        f"{version} has a rare bug: a checkpoint that races a reset of the write-ahead log can lose commits",
        "use a Python that links SQLite 3.51.3 or later",
    )


def _journal(mode: str) -> results.Finding:
    if mode == "wal":
        return results.Finding("journal", "ok", "write-ahead log")
    if mode == "memory":
        return results.Finding("journal", "warning", "in memory: jobs are lost when the process ends", "use a file")
    return results.Finding("journal", "problem", f"journal mode is {mode}", "set it with `pragma journal_mode = wal`")


def _synchronous(level: int) -> results.Finding:
    name = _SYNCHRONOUS.get(level, str(level))
    if level >= 2:
        return results.Finding("durability", "ok", f"synchronous = {name}: acknowledged jobs survive a power cut")
    return results.Finding(
        "durability",
        "warning",
        f"synchronous = {name}: a power cut may lose the last acknowledged jobs",
        'connect without durability="relaxed"',
    )


def _integrity(result: str) -> results.Finding:
    if result == "ok":
        return results.Finding("file", "ok", "sound")
    return results.Finding(
        "file", "problem", f"damaged: {result}", "stop all workers and restore the file from a backup"
    )


def _log_size(path: str) -> results.Finding:
    log = Path(f"{path}-wal")
    size = log.stat().st_size if log.exists() else 0
    if size <= 2 * connection.LOG_BYTES_LONG:
        return results.Finding("log size", "ok", f"{size / 2**20:.1f} MiB")
    return results.Finding(
        "log size",
        "warning",
        f"the write-ahead log has grown to {size / 2**20:.0f} MiB: a reader prevents its truncation",
        "look for a connection of your own that has left a transaction open",
    )


def _file_system(path: str) -> results.Finding:
    kind = connection.network_file_system(path)
    if kind is None:
        return results.Finding("file system", "ok", connection.file_system(path) or "unknown")
    return results.Finding(
        "file system", "problem", f"{kind}: locks over a network are unreliable", "move the file to a local disk"
    )


def _space(path: str) -> results.Finding:
    free = shutil.disk_usage(Path(path).parent).free
    if free >= _SPACE_LOW:
        return results.Finding("free space", "ok", f"{free / 2**30:.1f} GiB")
    return results.Finding(
        "free space", "warning", f"only {free / 2**20:.0f} MiB left", "free some, or `holdfast prune`"
    )
