"""Schedules: jobs at times of a calendar or at intervals; their validation, and which tick is fired when."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypedDict

from holdfast.domain import callbacks, codec, cron, errors, limits, new_job, strict_json, validation
from holdfast.domain.backoff import Backoff
from holdfast.domain.routing import DEFAULT_NAME, EventScope
from holdfast.domain.strict_json import Json
from holdfast.domain.validation import Duration

Missed: TypeAlias = Literal["one", "skip"]
"""What is done for ticks at which nothing ran that could fire them."""
Overlap: TypeAlias = Literal["allow", "skip"]
"""What a tick does while the job of an earlier one is unfinished."""

SCHEDULE_HEADER: Final = "holdfast-schedule"
TICK_HEADER: Final = "holdfast-tick"
"""Headers of the jobs of schedules: the name, and the tick as a timestamp in UTC."""
TICKS_KEPT: Final = 32
_STALE_MS: Final = 60_000
"""How late a tick may be that is not missed."""
_TAKEN_OVER_MS: Final = 3_600_000
"""After this time without a declaration another module may declare a name."""


class ScheduleOptions(TypedDict, total=False):
    """The options of `schedules.set` and `queue.schedule`: when it runs, and the options of its jobs."""

    cron: str | None
    """Five fields, or `@hourly`, `@daily`, `@weekly`, `@monthly`, `@yearly`; not together with `every`."""
    every: Duration | None
    """An interval in seconds, counted from 1970 in UTC; not together with `cron`."""
    zone: str
    """The time zone of `cron`, such as `Europe/Berlin`; default `UTC`."""
    missed: Missed
    """If ticks were missed: `one` (default) enqueues a job for the newest, `skip` none."""
    overlap: Overlap
    """`skip` enqueues no job while the job of an earlier tick is unfinished; default `allow`."""
    lane: str
    """The lane of its jobs; default `default`."""
    tenant: str
    """The tenant of the schedule and of its jobs; default `default`."""
    priority: int
    """The priority of its jobs."""
    requires: Sequence[str]
    """Capabilities that a worker must have."""
    affinity: str | None
    """The resource with which its jobs are cheaper to run."""
    headers: Mapping[str, str]
    """Headers of its jobs, besides `holdfast-schedule` and `holdfast-tick`."""
    tags: Mapping[str, str]
    """Tags of its jobs."""
    max_attempts: int
    """How many attempts each job may use."""
    backoff: Backoff | None
    """The pauses between attempts."""
    deadline: Duration
    """A job fails unless it has started this many seconds after it was enqueued."""
    events: EventScope
    """`all` records every transition of its jobs."""


_TIMING: Final = frozenset(("cron", "every", "zone", "missed", "overlap"))
_OPTIONS: Final = frozenset(ScheduleOptions.__annotations__)


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule: what is enqueued, when, and what became of it."""

    name: str
    """Its name, unique within the tenant."""
    tenant: str
    """The tenant of the schedule and of its jobs."""
    kind: str
    """The kind of its jobs."""
    payload: Json = field(hash=False)
    """The payload of its jobs, as it is stored."""
    options: Mapping[str, Json] = field(hash=False)
    """The options of its jobs."""
    cron: str | None
    """Its cron expression."""
    every: float | None
    """Its interval in seconds."""
    zone: str
    """The time zone of its expression."""
    missed: Missed
    """What is done for missed ticks."""
    overlap: Overlap
    """What a tick does while the job of an earlier one is unfinished."""
    owner: str | None
    """The module that declares it; None if it was set by a call."""
    paused: bool
    """Whether an operator has paused it."""
    next_at: datetime | None
    """Its next tick; None if it is paused or has none."""
    last_at: datetime | None
    """The newest tick that was fired or skipped."""
    last_job_id: str | None
    """The id of the job that it enqueued last."""
    problem: str | None
    """Why its newest tick enqueued no job, if it did not."""
    set_at: datetime
    """When it was set or changed last."""
    declared_at: datetime | None
    """When a worker declared it last, within a quarter of an hour; None if it was set by a call."""


class Timing(NamedTuple):
    """When a schedule has its ticks."""

    cron: str | None
    every_ms: int | None
    zone: str


class Definition(NamedTuple):
    """What a caller sets of a schedule, in stored form."""

    tenant: str
    name: str
    kind: str
    payload_json: str
    options_json: str
    timing: Timing
    missed: Missed
    overlap: Overlap


class StoredSchedule(NamedTuple):
    """A schedule as the store keeps it."""

    number: int
    definition: Definition
    owner: str | None
    ticks: tuple[int, ...]
    """The next ticks, so that a process without time zone data can fire them."""
    last_at_ms: int
    """No tick up to this time is fired."""
    last_tick_ms: int | None
    last_job_id: str | None
    paused: bool
    problem: str | None
    set_at_ms: int
    declared_at_ms: int | None

    @property
    def next_at_ms(self) -> int | None:
        """The next tick, if it is not paused."""
        return self.ticks[0] if self.ticks and not self.paused else None


