"""Failures by fingerprint: recorded as jobs fail, read as patterns."""

from collections.abc import Sequence

from holdfast.domain import clock, fingerprints, limits, new_job, results, validation
from holdfast.domain.job import JobRow
from holdfast.storage.chart_contract import JobFailure
from holdfast.storage.contract import StoreTransaction


async def record(tx: StoreTransaction, failed: Sequence[JobRow], now: clock.Now) -> None:
    """Record the failures of jobs that have just failed. Deliveries of webhooks have their own list."""
    prints = [
        JobFailure(fingerprints.failure_print(job.kind, job.failure), job.tenant, job.lane, job.seq)
        for job in failed
        if job.failure is not None and job.lane != new_job.SYSTEM_LANE
    ]
    if prints:
        await tx.record_failures(prints, now)


async def patterns(
    tx: StoreTransaction, fingerprint: str | None, tenant: str | None, kind: str | None, limit: int
) -> list[results.FailurePattern]:
    """Return the patterns with the newest failures."""
    counts = await tx.failure_counts(fingerprint, tenant, kind, limit, await tx.now())
    return [
        results.FailurePattern(
            fingerprint=one.print.fingerprint,
            kind=one.print.kind,
            error=one.print.error,
            message=one.print.message,
            frames=one.print.frames,
            tenants=tuple(tenants),
            lanes=tuple(lanes),
            count=one.failures,
            this_hour=one.this_hour,
            hour_before=one.hour_before,
            first_at=validation.datetime_of(one.first_at_ms),
            last_at=validation.datetime_of(one.last_at_ms),
            example=one.example,
        )
        for one, tenants, lanes in fingerprints.merged(counts)
    ]


async def prune(tx: StoreTransaction, age_ms: int) -> bool:
    """Delete a chunk of the failures older than *age_ms*, and of patterns without any; return if there were some."""
    now = await tx.now()
    return bool(await tx.delete_failures(now.wall_ms - age_ms, now, limits.CHUNK))
