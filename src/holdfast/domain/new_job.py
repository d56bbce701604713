"""New jobs: the options of `enqueue`, their validation, and the handling of duplicate keys."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Container, Mapping, Sequence, Set
from datetime import datetime
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypedDict, Unpack

from holdfast.domain import limits, strict_json, validation
from holdfast.domain.artifacts import AnyArtifact, CheckedArtifact, check_artifacts, contents
from holdfast.domain.backoff import Backoff
from holdfast.domain.clock import Now
from holdfast.domain.codec import NULL, Codec, encode_text, is_encoded
from holdfast.domain.errors import Conflict, InvalidInput
from holdfast.domain.job import JobRow
from holdfast.domain.kinds import Publication
from holdfast.domain.routing import DEFAULT_NAME, EVENT_SCOPES, EventScope, Route, RouteKey, RoutingTable
from holdfast.domain.sessions import (
    SESSION_OPTIONS,
    UNSUPPORTED_OPTIONS,
    SessionEntry,
    SessionOptions,
    check_entry,
    joins_session,
)
from holdfast.domain.strict_json import Json
from holdfast.domain.validation import Duration

OnDuplicate: TypeAlias = Literal["keep", "replace", "run_again"]
"""What an enqueue does if an unfinished job has its dedupe key; see `EnqueueOptions`."""
DedupeScope: TypeAlias = Literal["kind", "tenant"]
"""Within what a dedupe key is unique: tenant and kind, or tenant."""


class EnqueueOptions(SessionOptions, total=False):
    """The options of `enqueue` besides `delay`, `priority`, `lane`, `tenant` and `dedupe_key`."""

    run_at: datetime
    """The earliest time at which it may be claimed; not together with `delay`."""
    deadline: Duration | datetime
    """It fails unless started by then; seconds from now, or a datetime."""
    requires: Sequence[str]
    """Capabilities that a worker must have."""
    affinity: str | None
    """The resource with which it is cheaper to run."""
    headers: Mapping[str, str]
    """Small strings for programs, such as a trace context."""
    tags: Mapping[str, str]
    """Small strings for users and filters; copied into events."""
    max_attempts: int
    """How many attempts it may use; default 5."""
    backoff: Backoff | None
    """The pauses between attempts; default: from one minute to one hour, doubling, spread by 20 %."""
    job_id: str | None
    """An id chosen by the caller: enqueueing the same job again returns the first."""
    dedupe_scope: DedupeScope
    """Whether the key is unique within tenant and kind (default) or within the tenant."""
    on_duplicate: OnDuplicate
    """If an unfinished job has the dedupe key: `keep` (default) returns it; `replace` gives it the new content if it
    was never claimed; `run_again` adds a job that runs after it if it is running, else returns it."""
    events: EventScope
    """`all` records every transition of this job, not only the final one."""
    artifacts: Sequence[AnyArtifact]
    """Input artifacts: bytes for the handler, given directly or uploaded before."""


class JobOptions(EnqueueOptions, total=False):
    """All options of a job, for `NewJob`, `task.using` and other functions that take them."""

    delay: Duration
    """Seconds before it may be claimed."""
    priority: int
    """Higher comes first; default 0."""
    lane: str
    """The lane from which workers claim it; default `default`."""
    tenant: str
    """The tenant it belongs to; default `default`."""
    dedupe_key: str | None
    """While a job with this key is unfinished, another enqueue adds none."""


class NewJobOptions(JobOptions, total=False):
    """A job to be enqueued, as a plain dict."""

    kind: str
    """The kind of work."""
    payload: Json
    """What its handler receives."""


class NewJob:
    """A job to be enqueued: kind, payload and the options of `enqueue`."""

    __slots__ = ("kind", "options", "payload")

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
        raise InvalidInput(excess, "cannot be combined with a NewJob, which has its own payload and options")
    return kind


class TaskJob(NewJob):
    """A job whose options a task of this process has set: the catalog of kinds does not apply to it."""

    __slots__ = ()


JobLike: TypeAlias = NewJob | NewJobOptions | Mapping[str, Any]
"""A job to be enqueued: a `NewJob`, or a dict with `kind`, `payload` and the options of `enqueue`."""


def with_defaults(options: Any, defaults: JobOptions) -> JobOptions:
    """Return *options* with those of *defaults* that they neither set nor exclude."""
    merged: Any = {**defaults, **options}
    for option, excluded in (("run_at", "delay"), ("delay", "run_at")):
        if option in options and excluded not in options:
            merged.pop(excluded, None)
    return merged  # type: ignore[no-any-return]  # unknown options are refused when the job is checked


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
    entry: SessionEntry | None = None
    """The session entry, if it is one."""
    given: Container[str] | None = None
    """The options that the caller gave; None if the catalog of kinds does not apply or has been applied."""
    artifacts: tuple[CheckedArtifact, ...] = ()
    """The input artifacts."""
    plain_json: str | None = None
    """The payload before a codec encoded it; None if it is not encoded."""

    def encoded(self, codec: Codec, field: str) -> CheckedJob:
        """Return the job with its payload encoded; the digest stays, because it identifies what the caller sent."""
        if self.payload_json == NULL:
            return self
        text = encode_text(codec, self.payload_json, f"{field}payload", limits.PAYLOAD_BYTES_MAX)
        return self._replace(payload_json=text, plain_json=self.payload_json)


DedupeKey: TypeAlias = tuple[str, str, str]
"""Tenant, kind (empty if the key is unique within the tenant), and key."""


def key_numbers(keys: Set[DedupeKey], ids: Set[str]) -> list[int]:
    """Return a 32-bit number for each dedupe key and each chosen id, sorted, for the locks of a store."""
    names = [*("\0".join(("key", *key)) for key in keys), *(f"id\0{job_id}" for job_id in ids)]
    return sorted({_number(name) for name in names})


def _number(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest(), "big", signed=True)


_OPTIONS: Final = frozenset(JobOptions.__annotations__)
_OWN_OPTIONS: Final = frozenset(("job_id", "dedupe_key", "artifacts"))
_NO_STRINGS: Final = "{}"
_SETTINGS_CACHED: Final = 1_024


def check_job(new: JobLike, *, fresh_id: str, tenant: str = DEFAULT_NAME, field: str = "") -> CheckedJob:
    """Return *new* validated and in stored form; raise `InvalidInput`, which names the option, if one is invalid.

    *fresh_id* is used if the caller chose no id, *tenant* if no tenant is given; *field* is the path of the job
    within a larger call.
    """
    try:
        return _check(*parts_of(new), fresh_id, tenant, from_task=isinstance(new, TaskJob))
    except InvalidInput as error:
        if not field:
            raise
        raise InvalidInput(f"{field}.{error.field}", error.problem) from None


def parts_of(new: JobLike) -> tuple[Any, Json, JobOptions]:
    """Return kind, payload and options of *new*."""
    if isinstance(new, NewJob):
        return new.kind, new.payload, new.options
    if not isinstance(new, Mapping):
        raise InvalidInput("job", f"must be a NewJob or a dict, not {type(new).__name__}")
    options = dict(new)
    kind, payload = options.pop("kind", None), options.pop("payload", None)
    if kind is None:
        raise InvalidInput("kind", "is missing")
    return kind, payload, options  # type: ignore[return-value]  # unknown options are refused next


def copy_job(new: JobLike, checked: CheckedJob) -> NewJob:
    """Return a copy of *new*, which was validated as *checked*, that later changes of its payload do not affect."""
    kind, _, options = parts_of(new)
    payload = strict_json.decode(checked.payload_json)
    if checked.entry is not None and checked.entry.messages is not None:
        options, payload = {**options, "messages": payload}, None
    return (TaskJob if checked.given is None else NewJob)(kind, payload, **options)


def _check(
    kind: Any, payload: Json, options: JobOptions, fresh_id: str, tenant: str, *, from_task: bool
) -> CheckedJob:
    if not _OPTIONS.issuperset(options):
        validation.refuse_unknown(options, _OPTIONS, "a job")
    chosen = key = entry = None
    artifacts: tuple[CheckedArtifact, ...] = ()
    given = None if from_task else options
    if not SESSION_OPTIONS.isdisjoint(options):
        if joins_session(options):
            entry, payload = check_entry(options, payload)
        options = {option: value for option, value in options.items() if option not in SESSION_OPTIONS}  # type: ignore[assignment]
    if not _OWN_OPTIONS.isdisjoint(options):
        chosen = validation.optional_name(options.get("job_id"), "job_id", limits.JOB_ID_CHARS_MAX)
        key = validation.optional_name(options.get("dedupe_key"), "dedupe_key", limits.DEDUPE_KEY_CHARS_MAX)
        artifacts = check_artifacts(options.get("artifacts", ()))
        options = {option: value for option, value in options.items() if option not in _OWN_OPTIONS}  # type: ignore[assignment]
    settings = _settings(kind, tenant, options, keyed=key is not None)
    if entry is not None:
        settings = settings._replace(route=settings.route._replace(session=True))
    payload_json = strict_json.encode(payload, "payload", limits.PAYLOAD_BYTES_MAX)
    # Only a chosen id can match a job of another call, so only that needs the digest.
    digest = None if chosen is None else _digest(settings, payload_json, key, entry, artifacts)
    return CheckedJob(chosen or fresh_id, settings, payload_json, key, digest, entry, given, artifacts)


def _settings(kind: Any, tenant: str, options: JobOptions, *, keyed: bool) -> JobSettings:
    try:
        # Flat, because the cache distinguishes 1 from 1.0 and True only among its direct arguments.
        return _cached_settings(kind, tenant, keyed, *options, *options.values())
    except TypeError:
        # An option is not hashable, such as a list or a dict.
        return _check_settings(kind, tenant, options, keyed=keyed)


@lru_cache(_SETTINGS_CACHED, typed=True)
def _cached_settings(kind: Any, tenant: str, keyed: bool, *flat: Any) -> JobSettings:  # noqa: FBT001
    count = len(flat) // 2
    options: Any = dict(zip(flat[:count], flat[count:], strict=True))
    return _check_settings(kind, tenant, options, keyed=keyed)


def _check_settings(kind: Any, tenant: str, options: JobOptions, *, keyed: bool) -> JobSettings:
    affinity = validation.optional_name(options.get("affinity"), "affinity")
    kind = validation.name(kind, "kind")
    backoff = options.get("backoff")
    if backoff is not None and not isinstance(backoff, Backoff):
        raise InvalidInput("backoff", f"must be a Backoff, not {type(backoff).__name__}")
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
        backoff_json=None if backoff is None else backoff.to_json(),
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
        raise InvalidInput("run_at", "cannot be combined with delay")
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
            raise InvalidInput(option, "requires a dedupe_key")
    return None


def _digest(
    settings: JobSettings,
    payload_json: str,
    key: str | None,
    entry: SessionEntry | None,
    artifacts: Sequence[CheckedArtifact],
) -> str:
    bodies = map(strict_json.decode, (payload_json, settings.headers_json, settings.tags_json))
    content = [settings._replace(headers_json="", tags_json=""), key, *bodies, entry]
    content.append(contents(artifacts))
    return hashlib.blake2b(strict_json.canonical(content), digest_size=16).hexdigest()


# The settings that each published option determines.
_PUBLISHED: Final[Mapping[str, tuple[str, ...]]] = {
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


def published_options(options: JobOptions) -> str:
    """Return the options of a task that its worker publishes, as JSON.

    Tenant, headers, dedupe keys and session options belong to each call, absolute times to one moment.
    """
    published: dict[str, Json] = {}
    value: Any
    for option, value in options.items():
        if value is None or option not in _PUBLISHED or isinstance(value, datetime):
            continue
        match option:
            case "backoff":
                stored = Backoff.from_json(value.to_json())
                published[option] = dataclasses.asdict(stored)
            case "delay" | "deadline":
                published[option] = validation.duration_ms(value, option) / 1000
            case "requires":
                published[option] = list(value)
            case "tags":
                published[option] = dict(value)
            case _:
                published[option] = value
    return strict_json.encode(published, "options", limits.PAYLOAD_BYTES_MAX)


def with_publication(new: CheckedJob, publication: Publication | None) -> CheckedJob:
    """Return *new* with the published options that its caller did not give.

    Raise `InvalidInput` if the payload does not match the published schema. The digest stays: it identifies what the
    caller sent.
    """
    if new.given is None or publication is None:
        return new
    if publication.session and new.entry is None:
        raise InvalidInput("session", f"must be named: {new.settings.route.kind!r} is a session task")
    payload_json = new.plain_json or new.payload_json
    # A caller without a codec may send a payload that it has encoded itself.
    if not is_encoded(payload_json):
        publication.check_payload(payload_json, None if new.entry is None else new.entry.messages)
    settings = new.settings
    published = _published_settings(settings.route.kind, publication.options_json)
    excluded = () if new.entry is None else UNSUPPORTED_OPTIONS
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
    options: Any = {name: value for name, value in strict_json.decode(options_json).items() if name in _PUBLISHED}
    if "backoff" in options:
        options["backoff"] = Backoff(**options["backoff"])
    settings = _check_settings(kind, DEFAULT_NAME, options, keyed=False)
    values = {**settings._asdict(), **settings.route._asdict()}
    return {option: {field: values[field] for field in _PUBLISHED[option]} for option in options}


def uuid7(now_ms: int, bits: int) -> str:
    """Return a UUIDv7 of 74 random bits: its first 48 bits are the time, so new ids go to the end of an index."""
    head = f"{now_ms >> 16:08x}-{now_ms & 0xFFFF:04x}-7{bits >> 62:03x}"
    return f"{head}-{0x8000 | bits >> 48 & 0x3FFF:04x}-{bits & 0xFFFF_FFFF_FFFF:012x}"


def plain_job(new: CheckedJob, routing: RoutingTable) -> tuple[CheckedJob, Route] | None:
    """Return *new* with its published options, and its route, if it can be stored without reading anything first.

    None if it may be a duplicate, has to be recorded, or if *routing*, which may be outdated, does not accept it.
    """
    if new.digest is not None or new.dedupe_key is not None or new.entry is not None or new.artifacts:
        return None
    if routing.publications:
        try:
            new = with_publication(new, routing.publications.get(new.settings.route.kind))
        except InvalidInput:
            return None
    key = new.settings.route
    route = routing.routes.get(key)
    if route is None or new.settings.record_all or key.lane in routing.recorded_lanes or key.kind in routing.retired:
        return None
    lane = routing.lanes.get(key.lane)
    return None if lane is not None and lane.state == "draining" else (new, route)


def times_of(settings: JobSettings, now: Now) -> tuple[int, int | None]:
    """Return when a job that is enqueued at *now* is due, and its deadline."""
    due_at_ms = now.wall_ms + settings.delay_ms
    if settings.run_at_ms is not None:
        due_at_ms = max(settings.run_at_ms, now.wall_ms)
    if settings.deadline_in_ms is not None:
        return due_at_ms, now.wall_ms + settings.deadline_in_ms
    return due_at_ms, settings.deadline_at_ms


def new_job(new: CheckedJob, seq: int, fair_key: str, now: Now) -> JobRow:
    """Return the job made from *new* at *now*: ready, or scheduled if it is due later."""
    job_id, settings, payload_json, dedupe_key, digest, *_ = new
    due_at_ms, deadline_at_ms = times_of(settings, now)
    lane, kind, requires_json, _, _ = settings.route
    # By index: with this many fields, keyword arguments take six times as long.
    return JobRow(
        seq,
        job_id,
        "scheduled" if due_at_ms > now.wall_ms else "ready",
        kind,
        lane,
        settings.tenant,
        fair_key,
        settings.priority,
        settings.affinity,
        requires_json,
        payload_json,
        settings.headers_json,
        settings.tags_json,
        None,  # result_json
        now.wall_ms,
        due_at_ms,
        deadline_at_ms,
        None,  # finished_at_ms
        0,  # attempt
        settings.max_attempts,
        settings.backoff_json,
        0,  # epoch
        None,  # worker
        None,  # incarnation
        None,  # lease_token
        None,  # lease_until_ms
        None,  # claim_index
        None,  # started_at_ms
        None,  # outcome
        None,  # settle_digest
        None,  # phase
        None,  # percent
        0,  # unacknowledged
        0,  # cancel_requested
        0,  # suspect
        0,  # deferrals
        None,  # deferred_since_ms
        0,  # releases
        None,  # failure_class
        None,  # failure_reason
        None,  # failure_message
        None,  # failure_traceback
        dedupe_key,
        settings.dedupe_kind,
        None,  # predecessor
        digest,
        None,  # session_number
        None,  # enqueue_seq
        None,  # entry_json
        int(settings.record_all),
        0,  # event_count
    )


def same_request(original: JobRow, repeated: CheckedJob) -> JobRow:
    """Return *original* if *repeated* is the same request, else raise `Conflict`."""
    if original.digest != repeated.digest:
        raise Conflict(f"job {original.id!r} exists with different content", job_id=original.id)
    return original


DuplicateAction: TypeAlias = Literal["keep", "replace", "succeed", "replace_successor"]


def resolve_duplicate(new: CheckedJob, holder: JobRow, successor: JobRow | None) -> DuplicateAction:
    """Return what an enqueue does if *holder*, an unfinished job, has the same key."""
    match new.settings.on_duplicate:
        case "replace":
            if holder.epoch > 0 or holder.state == "blocked":
                raise Conflict(
                    f"job {holder.id!r} with this dedupe key was already claimed and cannot be replaced",
                    job_id=holder.id,
                )
            return "replace"
        case "run_again" if holder.state == "running":
            return "succeed" if successor is None else "replace_successor"
        case _:
            return "keep"


def replace_content(job: JobRow, new: CheckedJob) -> JobRow:
    """Return *job* with the payload, headers and tags of *new*; its position in the claim order stays."""
    settings = new.settings
    return job._replace(
        payload_json=new.payload_json, headers_json=settings.headers_json, tags_json=settings.tags_json
    )