def public(stored: StoredSchedule) -> Schedule:
    """Return what a program sees of a schedule."""
    one = stored.definition
    return Schedule(
        one.name,
        one.tenant,
        one.kind,
        strict_json.decode(one.payload_json),
        strict_json.decode(one.options_json),
        one.timing.cron,
        None if one.timing.every_ms is None else one.timing.every_ms / 1000,
        one.timing.zone,
        one.missed,
        one.overlap,
        stored.owner,
        stored.paused,
        validation.optional_datetime_of(stored.next_at_ms),
        validation.optional_datetime_of(stored.last_tick_ms),
        stored.last_job_id,
        stored.problem,
        validation.datetime_of(stored.set_at_ms),
        validation.optional_datetime_of(stored.declared_at_ms),
    )


# --- validation ----------------------------------------------------------------------------------------------------


def check_name(name: object, field: str = "name") -> str:
    """Return *name* if a schedule may have it."""
    checked = validation.name(name, field, limits.SCHEDULE_NAME_CHARS_MAX)
    if ":" in checked or "/" in checked:
        raise errors.InvalidInput(field, "must not contain ':' or '/'")
    return checked


def check_schedule(name: object, kind: str, payload: Json, options: Mapping[str, Any]) -> Definition:
    """Return a schedule in stored form, or raise `InvalidInput`."""
    validation.refuse_unknown(options, _OPTIONS, "a schedule")
    given = {option: value for option, value in options.items() if option not in _TIMING and value is not None}
    if isinstance(given.get("deadline"), datetime):
        raise errors.InvalidInput("deadline", "must be a number of seconds, because each job has its own")
    timing = _check_timing(options.get("cron"), options.get("every"), options.get("zone", "UTC"))
    jobs_options: Any = given
    checked = new_job.check_job(new_job.NewJob(kind, payload, **jobs_options), fresh_id="")
    definition = Definition(
        checked.settings.tenant,
        check_name(name),
        kind,
        checked.payload_json,
        callbacks.stored_options(given),
        timing,
        validation.one_of(options.get("missed", "one"), "missed", ("one", "skip")),
        validation.one_of(options.get("overlap", "allow"), "overlap", ("allow", "skip")),
    )
    # Two headers are added to each job.
    job_of_tick(definition, "", 0)
    return definition


def _check_timing(expression: object, every: Any, zone: object) -> Timing:
    if (expression is None) == (every is None):
        raise errors.InvalidInput("cron", "must be given, or every, and not both")
    zone = validation.name(zone, "zone")
    if expression is None:
        if zone != "UTC":
            raise errors.InvalidInput("zone", "applies to cron; intervals are counted in UTC")
        return Timing(None, validation.duration_ms(every, "every", limits.SCHEDULE_EVERY_MS_MIN), zone)
    text = validation.name(expression, "cron")
    first = cron.times_after(cron.parse(text), cron.zone_of(zone), datetime(2000, 1, 1, tzinfo=UTC))
    if next(first, None) is None:
        raise errors.InvalidInput("cron", f"{text!r} matches no day")
    return Timing(text, None, zone)


def encoded(definition: Definition, used: codec.Codec | None) -> Definition:
    """Return the definition with its payload encoded by the codec of a queue, if it has one."""
    if used is None or definition.payload_json == codec.NULL:
        return definition
    text = codec.encode_text(used, definition.payload_json, "payload", limits.PAYLOAD_BYTES_MAX)
    return definition._replace(payload_json=text)


# --- ticks ---------------------------------------------------------------------------------------------------------


def _ticks_after(timing: Timing, after_ms: int) -> Iterator[int]:
    if timing.every_ms is not None:
        first = after_ms // timing.every_ms + 1
        return (number * timing.every_ms for number in itertools.count(first))
    times = cron.times_after(
        cron.parse(timing.cron or ""), cron.zone_of(timing.zone), validation.datetime_of(after_ms)
    )
    return map(validation.milliseconds_of, times)


def ticks_after(timing: Timing, after_ms: int, count: int = TICKS_KEPT) -> tuple[int, ...]:
    """Return the next ticks; raise `InvalidInput` if this process does not know the time zone."""
    return tuple(itertools.islice(_ticks_after(timing, after_ms), count))


def newest_tick(timing: Timing, after_ms: int, until_ms: int) -> int | None:
    """Return the newest tick after *after_ms* and up to *until_ms*."""
    if timing.every_ms is not None:
        newest = until_ms // timing.every_ms * timing.every_ms
        return newest if newest > after_ms else None
    found = cron.newest_time(
        cron.parse(timing.cron or ""),
        cron.zone_of(timing.zone),
        validation.datetime_of(after_ms),
        validation.datetime_of(until_ms),
    )
    return None if found is None else validation.milliseconds_of(found)


