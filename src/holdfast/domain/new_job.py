"""New jobs: the validation of the options of `enqueue`, and the first row of a job."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Container, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypedDict, Unpack

from holdfast.domain import backoff as backoffs, errors, limits, sessions, strict_json, validation, webhook_urls
from holdfast.domain.artifacts import CheckedArtifact, check_artifacts, contents
from holdfast.domain.backoff import Backoff
from holdfast.domain.clock import Now
from holdfast.domain.codec import NULL, Codec, encode_text, is_encoded
from holdfast.domain.debounce import Debounce, check_debounce, check_dedupe_for
from holdfast.domain.dependencies import DEPENDENCY_OPTIONS, Dependencies, check_dependencies
from holdfast.domain.gates import GivenForLimits, check_given
from holdfast.domain.job import SYSTEM_LANE as _SYSTEM_LANE, JobRow
from holdfast.domain.job_options import EnqueueOptions, JobOptions, NewJobOptions, OnDuplicate
from holdfast.domain.kinds import Publication
from holdfast.domain.lazy_rows import LazyRow, UsualColumns
from holdfast.domain.routing import DEFAULT_NAME, EVENT_SCOPES, Route, RouteKey, RoutingTable
from holdfast.domain.strict_json import Json


class NewJob:
    """A job to be enqueued: kind, payload and the options of `enqueue`."""

    __slots__ = ("kind", "options", "payload")

    kind: str
    """The kind of work."""
    payload: Json
    """What its handler receives."""
    options: JobOptions
    """The options of `enqueue`."""

    def __init__(self, kind: str, payload: Json = None, **options: Unpack[JobOptions]) -> None:
        self.kind = kind
        self.payload = payload
        self.options = options

    def __repr__(self) -> str:
        return f"NewJob({self.kind!r}, {self.payload!r}, **{self.options!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, NewJob):
            return NotImplemented
        return (self.kind, self.payload, self.options) == (other.kind, other.payload, other.options)

    __hash__ = None  # type: ignore[assignment]  # the payload may change


def new_job_of(kind: str | NewJob, payload: Json, common: Mapping[str, Any], options: EnqueueOptions) -> NewJob:
    """Return the job of an `enqueue`; those of the *common* options that are None were not given."""
    given: Any = {**{option: value for option, value in common.items() if value is not None}, **options}
    if not isinstance(kind, NewJob):
        return NewJob(kind, payload, **given)
    if payload is not None or given:
        excess = "payload" if payload is not None else min(given)
        raise errors.InvalidInput(excess, "cannot be combined with a NewJob, which has its own payload and options")
    return kind


class TaskJob(NewJob):
    """A job whose options a task of this process has set: the catalog of kinds does not apply to it."""

    __slots__ = ()


class SentJob(NewJob):
    """A job that the Python client of the HTTP service has validated, with what it knows and the server does not."""

    __slots__ = ("declared", "digest", "merge_tags", "message_count")

    declared: bool
    """Whether a task of the client has set its options, so that the catalog of kinds does not apply."""
    digest: str | None
    """By what the client identifies the call, if it has encoded the payload or middleware has changed the job."""
    merge_tags: bool
    """Whether middleware has added the tags, so that those which a worker has published stay."""
    message_count: int | None
    """The number of messages in an encoded payload."""


class SystemJob(TaskJob):
    """A job that Holdfast itself enqueues, in a lane and of a kind that callers cannot use."""

    __slots__ = ()


JobLike: TypeAlias = NewJob | NewJobOptions | Mapping[str, Any]
"""A job to be enqueued: a `NewJob`, or a dict with `kind`, `payload` and the options of `enqueue`."""


class JobSettings(NamedTuple):
    """The settings of a job except payload, id and key, in stored form.

    Many jobs have the same settings, so validated ones are cached.
    """

    route: RouteKey
    tenant: str
    priority: int
    affinity: str | None
    headers_json: str
    tags_json: str
    delay_ms: int
    run_at_ms: int | None
    deadline_in_ms: int | None
    deadline_at_ms: int | None
    max_attempts: int
    backoff_json: str | None
    dedupe_kind: str | None
    on_duplicate: OnDuplicate
    record_all: bool


class CheckedJob(NamedTuple):
    """A validated job in stored form, not yet in the store."""

    id: str
    settings: JobSettings
    payload_json: str
    dedupe_key: str | None
    digest: str | None
    entry: sessions.SessionEntry | None = None
    """The session entry, if it is one."""
    given: Container[str] | None = None
    """The options that the caller gave; None if the catalog of kinds does not apply or has been applied."""
    artifacts: tuple[CheckedArtifact, ...] = ()
    """The input artifacts."""
    plain_json: str | None = None
    """The payload before a codec encoded it; None if it is not encoded."""
    webhook_url: str | None = None
    """Where its events are sent."""
    dedupe_for_ms: int | None = None
    """For how long its key is kept, even if it finishes; None if only while it is unfinished."""
    lineage: tuple[str | None, str | None] = (None, None)
    """The ids of its parent and of the root of their tree."""
    dependencies: Dependencies | None = None
    """The jobs after which it runs."""
    for_limits: GivenForLimits | None = None
    """What it was given for limits by key."""
    on_end: CheckedJob | None = None
    """The job that runs once it has ended."""
    debounce: Debounce | None = None
    """For how long it waits for another enqueue of its key."""

    def encoded(self, codec: Codec, field: str) -> CheckedJob:
        """Return the job with its payload encoded; the digest stays, because it identifies what the caller sent."""
        if self.on_end is not None:
            self = self._replace(on_end=self.on_end.encoded(codec, f"{field}on_end."))  # noqa: PLW0642
        if self.payload_json == NULL:
            return self
        text = encode_text(codec, self.payload_json, f"{field}payload", limits.PAYLOAD_BYTES_MAX)
        return self._replace(payload_json=text, plain_json=self.payload_json)


# The fields of a job without options after the payload.
_NO_OPTIONS: Final = CheckedJob("", None, "", None, None, given=())[3:]  # type: ignore[arg-type]
_NOTHING_RARE: Final = (None,) * 7
DedupeKey: TypeAlias = tuple[str, str, str]
"""Tenant, kind (empty if the key is unique within the tenant), and key."""


SYSTEM_LANE: Final = _SYSTEM_LANE
SYSTEM_KIND: Final = "holdfast.webhook"
"""The lane and the kind of deliveries of webhooks. Callers cannot enqueue in it or of it."""
_OPTIONS: Final = frozenset(JobOptions.__annotations__)
_OWN_OPTIONS: Final = DEPENDENCY_OPTIONS | {
    "job_id",
    "dedupe_key",
    "dedupe_for",
    "debounce",
    "max_wait",
    "artifacts",
    "webhook_url",
    "limit_key",
    "limit_weight",
}
_NO_STRINGS: Final = "{}"
_SETTINGS_CACHED: Final = 1_024


def check_job(new: JobLike, *, fresh_id: str, tenant: str = DEFAULT_NAME, field: str = "") -> CheckedJob:
    """Return *new* validated and in stored form; raise `InvalidInput`, which names the option, if one is invalid.

    *fresh_id* is used if the caller chose no id, *tenant* if no tenant is given; *field* is the path of the job
    within a larger call.
    """
    try:
        kind, payload, options = parts_of(new)
        if not options and type(new) in (NewJob, dict) and type(kind) is str and tenant == DEFAULT_NAME:
            return check_new(kind, payload, fresh_id)
        checked = _check(kind, payload, options, fresh_id, tenant, type(new))
        return _as_sent(checked, new) if isinstance(new, SentJob) else checked
    except errors.InvalidInput as error:
        if not field:
            raise
        raise errors.InvalidInput(f"{field}.{error.field}", error.problem) from None


def check_new(kind: str, payload: Json, fresh_id: str) -> CheckedJob:
    """Return a job without options as `check_job` does, in half the time."""
    if kind == SYSTEM_KIND:
        return _check(kind, payload, {}, fresh_id, DEFAULT_NAME, NewJob)
    settings = _settings_of_kind(kind)
    payload_json = strict_json.encode(payload, "payload", limits.PAYLOAD_BYTES_MAX)
    return tuple.__new__(CheckedJob, (fresh_id, settings, payload_json) + _NO_OPTIONS)  # noqa: RUF005  # takes less time


def _as_sent(checked: CheckedJob, new: SentJob) -> CheckedJob:
    given: Container[str] | None = None if new.declared else checked.given
    if new.merge_tags and not new.declared:
        given = frozenset(new.options) - {"tags"}
    digest = checked.digest if checked.digest is None or new.digest is None else new.digest
    entry = checked.entry
    if entry is not None and new.message_count is not None:
        entry = dataclasses.replace(entry, messages=new.message_count)
    return checked._replace(given=given, digest=digest, entry=entry)


def digest_of(checked: CheckedJob) -> str:
    """Return the digest of a job as it is sent, which differs from its own if it was changed since."""
    settings, payload_json, key = checked.settings, checked.payload_json, checked.dedupe_key
    rare = (checked.webhook_url, checked.dedupe_for_ms, checked.dependencies, checked.for_limits)
    identity = _identity_of(checked.on_end)
    return _digest(settings, payload_json, key, checked.entry, checked.artifacts, *rare, identity, checked.debounce)


def parts_of(new: JobLike) -> tuple[Any, Json, JobOptions]:
    """Return kind, payload and options of *new*."""
    if isinstance(new, NewJob):
        return new.kind, new.payload, new.options
    if type(new) is not dict and not isinstance(new, Mapping):
        raise errors.InvalidInput("job", f"must be a NewJob or a dict, not {type(new).__name__}")
    options = dict(new)
    kind, payload = options.pop("kind", None), options.pop("payload", None)
    if kind is None:
        raise errors.InvalidInput("kind", "is missing")
    return kind, payload, options  # type: ignore[return-value]  # unknown options are refused next


def copy_job(new: JobLike, checked: CheckedJob) -> NewJob:
    """Return a copy of *new*, which was validated as *checked*, that later changes of its payload do not affect."""
    kind, _, options = parts_of(new)
    payload = strict_json.decode(checked.payload_json)
    if checked.entry is not None and checked.entry.messages is not None:
        options, payload = {**options, "messages": payload}, None
    return (TaskJob if checked.given is None else NewJob)(kind, payload, **options)


def _check(
    kind: Any, payload: Json, options: JobOptions, fresh_id: str, tenant: str, job_type: type[object]
) -> CheckedJob:
    chosen = key = entry = webhook_url = dedupe_for_ms = after = for_limits = on_end = debounce = None
    artifacts: tuple[CheckedArtifact, ...] = ()
    given = None if issubclass(job_type, TaskJob) else options
    if options and not _OPTIONS.issuperset(options):
        validation.refuse_unknown(options, _OPTIONS, "a job")
    if options and not sessions.SESSION_OPTIONS.isdisjoint(options):
        if sessions.joins_session(options):
            entry, payload = sessions.check_entry(options, payload)
        options = {option: value for option, value in options.items() if option not in sessions.SESSION_OPTIONS}  # type: ignore[assignment]
    if options and not _OWN_OPTIONS.isdisjoint(options):
        chosen = validation.chosen_id(options.get("job_id"), "job_id")
        key = validation.optional_name(options.get("dedupe_key"), "dedupe_key", limits.DEDUPE_KEY_CHARS_MAX)
        dedupe_for_ms = check_dedupe_for(options, key)
        debounce = check_debounce(options, key)
        artifacts = check_artifacts(options.get("artifacts", ()))
        if options.get("webhook_url") is not None:
            webhook_url = webhook_urls.check_url(options["webhook_url"], "webhook_url")
        after = check_dependencies(options, in_session=entry is not None)
        for_limits = check_given(options, in_session=entry is not None)
        if (callback := options.get("on_end")) is not None:
            on_end = check_callback(callback, "on_end")
        delay = {} if debounce is None else {"delay": debounce.pause_ms / 1000}
        options = {option: value for option, value in options.items() if option not in _OWN_OPTIONS} | delay  # type: ignore[assignment]
    settings = _settings(kind, tenant, options, keyed=key is not None)
    if (settings.route.lane == SYSTEM_LANE or kind == SYSTEM_KIND) and job_type is not SystemJob:
        field = "kind" if kind == SYSTEM_KIND else "lane"
        raise errors.InvalidInput(field, "is reserved for deliveries of webhooks")
    if webhook_url is not None:
        settings = settings._replace(record_all=True)
    if entry is not None:
        settings = settings._replace(route=settings.route._replace(session=True))
    payload_json = strict_json.encode(payload, "payload", limits.PAYLOAD_BYTES_MAX)
    parts = (webhook_url, dedupe_for_ms, after, for_limits, _identity_of(on_end), debounce)
    digest = None if chosen is None else _digest(settings, payload_json, key, entry, artifacts, *parts)
    known = (chosen or fresh_id, settings, payload_json, key, digest, entry, given, artifacts, None, *parts[:2])
    # In a third of the time that the constructor takes.
    return tuple.__new__(CheckedJob, (*known, (None, None), after, for_limits, on_end, debounce))


def check_callback(new: JobLike, field: str) -> CheckedJob:
    """Return the job that runs after another, validated; its id and tenant follow from the other."""
    try:
        if other := sorted(parts_of(new)[2].keys() - {*PUBLISHED, "headers"}):
            raise errors.InvalidInput(other[0], "is not an option of a callback")
        return check_job(new, fresh_id="")
    except errors.InvalidInput as error:
        raise errors.InvalidInput(f"{field}.{error.field}".removesuffix(".job"), error.problem) from None


def _identity_of(on_end: CheckedJob | None) -> tuple[JobSettings, str] | None:
    return None if on_end is None else (on_end.settings, on_end.payload_json)


def _settings(kind: Any, tenant: str, options: JobOptions, *, keyed: bool) -> JobSettings:
    try:
        # Flat, because the cache distinguishes 1 from 1.0 and True only among its direct arguments.
        return _cached_settings(kind, tenant, keyed, *options, *options.values())
    except TypeError:
        return _check_settings(kind, tenant, options, keyed=keyed)


@lru_cache(_SETTINGS_CACHED, typed=True)
def _cached_settings(kind: Any, tenant: str, keyed: bool, *flat: Any) -> JobSettings:  # noqa: FBT001
    count = len(flat) // 2
    options: Any = dict(zip(flat[:count], flat[count:], strict=True))
    return _check_settings(kind, tenant, options, keyed=keyed)


_settings_of_kind = lru_cache(_SETTINGS_CACHED)(lambda kind: _cached_settings(kind, DEFAULT_NAME, False))  # noqa: FBT003


def _check_settings(kind: Any, tenant: str, options: JobOptions, *, keyed: bool) -> JobSettings:
    affinity = validation.optional_name(options.get("affinity"), "affinity")
    kind = validation.name(kind, "kind")
    backoff = options.get("backoff")
    if backoff is not None and not isinstance(backoff, Backoff):
        raise errors.InvalidInput("backoff", f"must be a Backoff, not {type(backoff).__name__}")
    lane = validation.name(options.get("lane", DEFAULT_NAME), "lane")
    return JobSettings(
        route=RouteKey(lane, kind, _requires(options.get("requires", ())), affinity is not None),
        tenant=validation.name(options.get("tenant", tenant), "tenant"),
        priority=validation.integer(
            options.get("priority", 0), "priority", -limits.PRIORITY_MAX, limits.PRIORITY_MAX
        ),
        affinity=affinity,
        headers_json=_strings(options, "headers", limits.HEADERS_MAX, limits.HEADER_VALUE_CHARS_MAX),
        tags_json=_strings(options, "tags", limits.TAGS_MAX, limits.TAG_VALUE_CHARS_MAX),
        **_times(options),
        max_attempts=validation.integer(
            options.get("max_attempts", limits.MAX_ATTEMPTS_DEFAULT), "max_attempts", 1, limits.MAX_ATTEMPTS_MAX
        ),
        backoff_json=None if backoff is None else backoffs.to_json(backoff),
        dedupe_kind=_dedupe_kind(kind, options, keyed=keyed),
        on_duplicate=validation.one_of(
            options.get("on_duplicate", "keep"), "on_duplicate", ("keep", "replace", "run_again")
        ),
        record_all=validation.one_of(options.get("events", "terminal"), "events", EVENT_SCOPES) == "all",
    )


def _requires(tokens: Sequence[str]) -> str:
    checked = sorted(validation.names(tokens, "requires", limits.REQUIRES_MAX))
    return strict_json.encode(checked, "requires", limits.PAYLOAD_BYTES_MAX) if checked else "[]"


def _strings(options: JobOptions, field: Literal["headers", "tags"], count_max: int, chars_max: int) -> str:
    if field not in options:
        return _NO_STRINGS
    strings = validation.string_map(options[field], field, count_max, chars_max)
    return strict_json.encode(strings, field, limits.PAYLOAD_BYTES_MAX)


class _Times(TypedDict):
    delay_ms: int
    run_at_ms: int | None
    deadline_in_ms: int | None
    deadline_at_ms: int | None


def _times(options: JobOptions) -> _Times:
    times = _Times(delay_ms=0, run_at_ms=None, deadline_in_ms=None, deadline_at_ms=None)
    if "delay" in options and "run_at" in options:
        raise errors.InvalidInput("run_at", "cannot be combined with delay")
    if "delay" in options:
        times["delay_ms"] = validation.duration_ms(options["delay"], "delay")
    if "run_at" in options:
        times["run_at_ms"] = validation.timestamp_ms(options["run_at"], "run_at")
    deadline = options.get("deadline")
    if isinstance(deadline, datetime):
        times["deadline_at_ms"] = validation.timestamp_ms(deadline, "deadline")
    elif deadline is not None:
        times["deadline_in_ms"] = validation.duration_ms(deadline, "deadline")
    return times


def _dedupe_kind(kind: str, options: JobOptions, *, keyed: bool) -> str | None:
    """Return the kind within which the key is unique, or None if it is unique within the tenant."""
    scope = validation.one_of(options.get("dedupe_scope", "kind"), "dedupe_scope", ("kind", "tenant"))
    if keyed:
        return kind if scope == "kind" else ""
    for option in ("on_duplicate", "dedupe_scope"):
        if option in options:
            raise errors.InvalidInput(option, "requires a dedupe_key")
    return None


def _digest(
    settings: JobSettings,
    payload_json: str,
    key: str | None,
    entry: sessions.SessionEntry | None,
    artifacts: Sequence[CheckedArtifact],
    *rare: str | int | Dependencies | GivenForLimits | Debounce | tuple[JobSettings, str] | None,
) -> str:
    bodies = map(strict_json.decode, (payload_json, settings.headers_json, settings.tags_json))
    content = [settings._replace(headers_json="", tags_json=""), key, *bodies, entry]
    content += [contents(artifacts), *(value for value in rare if value is not None)]
    return hashlib.blake2b(strict_json.canonical(content), digest_size=16).hexdigest()


# The settings that each published option determines.
PUBLISHED: Final[Mapping[str, tuple[str, ...]]] = {
    "lane": ("lane",),
    "requires": ("requires_json",),
    "affinity": ("has_affinity", "affinity"),
    "priority": ("priority",),
    "tags": ("tags_json",),
    "delay": ("delay_ms",),
    "deadline": ("deadline_in_ms",),
    "max_attempts": ("max_attempts",),
    "backoff": ("backoff_json",),
    "events": ("record_all",),
}


def with_publication(new: CheckedJob, publication: Publication | None) -> CheckedJob:
    """Return *new* with the published options that its caller did not give.

    Raise `InvalidInput` if the payload does not match the published schema. The digest stays: it identifies what the
    caller sent.
    """
    if new.given is None or publication is None:
        return new
    if publication.session and new.entry is None:
        raise errors.InvalidInput("session", f"must be named: {new.settings.route.kind!r} is a session task")
    payload_json = new.plain_json or new.payload_json
    # A caller without a codec may send a payload that it has encoded itself.
    if not is_encoded(payload_json):
        publication.check_payload(payload_json, None if new.entry is None else new.entry.messages)
    settings = new.settings
    published = _published_settings(settings.route.kind, publication.options_json)
    excluded = {
        *(() if new.entry is None else sessions.UNSUPPORTED_OPTIONS),
        *(() if new.webhook_url is None else ("events",)),
        *(() if new.debounce is None else ("delay",)),
    }
    changes = {
        field: value
        for option, fields in published.items()
        if option not in new.given and option not in excluded
        for field, value in fields.items()
    }
    if "tags_json" in changes and settings.tags_json != _NO_STRINGS:
        # The caller gave no tags, so middleware has added these.
        tags = {**strict_json.decode(changes["tags_json"]), **strict_json.decode(settings.tags_json)}
        changes["tags_json"] = _strings({"tags": tags}, "tags", limits.TAGS_MAX, limits.TAG_VALUE_CHARS_MAX)
    if not changes:
        return new._replace(given=None)
    route = settings.route._replace(**{field: changes.pop(field) for field in RouteKey._fields if field in changes})
    return new._replace(settings=settings._replace(route=route, **changes), given=None)


@lru_cache(_SETTINGS_CACHED)
def _published_settings(kind: str, options_json: str) -> dict[str, dict[str, Any]]:
    """Return the settings that published options determine, by option. Options of later versions are ignored."""
    options: Any = {name: value for name, value in strict_json.decode(options_json).items() if name in PUBLISHED}
    if "backoff" in options:
        options["backoff"] = Backoff(**options["backoff"])
    settings = _check_settings(kind, DEFAULT_NAME, options, keyed=False)
    values = {**settings._asdict(), **settings.route._asdict()}
    return {option: {field: values[field] for field in PUBLISHED[option]} for option in options}


def uuid7(now_ms: int, bits: int) -> str:
    """Return a UUIDv7 of 74 random bits: its first 48 bits are the time, so new ids go to the end of an index."""
    text = f"{now_ms << 80 | 7 << 76 | bits >> 62 << 64 | 1 << 63 | bits & 0x3FFF_FFFF_FFFF_FFFF:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def is_plain(new: CheckedJob) -> bool:
    """Return whether *new* cannot be a duplicate, depends on none, and has no parent, artifacts or URL."""
    if new[3:] == _NO_OPTIONS:
        return not new.settings.record_all
    rare = (new.digest, new.dedupe_key, new.entry, new.webhook_url, new.dependencies, new.for_limits, new.on_end)
    return rare == _NOTHING_RARE and new.lineage[0] is None and not new.artifacts and not new.settings.record_all


def plain_job(new: CheckedJob, routing: RoutingTable) -> tuple[CheckedJob, Route] | None:
    """Return *new* with its published options, and its route, if it can be stored without reading anything first.

    None if it may be a duplicate, has to be recorded, or if *routing*, which may be outdated, does not accept it.
    """
    if not is_plain(new):
        return None
    if routing.publications:
        try:
            new = with_publication(new, routing.publications.get(new.settings.route.kind))
        except errors.InvalidInput:
            return None
    key = new.settings.route
    route = routing.routes.get(key)
    if route is None or new.settings.record_all or key.lane in routing.recorded_lanes or key.kind in routing.retired:
        return None
    lane = routing.lanes.get(key.lane)
    refusing = lane is not None and (lane.state == "draining" or lane.max_waiting is not None)
    return None if refusing else (new, route)


def times_of(settings: JobSettings, now: Now) -> tuple[int, int | None]:
    """Return when a job that is enqueued at *now* is due, and its deadline."""
    due_at_ms = now.wall_ms + settings.delay_ms
    if settings.run_at_ms is not None:
        due_at_ms = max(settings.run_at_ms, now.wall_ms)
    if settings.deadline_in_ms is not None:
        return due_at_ms, now.wall_ms + settings.deadline_in_ms
    return due_at_ms, settings.deadline_at_ms


# The fields of a job that was never claimed, from `epoch` to `failure_traceback`.
_UNCLAIMED: Final = (
    0,  # epoch
    # worker, incarnation, lease_token, lease_until_ms, claim_index, started_at_ms
    *(None, None, None, None, None, None),
    *(None, None, None, None),  # outcome, settle_digest, phase, percent
    *(0, 0, 0),  # unacknowledged, cancel_requested, suspect
    *(0, None, 0),  # deferrals, deferred_since_ms, releases
    *(None, None, None, None),  # failure_class, failure_reason, failure_message, failure_traceback
)


# What follows the priority in the settings of most jobs.
_USUAL_SETTINGS: Final = (
    *(None, "{}", "{}"),  # affinity, headers_json, tags_json
    *(0, None, None, None),  # delay_ms, run_at_ms, deadline_in_ms, deadline_at_ms
    *(limits.MAX_ATTEMPTS_DEFAULT, None, None, "keep", False),  # backoff, dedupe_kind, on_duplicate, record_all
)


class NewRow(LazyRow):
    """The row of a new job that the store has written without making it; `new_job` makes it."""

    __slots__ = ("_fair_key", "_new", "_now", "seq")

    def __init__(self, new: CheckedJob, seq: int, fair_key: str, now: Now) -> None:
        self._new = new
        self.seq = seq
        self._fair_key = fair_key
        self._now = now

    id = property(lambda self: self._new.id)
    kind = property(lambda self: self._new.settings.route.kind)
    lane = property(lambda self: self._new.settings.route.lane)
    tenant = property(lambda self: self._new.settings.tenant)
    payload_json = property(lambda self: self._new.payload_json)

    def make(self) -> JobRow:
        """Return the row."""
        return new_job(self._new, self.seq, self._fair_key, self._now)

    def usual(self) -> UsualColumns | None:
        """Return the columns of a job without options, for which no parent is known."""
        new = self._new
        route, tenant, priority, *others = new.settings
        if tuple(others) != _USUAL_SETTINGS or new.dedupe_key is not None or new.lineage != (None, None):
            return None
        none, at = None, self._now.wall_ms
        place = ("ready", route.kind, route.lane, tenant, priority, route.requires_json)
        running = (none, none, none, 0, none, none, none)
        return tuple.__new__(UsualColumns, (self.seq, new.id, *place, new.payload_json, none, at, *running))


def new_job(new: CheckedJob, seq: int, fair_key: str, now: Now) -> JobRow:
    """Return the job made from *new* at *now*: ready, or scheduled if it is due later."""
    job_id, settings, payload_json, dedupe_key, digest, *_ = new
    due_at_ms, deadline_at_ms = times_of(settings, now)
    lane, kind, requires_json, _, _ = settings.route
    state = "scheduled" if due_at_ms > now.wall_ms else "ready"
    fields = (
        *(seq, job_id, state, kind, lane, settings.tenant, fair_key, settings.priority, settings.affinity),
        *(requires_json, payload_json, settings.headers_json, settings.tags_json),
        *(None, now.wall_ms, due_at_ms, deadline_at_ms, None, 0),  # result_json, finished_at_ms, attempt
        *(settings.max_attempts, settings.backoff_json, *_UNCLAIMED),
        *(dedupe_key, settings.dedupe_kind, None, digest, *new.lineage),  # predecessor
        *(None, None, None, int(settings.record_all), 0),  # session_number, enqueue_seq, entry_json, event_count
    )
    # By index: with this many fields, keyword arguments take six times as long.
    return tuple.__new__(JobRow, fields)
