"""Rollups: how many jobs arrived and ended in a stretch of time, and how long they waited and ran."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from holdfast.domain import limits, strict_json

Outcome: TypeAlias = Literal["arrived", "done", "failed", "cancelled", "retired", "retried"]
"""What is counted: an arrival, how a job ended, or an attempt that failed and is retried."""
OUTCOMES: Final[tuple[Outcome, ...]] = ("arrived", "done", "failed", "cancelled", "retired", "retried")
Histogram: TypeAlias = dict[int, int]
"""Counts by bucket."""
OTHER: Final = "(other)"
"""The lane and kind of what is counted beyond the limit of lanes and kinds."""

# Four buckets for each power of two: the middle of a bucket is at most an eighth away from what it counts.
_EXACT: Final = 8
_BUCKET_MAX: Final = 160


def bucket_of(milliseconds: int) -> int:
    """Return the bucket of a duration; durations below 8 ms have one each."""
    if milliseconds < _EXACT:
        return max(milliseconds, 0)
    shift = milliseconds.bit_length() - 3
    return min(4 * shift + (milliseconds >> shift), _BUCKET_MAX)


def middle_of(bucket: int) -> float:
    """Return the middle of a bucket, in milliseconds."""
    if bucket < _EXACT:
        return float(bucket)
    shift, top = (bucket - 4) // 4, (bucket - 4) % 4 + 4
    return ((top << shift) + ((top + 1) << shift) - 1) / 2


def percentile(histogram: Mapping[int, int], fraction: float) -> float | None:
    """Return the duration in milliseconds within which *fraction* of the counted ones are; None if there are none."""
    total = sum(histogram.values())
    if not total:
        return None
    left = fraction * total
    for bucket in sorted(histogram):
        left -= histogram[bucket]
        if left <= 0:
            return middle_of(bucket)
    return middle_of(max(histogram))


class Ended(NamedTuple):
    """One end: of a job, or of an attempt that is retried."""

    lane: str
    kind: str
    outcome: Outcome
    waited_ms: int | None
    """How long the attempt had been due; None if there was no attempt."""
    ran_ms: int


CountedEnd: TypeAlias = tuple[Ended, int]
"""Ends that are equal, and how many there are."""


class Sums(NamedTuple):
    """The sum over one lane, kind and outcome."""

    jobs: int
    waited: Histogram
    ran: Histogram


Key: TypeAlias = tuple[str, str, Outcome]
Rollup: TypeAlias = dict[Key, Sums]
"""Sums by lane, kind and outcome."""


class RollupRow(NamedTuple):
    """A stored rollup."""

    number: int
    at_ms: int
    """When its stretch of time begins."""
    data: str


def fold(ended: Iterable[CountedEnd], arrived: Iterable[tuple[Any, ...]]) -> Rollup:
    """Return the sums of ends, and of arrivals by lane and kind, the first two fields of each."""
    jobs: Counter[Key] = Counter()
    waited: dict[Key, Histogram] = {}
    ran: dict[Key, Histogram] = {}
    for (lane, kind, outcome, waited_ms, ran_ms), count in ended:
        key = (lane, kind, outcome)
        jobs[key] += count
        if waited_ms is not None:
            _count(waited.setdefault(key, {}), bucket_of(waited_ms), count)
            _count(ran.setdefault(key, {}), bucket_of(ran_ms), count)
    for (lane, kind, *_), count in Counter(arrived).items():
        jobs[lane, kind, "arrived"] += count
    return {key: Sums(count, waited.get(key, {}), ran.get(key, {})) for key, count in jobs.items()}


def merge(rollups: Iterable[Rollup]) -> Rollup:
    """Return the sum of rollups. Lanes and kinds beyond a limit are added up as one."""
    total: Rollup = {}
    places: dict[tuple[str, str], tuple[str, str]] = {}
    for rollup in rollups:
        for (lane, kind, outcome), sums in rollup.items():
            if (lane, kind) not in places:
                full = len(places) >= limits.ROLLUP_ROUTES_MAX
                places[lane, kind] = (OTHER, OTHER) if full else (lane, kind)
            key = (*places[lane, kind], outcome)
            so_far = total.get(key) or Sums(0, {}, {})
            for histogram, more in ((so_far.waited, sums.waited), (so_far.ran, sums.ran)):
                for bucket, count in more.items():
                    _count(histogram, bucket, count)
            total[key] = so_far._replace(jobs=so_far.jobs + sums.jobs)
    return total


def _count(histogram: Histogram, bucket: int, count: int) -> None:
    histogram[bucket] = histogram.get(bucket, 0) + count


# --- as JSON -------------------------------------------------------------------------------------------------------


def encode(rollup: Rollup) -> str:
    """Return a rollup as JSON, in order."""
    return strict_json.compact(
        [[*key, sums.jobs, _pairs(sums.waited), _pairs(sums.ran)] for key, sums in sorted(rollup.items())]
    )


def decode(data: str) -> Rollup:
    """Return the rollup of a JSON text."""
    rows: list[Any] = strict_json.decode(data)
    return {
        (lane, kind, outcome): Sums(jobs, dict(waited), dict(ran)) for lane, kind, outcome, jobs, waited, ran in rows
    }


def _pairs(histogram: Histogram) -> list[list[int]]:
    return [[bucket, count] for bucket, count in sorted(histogram.items())]


# --- minutes -------------------------------------------------------------------------------------------------------


def merged_rows(rows: Sequence[RollupRow], width_ms: int) -> dict[int, str]:
    """Return the merged data of stored rollups, by the beginning of a wider stretch of time."""
    parts: dict[int, list[Rollup]] = {}
    for row in rows:
        parts.setdefault(row.at_ms // width_ms * width_ms, []).append(decode(row.data))
    return {at_ms: encode(merge(same)) for at_ms, same in parts.items()}


def totals(rollups: Iterable[Rollup]) -> dict[Outcome, int]:
    """Return the number of arrivals and of ends by outcome, over all lanes and kinds."""
    found: dict[Outcome, int] = dict.fromkeys(OUTCOMES, 0)
    for rollup in rollups:
        for (_, _, outcome), sums in rollup.items():
            found[outcome] += sums.jobs
    return found


# --- lanes ---------------------------------------------------------------------------------------------------------


class LaneSums(NamedTuple):
    """The sum over one lane."""

    jobs: dict[Outcome, int]
    waited: Histogram
    ran: Histogram


ByLane: TypeAlias = Mapping[str, LaneSums]
"""Sums by lane."""


@lru_cache(maxsize=128)
def kept_lanes(data: str) -> ByLane:
    """Return the sums by lane of a JSON text that will be read again, as those of past minutes are by screens."""
    return lanes(data)


def lanes(data: str) -> ByLane:
    """Return the sums by lane of a JSON text."""
    found: dict[str, LaneSums] = {}
    for (lane, _, outcome), sums in decode(data).items():
        _add(found, lane, LaneSums({outcome: sums.jobs}, sums.waited, sums.ran))
    return found


def merged_lanes(parts: Iterable[ByLane]) -> ByLane:
    """Return the sum of sums by lane."""
    total: dict[str, LaneSums] = {}
    for part in parts:
        for lane, sums in part.items():
            _add(total, lane, sums)
    return total


def all_lanes(parts: Iterable[ByLane]) -> LaneSums:
    """Return the sum over all lanes."""
    total: dict[str, LaneSums] = {"": LaneSums(dict.fromkeys(OUTCOMES, 0), {}, {})}
    for part in parts:
        for sums in part.values():
            _add(total, "", sums)
    return total[""]


def _add(total: dict[str, LaneSums], lane: str, more: LaneSums) -> None:
    so_far = total.setdefault(lane, LaneSums({}, {}, {}))
    for outcome, count in more.jobs.items():
        so_far.jobs[outcome] = so_far.jobs.get(outcome, 0) + count
    for histogram, added in ((so_far.waited, more.waited), (so_far.ran, more.ran)):
        for bucket, count in added.items():
            histogram[bucket] = histogram.get(bucket, 0) + count