class Due(NamedTuple):
    """What a look at a schedule decides."""

    tick_ms: int | None
    """The tick for which a job is enqueued; None if there is none."""
    after: StoredSchedule
    """The schedule after the look, with its next ticks."""


def decide(stored: StoredSchedule, now_ms: int) -> Due:
    """Return which tick of a schedule that is not paused is fired now, and the schedule after it."""
    timing, after_ms = stored.definition.timing, stored.last_at_ms
    try:
        tick_ms = newest_tick(timing, after_ms, now_ms)
        ticks = ticks_after(timing, max(now_ms, after_ms))
    except errors.InvalidInput:
        # This process has no time zone data: another one has computed the ticks.
        tick_ms = max((tick for tick in stored.ticks if after_ms < tick <= now_ms), default=None)
        ticks = tuple(tick for tick in stored.ticks if tick > max(now_ms, after_ms))
    after = stored._replace(ticks=ticks)
    if tick_ms is None:
        return Due(None, after)
    after = after._replace(last_at_ms=tick_ms, last_tick_ms=tick_ms, problem=None)
    if stored.definition.missed == "skip" and now_ms - tick_ms > _STALE_MS:
        return Due(None, after._replace(problem=f"the tick of {timestamp(tick_ms)} was missed"))
    return Due(tick_ms, after)


def timestamp(tick_ms: int) -> str:
    """Return a tick as a timestamp in UTC."""
    return validation.datetime_of(tick_ms).strftime("%Y%m%dT%H%M%SZ")


def job_id_of(definition: Definition, tick_ms: int) -> str:
    """Return the id of the job of a tick; no other tick of any schedule has it."""
    tenant = ""
    if definition.tenant != DEFAULT_NAME:
        tenant = f":{hashlib.blake2b(definition.tenant.encode(), digest_size=8).hexdigest()}"
    return f"{validation.RESERVED_PREFIX}schedule:{definition.name}:{timestamp(tick_ms)}{tenant}"


def job_of_tick(definition: Definition, job_id: str, tick_ms: int) -> new_job.CheckedJob:
    """Return the job of a tick with the options that were set; what workers publish for its kind is added later."""
    headers = {SCHEDULE_HEADER: definition.name, TICK_HEADER: validation.datetime_of(tick_ms).isoformat()}
    callback = callbacks.Callback(definition.kind, definition.payload_json, definition.options_json)
    return callbacks.job_of_callback(callback, job_id, definition.tenant, headers)


# --- changes -------------------------------------------------------------------------------------------------------


def new_schedule(definition: Definition, owner: str | None, now_ms: int) -> StoredSchedule:
    """Return a new schedule, whose first tick is after *now_ms*."""
    ticks = ticks_after(definition.timing, now_ms)
    declared_at_ms = None if owner is None else now_ms
    return StoredSchedule(
        0,
        definition,
        owner,
        ticks,
        last_at_ms=now_ms,
        last_tick_ms=None,
        last_job_id=None,
        paused=False,
        problem=None,
        set_at_ms=now_ms,
        declared_at_ms=declared_at_ms,
    )


def changed(stored: StoredSchedule, definition: Definition, now_ms: int) -> StoredSchedule:
    """Return a schedule with another definition; with other times, ticks start again after *now_ms*."""
    if stored.definition == definition:
        return stored
    after = stored._replace(definition=definition, set_at_ms=now_ms, problem=None)
    if stored.definition.timing == definition.timing:
        return after
    return after._replace(ticks=ticks_after(definition.timing, now_ms), last_at_ms=now_ms)


def resumed(stored: StoredSchedule, now_ms: int) -> StoredSchedule:
    """Return a paused schedule as it goes on after *now_ms*."""
    ticks = ticks_after(stored.definition.timing, now_ms)
    return stored._replace(paused=False, ticks=ticks, last_at_ms=now_ms)


def declared(stored: StoredSchedule | None, definition: Definition, owner: str, now_ms: int) -> StoredSchedule | None:
    """Return a schedule as a module declares it; None if the name belongs to another or was set by a call."""
    if stored is None:
        return new_schedule(definition, owner, now_ms)
    if stored.owner is None:
        return None
    if stored.owner != owner and now_ms - (stored.declared_at_ms or 0) < _TAKEN_OVER_MS:
        return None
    return changed(stored, definition, now_ms)._replace(owner=owner, declared_at_ms=now_ms)


def runs_low(stored: StoredSchedule, now_ms: int) -> bool:
    """Return whether few ticks are stored, of less than a year: what fires them has no time zone data."""
    few = len(stored.ticks) <= TICKS_KEPT // 2
    return few and max(stored.ticks, default=now_ms) - now_ms < 366 * limits.DAY_MS


def is_silenced(stored: StoredSchedule, now_ms: int) -> bool:
    """Return whether the clock was ahead when the last tick was fired, so that a day or more has no ticks."""
    return stored.last_at_ms - now_ms > limits.DAY_MS
