"""Health checks of the server, its settings and the schema."""

from holdfast.domain import results
from holdfast.storage.sql_transaction import SqlTransaction

_TRANSACTION_SECONDS_LONG = 600


async def examine(tx: SqlTransaction) -> list[results.Finding]:
    """Return findings about the server, durability, vacuuming, the schema and long-open transactions."""
    [[version, _number]] = await tx.query("health_version")
    [settings] = await tx.query("health_settings")
    [[schema]] = await tx.query("health_schema")
    [[seconds]] = await tx.query("health_oldest_transaction")
    fsync, full_page_writes, synchronous_commit, autovacuum, track_counts = settings
    return [
        results.Finding("PostgreSQL", "ok", version),
        _disk(fsync, full_page_writes),
        _durability(synchronous_commit),
        _vacuum(autovacuum, track_counts),
        results.Finding("schema", "ok", f"at {schema}"),
        _oldest(seconds),
    ]


def _disk(fsync: str, full_page_writes: str) -> results.Finding:
    if fsync == full_page_writes == "on":
        return results.Finding("disk", "ok", "writes are flushed to disk")
    return results.Finding(
        "disk",
        "problem",
        f"fsync = {fsync}, full_page_writes = {full_page_writes}: a power cut can destroy the database",
        "turn both on in postgresql.conf",
    )


def _durability(synchronous_commit: str) -> results.Finding:
    if synchronous_commit != "off":
        text = f"synchronous_commit = {synchronous_commit}: acknowledged jobs survive a power cut"
        return results.Finding("durability", "ok", text)
    return results.Finding(
        "durability",
        "warning",
        "synchronous_commit = off: a power cut may lose the last acknowledged jobs",
        "turn it on for this role or database",
    )


def _vacuum(autovacuum: str, track_counts: str) -> results.Finding:
    if autovacuum == track_counts == "on":
        return results.Finding("vacuum", "ok", "autovacuum is on")
    return results.Finding(
        "vacuum",
        "problem",
        f"autovacuum = {autovacuum}, track_counts = {track_counts}: dead rows accumulate and claims become slow",
        "turn both on in postgresql.conf",
    )


def _oldest(seconds: int) -> results.Finding:
    if seconds < _TRANSACTION_SECONDS_LONG:
        return results.Finding("open transactions", "ok", f"the oldest is {seconds} s old")
    return results.Finding(
        "open transactions",
        "warning",
        f"one has been open for {seconds // 60} minutes: it delays events and the removal of dead rows",
        "find it in pg_stat_activity and end it",
    )
