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
_AND: Final = "+"
"""Between the parts of a key source."""
_JOINED: Final = " / "
"""Between the parts of a key."""
_SOURCES: Final = (ALL, "tenant", "affinity", "given")
_YEARS_MAX: Final = 100
_LIGHT_US: Final = 100
"""A unit of weight that takes less time is light."""
_FILL_US_MAX: Final = _YEARS_MAX * 366 * limits.DAY_MS * 1000
"""How long a burst may take to fill, and a debt to be paid off: a longer time would not fit the store."""


class LimitOptions(TypedDict, total=False):
    """The options of `limits.set`: which jobs are limited, by which key, and to what."""

    kinds: Sequence[str] | None
    """The kinds of its jobs; at least one of `kinds` and `lanes` is given."""
    lanes: Sequence[str] | None
    """The lanes of its jobs."""
    key: str
    """What its jobs are counted by: `tenant`, `affinity`, `tag:NAME`, `given` (`limit_key` of `enqueue`), several of
    these joined by `+`, or `all` (default): all of them together."""
    concurrency: int | None
    """How many jobs of one key run at once."""
    rate: int | None
    """How many jobs of one key start in `per` seconds."""
    per: Duration
    """The time of `rate` in seconds; default 60."""
    burst: int | None
    """How many of them may start at once after a pause; default `rate`."""
    weight: str | None
    """What `rate` and `burst` count instead of starts, such as `tokens`. A job has as many as its `limit_weight`, or
    else as the number of this name in its payload, or else 1; the `usage` of its outcome corrects it."""


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
    weight: str | None = None
    """What `rate` and `burst` count, such as `tokens`; None means starts."""


