"""Health checks of the server, its settings and the schema."""

from __future__ import annotations

from holdfast.domain.results import Finding
from holdfast.storage.sql_transaction import SqlTransaction

_TRANSACTION_SECONDS_LONG = 600


async def examine(tx: SqlTransaction) -> list[Finding]:
    """Return findings about the server, durability, vacuuming, the schema and long-open transactions."""
    [[version, _number]] = await tx.query("health_version")
    [settings] = await tx.query("health_settings")
    [[schema]] = await tx.query("health_schema")
    [[seconds]] = await tx.query("health_oldest_transaction")
    fsync, full_page_writes, synchronous_commit, autovacuum, track_counts = settings
    return [
        Finding("PostgreSQL", "ok", version),
        _disk(fsync, full_page_writes),
        _durability(synchronous_commit),
        _vacuum(autovacuum, track_counts),
        Finding("schema", "ok", f"at {schema}"),
        _oldest(seconds),
    ]


def _disk(fsync: str, full_page_writes: str) -> Finding:
    if fsync == full_page_writes == "on":
        return Finding("disk", "ok", "writes are flushed to disk")
    return Finding(
        "disk",
        "problem",
        f"fsync = {fsync}, full_page_writes = {full_page_writes}: a power cut can destroy the database",
        "turn both on in postgresql.conf",
    )


def _durability(synchronous_commit: str) -> Finding:
    if synchronous_commit != "off":
        text = f"synchronous_commit = {synchronous_commit}: acknowledged jobs survive a power cut"
        return Finding("durability", "ok", text)
    return Finding(
        "durability",
        "warning",
        "synchronous_commit = off: a power cut may lose the last acknowledged jobs",
        "turn it on for this role or database",
    )


def _vacuum(autovacuum: str, track_counts: str) -> Finding:
    if autovacuum == track_counts == "on":
        return Finding("vacuum", "ok", "autovacuum is on")
    return Finding(
        "vacuum",
        "problem",
        f"autovacuum = {autovacuum}, track_counts = {track_counts}: dead rows accumulate and claims become slow",
        "turn both on in postgresql.conf",
    )


def _oldest(seconds: int) -> Finding:
    if seconds < _TRANSACTION_SECONDS_LONG:
        return Finding("open transactions", "ok", f"the oldest is {seconds} s old")
    return Finding(
        "open transactions",
        "warning",
        f"one has been open for {seconds // 60} minutes: it delays events and the removal of dead rows",
        "find it in pg_stat_activity and end it",
    )
