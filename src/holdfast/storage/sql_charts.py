"""Counts of jobs, failures by fingerprint and rollups, by named queries."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from holdfast.domain import limits, results, strict_json
from holdfast.domain.clock import Now
from holdfast.domain.fingerprints import FailureCount, FailurePrint
from holdfast.domain.new_job import SYSTEM_LANE
from holdfast.domain.rollups import RollupRow
from holdfast.storage.chart_contract import JobFailure
from holdfast.storage.query_names import QueryName
from holdfast.storage.sql_queries import SqlQueries


class SqlCharts(SqlQueries):
    """Counts, failures by fingerprint, and rollups."""

    __slots__ = ()

    async def tally_jobs(self, job_filter: results.JobFilter, now: Now) -> list[results.Tally]:
        """Return the number of matching jobs by lane, kind and state."""
        return [results.Tally(*row) for row in sorted(await self.query("jobs_count", conditions(job_filter, now)))]

    async def count_jobs(self, by: results.CountBy, tenant: str | None) -> dict[str, int]:
        """Return the number of jobs by one property."""
        return dict(sorted(await self.query(_COUNTS[by], {"tenant": tenant, "system_lane": SYSTEM_LANE})))

    async def record_failures(self, failed: Sequence[JobFailure], now: Now) -> None:
        """Append failures."""
        at_ms = now.wall_ms
        patterns = {
            (one.print.fingerprint, one.tenant, one.lane): (
                one.print.kind,
                one.print.error,
                strict_json.compact(list(one.print.frames)),
                one.print.message,
                at_ms,
                at_ms,
            )
            for one in failed
        }
        # In order, so that two transactions do not wait for each other.
        # A pattern that was written within the last minute is not written again.
        await self.query("failure_patterns_write", many=[(*key, *patterns[key]) for key in sorted(patterns)])
        rows = [(one.print.fingerprint, at_ms, one.seq, one.tenant, one.lane) for one in failed]
        await self.query("failures_insert", many=rows)

    async def failure_counts(
        self, fingerprint: str | None, tenant: str | None, kind: str | None, limit: int, now: Now
    ) -> list[FailureCount]:
        """Return patterns with the newest failures."""
        values = {
            "fingerprint": fingerprint,
            "tenant": tenant,
            "kind": kind,
            "limit": limit,
            "maximum": limits.FAILURES_COUNTED_MAX,
            "hour": now.wall_ms - limits.HOUR_MS,
            "hour_before": now.wall_ms - 2 * limits.HOUR_MS,
        }
        return [
            FailureCount(FailurePrint(row[0], row[1], row[2], tuple(strict_json.decode(row[3])), row[4]), *row[5:])
            for row in await self.query("failure_patterns", values)
        ]

    async def delete_failures(self, before_ms: int, now: Now, limit: int) -> int:
        """Delete old failures and patterns without any."""
        [[failures]] = await self.query("failures_delete", {"before": before_ms, "limit": limit})
        # For a minute, open transactions that this one does not see may add failures without writing the pattern.
        before_ms = min(before_ms, now.wall_ms - limits.FAILURE_PATTERN_WRITTEN_MS)
        [[patterns]] = await self.query("failure_patterns_delete", {"before": before_ms, "limit": limit})
        return int(failures) + int(patterns)

    async def append_rollups(self, width_ms: int, data: Mapping[int, str]) -> None:
        """Store rollups."""
        await self.query("rollups_insert", many=[(width_ms, at_ms, text) for at_ms, text in sorted(data.items())])

    async def old_rollups(self, width_ms: int, before_ms: int, limit: int) -> list[RollupRow]:
        """Return the oldest rollups of one width."""
        values = {"width": width_ms, "before": before_ms, "limit": limit}
        return [RollupRow(*row) for row in await self.query("rollups_old", values)]

    async def delete_rollups(self, numbers: Sequence[int]) -> None:
        """Delete rollups."""
        await self.query("rollups_delete", {"numbers": list(numbers)})

    async def newest_rollups(self, since_ms: int, limit: int) -> list[RollupRow]:
        """Return the newest rollups."""
        return [RollupRow(*row) for row in await self.query("rollups_since", {"since": since_ms, "limit": limit})]

    async def jobs_floor(
        self, job_filter: results.JobFilter, before: tuple[int, int], examined: int, *, by_finish: bool
    ) -> tuple[int, int] | None:
        """Return the position so many entries below another, in the order in which `list_jobs` reads."""
        values: dict[str, Any] = {"before": before[1], "examined": examined}
        if by_finish:
            values["finished_before"] = before[0]
            if job_filter.fingerprint is not None:
                found = await self.query("failures_floor", {**values, "fingerprint": job_filter.fingerprint})
            else:
                found = await self.query("jobs_finish_floor", {**values, "state": job_filter.states[0]})
            return (found[0][0], found[0][1]) if found else None
        if job_filter.session is not None:
            named = {"tenant": job_filter.tenant, "session": job_filter.session}
            found = await self.query("jobs_session_floor", {**values, **named})
        elif job_filter.tags:
            tag, value = list(job_filter.tags)[-1]
            found = await self.query("jobs_tag_floor", {**values, "tag": tag, "value": value})
        else:
            found = await self.query("jobs_order_floor", values)
        return (-1, found[0][0]) if found else None


_COUNTS: Final[Mapping[results.CountBy, QueryName]] = {
    "state": "counts_by_state",
    "kind": "counts_by_kind",
    "lane": "counts_by_lane",
    "tenant": "counts_by_tenant",
    "failure_class": "counts_by_failure_class",
}


def conditions(job_filter: results.JobFilter, now: Now) -> dict[str, Any]:
    """Return the values that list and count queries bind for *job_filter*."""
    return {
        "states": list(job_filter.states) or None,
        "kind": job_filter.kind,
        "lane": job_filter.lane,
        # Deliveries of webhooks are listed only if their lane is named.
        "system_lane": SYSTEM_LANE,
        "tenant": job_filter.tenant,
        "failure_class": job_filter.failure_class,
        "aged_before": None if job_filter.age_ms is None else now.wall_ms - job_filter.age_ms,
    }