@dataclass(frozen=True, slots=True)
class KeyUse:
    """The use of a limit by one key."""

    limit: str
    """The name of the limit."""
    key: str
    """The key."""
    running: int | None
    """How many jobs of the key run; None if the limit is a rate of starts, which counts only these."""
    parked: int
    """How many wait for room, counted up to 10,000."""
    concurrency: int | None
    """How many may run at once."""
    opens_at: datetime | None
    """When the next job may start, if time alone decides; None if one may start now, or after the end of another."""
    closed: bool
    """Whether a handler has closed the key: `Retry(after=…, closes=True)`."""
    left: int | None = None
    """How much of the rate may start now; below 0 if jobs have used more than their weight; None without a rate."""


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
    weight: str | None = None

    def concerns(self, lane: str, kind: str) -> bool:
        """Return whether jobs of this lane and kind are limited."""
        return (self.kinds is None or kind in self.kinds) and (self.lanes is None or lane in self.lanes)

    def key_of(self, job: JobRow, given: str | None) -> str | None:
        """Return the key of *job*; None if it has none and is not limited."""
        return self.key_among(job.tenant, job.affinity, job.tags_json, given)

    def key_among(self, tenant: str, affinity: str | None, tags_json: str, given: str | None) -> str | None:
        """As `key_of`, by the columns of a job."""
        columns = {"tenant": tenant, "affinity": affinity, "given": given, ALL: ALL}
        found: list[str] = []
        for source in self.key_source.split(_AND):
            part = columns[source] if source in columns else strict_json.decode(tags_json).get(source[len(TAG) :])
            if part is None:
                return None
            found.append(part)
        return found[0] if len(found) == 1 else _JOINED.join(found)

    @property
    def subject(self) -> tuple[object, ...]:
        """Which jobs are counted and how: a change of it starts with new gates."""
        return (self.kinds, self.lanes, self.key_source)

    @property
    def counts_running(self) -> bool:
        """Return whether its gates count running jobs; those of a rate of starts do so only when closed."""
        return self.concurrency is not None or self.weight is not None

    @property
    def _unit_us(self) -> int:
        return -(-(self.period_ms or 0) * 1000 // (self.rate or 1))

    @property
    def _counts_units(self) -> bool:
        """Return whether the cost of each unit is rounded, so that a burst is what so many of them use up.

        Of light ones the sum is: each takes so little time that rounding it would slow the rate down.
        """
        return self.weight is None or self._unit_us >= _LIGHT_US

    def cost_us(self, weight: int) -> int:
        """Return the microseconds of the full rate that a start uses up, rounded up: a rate is never exceeded."""
        if self._counts_units:
            return weight * self._unit_us
        return -(-weight * (self.period_ms or 0) * 1000 // (self.rate or 1))

    def weight_within(self, left_us: int) -> int:
        """Return the largest weight that costs no more."""
        if self._counts_units:
            return left_us // self._unit_us
        return left_us * (self.rate or 1) // ((self.period_ms or 1) * 1000)

    @property
    def burst_us(self) -> int:
        """How far starts may use the rate up."""
        return self.cost_us(self.burst or 1)

    def used_until_us(self, until_us: int, weight: int, now_ms: int) -> int:
        """Return the time up to which the rate is used up after starts of this weight."""
        now_us = now_ms * 1000
        latest_us = now_us + self.burst_us + _FILL_US_MAX
        return min(max(until_us, now_us) + self.cost_us(weight), latest_us)

    def weight_of(self, job: JobRow, given: int | None) -> int:
        """Return what a start of *job* counts: 1, unless the limit counts weights and the job has one."""
        if self.weight is None:
            return 1
        if given is not None:
            return given
        payload = strict_json.decode(job.payload_json)
        found = payload.get(self.weight) if isinstance(payload, dict) else None
        return min(max(found, 1), limits.LIMIT_WEIGHT_MAX) if type(found) is int else 1


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


class Room:
    """The room at a gate, while a claim takes it."""

    __slots__ = ("_gate", "_left_us", "_limit", "_now_ms", "_used_us", "jobs")

    def __init__(self, limit: LimitRow, gate: Gate, running: int, now_ms: int) -> None:
        gate = bounded(limit, gate, now_ms)
        self._limit = limit
        self._gate = gate
        self._now_ms = now_ms
        self.jobs = limits.CLAIM_MAX if limit.concurrency is None else max(limit.concurrency - running, 0)
        """How many more may run."""
        if gate.closed_until_ms:
            self.jobs = 0 if gate.closed_until_ms > now_ms or running else min(self.jobs, 1)
        self._used_us = max(gate.until_us, now_ms * 1000)
        self._left_us = limit.burst_us + now_ms * 1000 - self._used_us

    def admits(self, weight: int = 1) -> bool:
        """Return whether a job may start. One that weighs more than the burst starts once nothing of it is used."""
        return self.jobs > 0 and (self._limit.rate is None or self._needed_us(weight) <= self._left_us)

    def _needed_us(self, weight: int) -> int:
        return self._limit.cost_us(min(weight, self._limit.burst or 1))

    def take(self, weight: int = 1) -> None:
        """Start a job."""
        used_us = self._limit.used_until_us(self._used_us, weight, self._now_ms)
        self.jobs -= 1
        self._left_us -= used_us - self._used_us
        self._used_us = used_us

    @property
    def free(self) -> int:
        """How many jobs of weight 1 may start."""
        return self.jobs if self._limit.rate is None else max(min(self.jobs, self.left or 0), 0)

    @property
    def left(self) -> int | None:
        """How much of the rate is left; None without a rate."""
        limit = self._limit
        if limit.rate is None or limit.period_ms is None:
            return None
        return limit.weight_within(self._left_us)

    def opens_at_ms(self, weight: int = 1) -> int | None:
        """Return when a job may start, if time alone decides; None if it may now, or if others have to end."""
        if self._gate.closed_until_ms > self._now_ms:
            return self._gate.closed_until_ms
        short_us = self._needed_us(weight) - self._left_us
        if not self.jobs or self._limit.rate is None or short_us <= 0:
            return None
        return self._now_ms - (-short_us // 1000)

    def gate_after(self, starts: int) -> Gate:
        """Return the gate after what was taken, by so many starts."""
        gate = self._gate
        if starts and gate.closed_until_ms:
            gate = gate._replace(closed_until_ms=PROBED)
        return gate._replace(until_us=self._used_us) if starts and self._limit.rate is not None else gate


def used_at_most_us(limit: LimitRow, starts: int, now_ms: int) -> int:
    """Return up to when a rate may be used up so that so many jobs of weight 1 start: as `Room`, for many keys."""
    return now_ms * 1000 + limit.burst_us - starts * limit.cost_us(1)


def corrected(limit: LimitRow, gate: Gate, weight: int, now_ms: int) -> Gate:
    """Return *gate* after jobs have used so much more than they weighed, or less if it is negative."""
    if limit.rate is None:
        return gate
    if weight > 0:
        return gate._replace(until_us=limit.used_until_us(gate.until_us, weight, now_ms))
    # The cost of a negative weight is rounded up as well, so that what is returned is rounded down.
    return gate._replace(until_us=max(gate.until_us + limit.cost_us(weight), 0))


def bounded(limit: LimitRow, gate: Gate, now_ms: int) -> Gate:
    """Return *gate* with a burst used up if it is more: starts do not use more, so the clock was set back.

    Where weights differ, jobs may have used more; periodic maintenance corrects these.
    """
    most_us = now_ms * 1000 + limit.burst_us
    if limit.weight is not None or limit.rate is None or gate.until_us <= most_us:
        return gate
    return gate._replace(until_us=most_us)


class Rescaling(NamedTuple):
    """How the gates of a limit keep what starts have used up when its rate changes."""

    factor: float
    """How many times as long as before it takes until the same starts are paid off."""
    longest_us: int
    """The longest time that it may take."""


def rescaling(before: LimitRow, after: LimitRow) -> Rescaling | None:
    """Return how gates change when the rate of their limit does; None if it stays, or one of both has none."""
    if not (before.rate and before.period_ms and after.rate and after.period_ms):
        return None
    factor = after.period_ms * before.rate / (before.period_ms * after.rate)
    return None if factor == 1 else Rescaling(factor, after.burst_us + _FILL_US_MAX)


PROBED: Final = 1
"""As the time until which a gate is closed: the first job after that time has started."""


def reopened(gate: Gate, running: int) -> Gate:
    """Return *gate* open if the first job after it was closed has ended, and has not closed it again."""
    return gate._replace(closed_until_ms=0) if gate.closed_until_ms == PROBED and not running else gate


class GivenForLimits(NamedTuple):
    """What a job was given for limits when it was enqueued."""

    key: str | None
    weight: int | None


def check_given(options: Mapping[str, Any], *, in_session: bool) -> GivenForLimits | None:
    """Validate the options of a job that concern limits; None if there are none."""
    key = validation.optional_name(options.get("limit_key"), "limit_key", limits.LIMIT_KEY_CHARS_MAX)
    weight = options.get("limit_weight")
    if weight is not None:
        weight = validation.integer(weight, "limit_weight", 1, limits.LIMIT_WEIGHT_MAX)
    if key is None and weight is None:
        return None
    if in_session:
        field = "limit_weight" if key is None else "limit_key"
        raise errors.InvalidInput(
            field, "cannot be given for a session entry: its limits have other keys, such as tenant"
        )
    return GivenForLimits(key, weight)


def check_usage(usage: object) -> tuple[tuple[str, int], ...]:
    """Validate what an attempt reports as used, and return it in order of the names."""
    if not isinstance(usage, Mapping):
        raise errors.InvalidInput("usage", f"must be a dict such as {{'tokens': 812}}, not {type(usage).__name__}")
    if len(usage) > limits.USAGES_MAX:
        raise errors.InvalidInput(
            "usage", f"has {len(usage)} entries; the limit is {limits.USAGES_MAX}", limits.USAGES_MAX
        )
    used = {validation.name(name, "usage", limits.LIMIT_NAME_CHARS_MAX): value for name, value in usage.items()}
    return tuple(
        (name, validation.integer(value, f"usage.{name}", 0, limits.LIMIT_WEIGHT_MAX))
        for name, value in sorted(used.items())
    )


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
    weight = options.get("weight")
    rate_max = limits.LIMIT_RATE_MAX if weight is None else limits.LIMIT_WEIGHT_MAX
    rate, burst = _count(options, "rate", rate_max), _count(options, "burst", rate_max)
    if concurrency is None and rate is None:
        raise errors.InvalidInput("concurrency", "must be given, or rate")
    if rate is None and any(options.get(name) is not None for name in ("burst", "per", "weight")):
        raise errors.InvalidInput("rate", "must be given with per, burst and weight")
    period_ms = None
    if rate is not None:
        per = options.get("per")
        period_ms = validation.duration_ms(60 if per is None else per, "per", limits.SECOND_MS, limits.DAY_MS)
        burst = rate if burst is None else burst
    source = _source(options.get("key", ALL))
    weight = None if weight is None else validation.name(weight, "weight", limits.LIMIT_NAME_CHARS_MAX)
    new = LimitRow(0, check_name(name), kinds, lanes, source, concurrency, rate, period_ms, burst, weight)
    if new.cost_us(burst or 1) > _FILL_US_MAX:
        raise errors.InvalidInput("burst", f"would take more than {_YEARS_MAX} years to fill at this rate")
    return new


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
    parts = text.split(_AND)
    if not all(part in _SOURCES or (part.startswith(TAG) and len(part) > len(TAG)) for part in parts):
        raise errors.InvalidInput(
            "key", f"must be one of {', '.join(_SOURCES)} or tag:NAME, or some of them joined by +, not {text!r}"
        )
    if twice := next((part for part in parts if parts.count(part) > 1), None):
        raise errors.InvalidInput("key", f"names {twice} more than once: {text!r}")
    if ALL in parts and len(parts) > 1:
        raise errors.InvalidInput("key", f"joins all with others: {text!r}; leave all out")
    return text


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
    return Limit(
        row.name, row.kinds, row.lanes, row.key_source, row.concurrency, row.rate, per, row.burst, row.weight
    )
