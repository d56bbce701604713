"""Limits by key: how many jobs of one key run at once, or start per time; a *gate* is a limit for one key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple, TypedDict

from holdfast.domain import errors, limits, strict_json, validation
from holdfast.domain.job import JobRow
from holdfast.domain.validation import Duration

ALL: Final = "all"
"""The key source of a limit whose jobs share one gate, and the key of that gate."""
TAG: Final = "tag:"
"""What precedes the name of a tag in a key source."""
_SOURCES: Final = (ALL, "tenant", "affinity", "given")


class LimitOptions(TypedDict, total=False):
    """The options of `limits.set`: which jobs are limited, by which key, and to what."""

    kinds: Sequence[str] | None
    """The kinds of its jobs; at least one of `kinds` and `lanes` is given."""
    lanes: Sequence[str] | None
    """The lanes of its jobs."""
    key: str
    """What its jobs are counted by: `tenant`, `affinity`, `tag:NAME`, `given` (`limit_key` of `enqueue`), or `all`
    (default): all of them together."""
    concurrency: int | None
    """How many jobs of one key run at once."""
    rate: int | None
    """How many jobs of one key start in `per` seconds."""
    per: Duration
    """The time of `rate` in seconds; default 60."""
    burst: int | None
    """How many of them may start at once after a pause; default `rate`."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit by key."""

    name: str
    """Its name."""
    kinds: tuple[str, ...] | None
    """The kinds of its jobs; None means any."""
    lanes: tuple[str, ...] | None
    """The lanes of its jobs; None means any."""
    key: str
    """What its jobs are counted by."""
    concurrency: int | None
    """How many jobs of one key run at once."""
    rate: int | None
    """How many jobs of one key start in `per` seconds."""
    per: float | None
    """The time of `rate` in seconds."""
    burst: int | None
    """How many of them may start at once after a pause."""


@dataclass(frozen=True, slots=True)
class KeyUse:
    """The use of a limit by one key."""

    limit: str
    """The name of the limit."""
    key: str
    """The key."""
    running: int
    """How many jobs of the key run."""
    parked: int
    """How many wait for room, counted up to 10,000."""
    concurrency: int | None
    """How many may run at once."""
    opens_at: datetime | None
    """When the next job may start, if time alone decides; None if one may start now, or after the end of another."""
    closed: bool
    """Whether a handler has closed the key: `Retry(after=…, closes=True)`."""


class WaitingGate(NamedTuple):
    """A gate that is closed or at which jobs are parked."""

    limit: int
    key: str
    closed_until_ms: int
    parked: int
    due_at_ms: int | None
    """When the first of these was due."""


class LimitRow(NamedTuple):
    """A limit in stored form. One that concerns other jobs, or has another key, has another number."""

    number: int
    name: str
    kinds: tuple[str, ...] | None
    lanes: tuple[str, ...] | None
    key_source: str
    concurrency: int | None
    rate: int | None
    period_ms: int | None
    burst: int | None

    def concerns(self, lane: str, kind: str) -> bool:
        """Return whether jobs of this lane and kind are limited."""
        return (self.kinds is None or kind in self.kinds) and (self.lanes is None or lane in self.lanes)

    def key_of(self, job: JobRow, given: str | None) -> str | None:
        """Return the key of *job*; None if it has none and is not limited."""
        return self.key_among(job.tenant, job.affinity, job.tags_json, given)

    def key_among(self, tenant: str, affinity: str | None, tags_json: str, given: str | None) -> str | None:
        """As `key_of`, by the columns of a job."""
        source = self.key_source
        if source == "tenant":
            return tenant
        if source == "affinity":
            return affinity
        if source == "given":
            return given
        if source == ALL:
            return ALL
        tag: str | None = strict_json.decode(tags_json).get(source.removeprefix(TAG))
        return tag

    @property
    def subject(self) -> tuple[object, ...]:
        """Which jobs are counted and how: a change of it starts with new gates."""
        return (self.kinds, self.lanes, self.key_source)

    @property
    def step_us(self) -> int:
        """The microseconds between two starts at the full rate."""
        return (self.period_ms or 0) * 1000 // (self.rate or 1)


class Gate(NamedTuple):
    """A limit for one key."""

    number: int
    limit: int
    """The number of the limit; it may not exist any more."""
    key: str
    until_us: int
    """The time up to which starts at the full rate would have used up the rate; in microseconds."""
    closed_until_ms: int
    """0 if it is open; if the time has passed, one job starts alone, and its end opens the gate."""
    turns_json: str
    """The fair_key to which a job was offered last, by route."""
    wake_at_ms: int
    """When a wake row looks at it again, if that is later than now."""


class Room(NamedTuple):
    """How many jobs may start now, and when the next may if time alone decides."""

    free: int
    opens_at_ms: int | None = None


def room(limit: LimitRow, gate: Gate, running: int, now_ms: int) -> Room:
    """Return the room at *gate*, while *running* jobs hold a permit."""
    if gate.closed_until_ms > now_ms:
        return Room(0, gate.closed_until_ms)
    free = limits.CLAIM_MAX if limit.concurrency is None else max(limit.concurrency - running, 0)
    if gate.closed_until_ms:
        free = min(free, 0 if running else 1)
    if limit.rate is None or not free:
        return Room(free)
    step_us, now_us = limit.step_us, now_ms * 1000
    used_us = max(gate.until_us, now_us)
    starts = ((limit.burst or 1) * step_us - (used_us - now_us)) // step_us
    if starts > 0:
        return Room(min(free, starts))
    return Room(0, -((-used_us + (limit.burst or 1) * step_us - step_us) // 1000))


def have_room(limit: LimitRow, until_us: int, running: int, starts: int, now_ms: int) -> bool:
    """Return whether so many jobs may start together at an open gate: `room`, for claims of many keys."""
    if limit.concurrency is not None and running + starts > limit.concurrency:
        return False
    burst_us = (limit.burst or 1) * limit.step_us
    return limit.rate is None or used_until_us(limit, until_us, starts, now_ms) - now_ms * 1000 <= burst_us


def used_until_us(limit: LimitRow, until_us: int, starts: int, now_ms: int) -> int:
    """Return the time up to which a rate is used up after so many starts."""
    return max(until_us, now_ms * 1000) + starts * limit.step_us


def started(limit: LimitRow, gate: Gate, starts: int, now_ms: int) -> Gate:
    """Return *gate* after so many starts."""
    if starts and gate.closed_until_ms:
        gate = gate._replace(closed_until_ms=PROBED)
    if limit.rate is None or not starts:
        return gate
    return gate._replace(until_us=used_until_us(limit, gate.until_us, starts, now_ms))


PROBED: Final = 1
"""As the time until which a gate is closed: the first job after that time has started."""


def reopened(gate: Gate, running: int) -> Gate:
    """Return *gate* open if the first job after it was closed has ended, and has not closed it again."""
    return gate._replace(closed_until_ms=0) if gate.closed_until_ms == PROBED and not running else gate


# --- validation ----------------------------------------------------------------------------------------------------


def check_name(name: object) -> str:
    """Validate the name of a limit."""
    return validation.name(name, "name", limits.LIMIT_NAME_CHARS_MAX)


def check_key(value: object) -> str:
    """Validate a key."""
    return validation.name(value, "key", limits.LIMIT_KEY_CHARS_MAX)


def check_limit(name: object, options: Mapping[str, Any]) -> LimitRow:
    """Validate the options of `limits.set`."""
    validation.refuse_unknown(options, frozenset(LimitOptions.__annotations__), "limits.set")
    kinds, lanes = _names(options, "kinds", limits.CLAIM_KINDS_MAX), _names(options, "lanes", limits.CLAIM_LANES_MAX)
    if kinds is None and lanes is None:
        raise errors.InvalidInput("kinds", "must be given, or lanes: a limit concerns certain kinds or lanes")
    concurrency = _count(options, "concurrency", limits.LIMIT_CONCURRENCY_MAX)
    rate = _count(options, "rate", limits.LIMIT_RATE_MAX)
    burst = _count(options, "burst", limits.LIMIT_RATE_MAX)
    if concurrency is None and rate is None:
        raise errors.InvalidInput("concurrency", "must be given, or rate")
    if rate is None and (burst is not None or options.get("per") is not None):
        raise errors.InvalidInput("rate", "must be given with per and burst")
    period_ms = None
    if rate is not None:
        per = options.get("per")
        period_ms = validation.duration_ms(60 if per is None else per, "per", limits.SECOND_MS, limits.DAY_MS)
        burst = rate if burst is None else burst
    source = _source(options.get("key", ALL))
    return LimitRow(0, check_name(name), kinds, lanes, source, concurrency, rate, period_ms, burst)


def _names(options: Mapping[str, Any], field: str, count_max: int) -> tuple[str, ...] | None:
    value = options.get(field)
    if value is None:
        return None
    names = tuple(sorted(set(validation.names(value, field, count_max))))
    if not names:
        raise errors.InvalidInput(field, "must not be empty; leave it out for all")
    return names


def _count(options: Mapping[str, Any], field: str, high: int) -> int | None:
    value = options.get(field)
    return None if value is None else validation.integer(value, field, 1, high)


def _source(value: object) -> str:
    text = validation.name(value, "key")
    if text in _SOURCES or (text.startswith(TAG) and len(text) > len(TAG)):
        return text
    raise errors.InvalidInput("key", f"must be one of {', '.join(_SOURCES)} or tag:NAME, not {text!r}")


def check_overlap(new: LimitRow, others: Iterable[LimitRow]) -> None:
    """Raise `Conflict` if a job could have two limits on concurrency, or two on its rate."""
    for other in others:
        if other.name == new.name or not (_meet(new.kinds, other.kinds) and _meet(new.lanes, other.lanes)):
            continue
        for what in ("concurrency", "rate"):
            if getattr(new, what) is not None and getattr(other, what) is not None:
                raise errors.Conflict(
                    f"limit {other.name!r} limits the {what} of some of the same jobs; a job has at most one limit on"
                    f" its {what}: choose other kinds or lanes, or change {other.name!r}"
                )


def _meet(one: tuple[str, ...] | None, other: tuple[str, ...] | None) -> bool:
    return one is None or other is None or not set(one).isdisjoint(other)


def public(row: LimitRow) -> Limit:
    """Return the public form of a limit."""
    per = None if row.period_ms is None else row.period_ms / 1000
    return Limit(row.name, row.kinds, row.lanes, row.key_source, row.concurrency, row.rate, per, row.burst)
