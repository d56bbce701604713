"""Webhooks: subscriptions to events, the bodies of deliveries, and the decisions about tries and endpoints."""

from __future__ import annotations

import email.utils
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypedDict, get_args

from holdfast.domain import errors, limits, new_job, strict_json, validation, webhook_urls
from holdfast.domain.events import TERMINAL, Event, EventName
from holdfast.domain.strict_json import Json
from holdfast.domain.webhook_signatures import StoredSecret

LANE: Final = new_job.SYSTEM_LANE
KIND: Final = new_job.SYSTEM_KIND

JOB_TYPES: Final = tuple(f"job.{name}" for name in get_args(EventName))
TYPES: Final = (*JOB_TYPES, "webhook.disabled")
"""The event types to which a webhook can subscribe."""
DEFAULT_TYPES: Final = tuple(name for name in JOB_TYPES if name.removeprefix("job.") in TERMINAL)
TEST_TYPE: Final = "webhook.test"
GAP_TYPE: Final = "webhook.gap"
DISABLED_TYPE: Final = "webhook.disabled"

WebhookState: TypeAlias = Literal["active", "disabled"]
"""Whether events are delivered to a webhook."""

# The pauses between ten tries: 75 hours and 35 minutes in total.
RETRY_SECONDS: Final = (5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400)
TRIES: Final = len(RETRY_SECONDS) + 1
_CLOSED_SECONDS_FIRST: Final = 5
_CLOSED_SECONDS_MAX: Final = 3_600
# The longest pause that a receiver can ask for.
_RETRY_AFTER_SECONDS_MAX: Final = 86_400
_RETRY_AFTER_CHARS_MAX: Final = 40
_PROBE_MS: Final = 60_000
_ID: Final = re.compile(r"wh_[a-z2-7]{16}")
_CLOSING: Final = frozenset((429, 502, 503, 504))


class WebhookOptions(TypedDict, total=False):
    """The options of `webhooks.add`: which events are delivered, and how."""

    types: Sequence[str]
    """Event types such as `job.done`; default: the final ones, `job.done`, `job.failed`, `job.cancelled` and
    `job.retired`. `job.late` is recorded for lanes with a target age, the others only for jobs and lanes with
    `events="all"`."""
    tenant: str | None
    """Only jobs of this tenant; default: any."""
    kinds: Sequence[str] | None
    """Only jobs of these kinds; default: any."""
    lanes: Sequence[str] | None
    """Only jobs in these lanes; default: any."""
    tags: Mapping[str, str]
    """Only jobs that have all these tags."""
    include_results: bool
    """Whether `job.done` contains the result of the job, if it is small enough."""
    concurrency: int
    """How many deliveries are made at once, by all sending processes together; default 8."""
    secret: str | None
    """A secret to import, `whsec_` and base64 of 24 to 64 bytes; default: a new one."""
    per_job: bool
    """Whether it is the endpoint of jobs with a `webhook_url` of its origin, instead of a subscription."""


@dataclass(frozen=True, slots=True)
class Webhook:
    """An endpoint and what is delivered to it, without its secrets."""

    id: str
    """Its id: `wh_` and 16 characters, or `whj_` and 16 characters for `per_job`."""
    url: str
    """Where events are sent; for `per_job` the origin of the URLs of jobs."""
    tenant: str | None
    """Only jobs of this tenant; None for any."""
    types: tuple[str, ...]
    """The event types; empty for `per_job`, whose jobs send each of their events."""
    kinds: tuple[str, ...] | None
    """Only these kinds; None for any."""
    lanes: tuple[str, ...] | None
    """Only these lanes; None for any."""
    tags: Mapping[str, str] = field(hash=False)
    """Only jobs that have all these tags."""
    include_results: bool
    """Whether `job.done` contains the result."""
    concurrency: int
    """How many deliveries are made at once, by all sending processes together."""
    per_job: bool
    """Whether it serves jobs with a `webhook_url`."""
    state: WebhookState
    """`disabled`: events are not delivered, also not later."""
    reason: str | None
    """Why it is disabled."""
    created_at: datetime
    """When it was added."""
    since: datetime
    """Events from this time on are delivered: when it was added or enabled."""
    last_success_at: datetime | None = None
    """When a delivery succeeded last, to within a minute."""
    failing_since: datetime | None = None
    """Since when no delivery has succeeded; None if the last one did."""
    closed_until: datetime | None = None
    """Until when deliveries wait because the receiver asked for it or could not be reached."""
    last_answer: str | None = None
    """The last answer that was not a success, shortened."""


@dataclass(frozen=True, slots=True)
class NewWebhook:
    """A webhook that was just added or rotated. `secret` is shown here and nowhere else."""

    webhook: Webhook
    """The webhook."""
    secret: str = field(repr=False)
    """The secret with which receivers verify deliveries."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """One event for one endpoint, and what became of it."""

    id: str
    """The header `webhook-id`: the same in every try."""
    webhook_id: str
    """The id of the webhook."""
    type: str
    """The event type."""
    state: str
    """The state of its job: `done` if the receiver has it, `failed` if all tries failed."""
    tries: int
    """How many times it was sent."""
    created_at: datetime
    """When it was made."""
    next_try_at: datetime | None
    """When it is sent next; None if it is finished."""
    problem: str | None
    """The reason of the last failure."""


class Places(NamedTuple):
    """How many deliveries one sending process may make to an endpoint at once, and until when."""

    holder: str
    number: int
    until_ms: int


class StoredWebhook(NamedTuple):
    """A webhook, its secrets, newest first, and the state that decides about its deliveries."""

    webhook: Webhook
    secrets: tuple[StoredSecret, ...]
    closings: int = 0
    """How many times in a row the endpoint was closed."""
    probe_until_ms: int | None = None
    """Until when another process tries whether the endpoint is open again."""
    places: tuple[Places, ...] = ()
    """The places that sending processes have taken; together at most its concurrency."""

    @property
    def id(self) -> str:
        """The id of the webhook."""
        return self.webhook.id


class CheckedWebhook(NamedTuple):
    """Validated options of a new webhook."""

    url: str
    tenant: str | None
    types: tuple[str, ...]
    kinds: tuple[str, ...] | None
    lanes: tuple[str, ...] | None
    tags: dict[str, str]
    include_results: bool
    concurrency: int
    per_job: bool


class Position(NamedTuple):
    """How far the log was read, and which process reads it until when."""

    transaction: int
    event: int
    holder: str | None
    until_ms: int


# --- subscriptions -------------------------------------------------------------------------------------------------


def check_webhook(url: str, options: WebhookOptions) -> CheckedWebhook:
    """Return the options of a new webhook validated, or raise `InvalidInput`."""
    validation.refuse_unknown(options, set(WebhookOptions.__annotations__), "a webhook")
    parts = webhook_urls.parse_url(url, "url")
    per_job = validation.flag(options.get("per_job", False), "per_job")
    if per_job:
        for option in ("types", "kinds", "lanes", "tags", "include_results"):
            if option in options:
                raise errors.InvalidInput(
                    option, "cannot be combined with per_job: such jobs send each of their events"
                )
        if parts.target != "/":
            raise errors.InvalidInput("url", f"must be an origin with per_job, such as {parts.origin}")
    types = () if per_job else _types(options.get("types", DEFAULT_TYPES))
    return CheckedWebhook(
        parts.origin if per_job else url,
        validation.optional_name(options.get("tenant"), "tenant"),
        types,
        _filter(options.get("kinds"), "kinds", limits.CLAIM_KINDS_MAX),
        _filter(options.get("lanes"), "lanes", limits.CLAIM_LANES_MAX),
        validation.string_map(options.get("tags", {}), "tags", limits.TAGS_MAX, limits.TAG_VALUE_CHARS_MAX),
        validation.flag(options.get("include_results", False), "include_results"),
        validation.integer(options.get("concurrency", limits.WEBHOOK_CONCURRENCY_DEFAULT), "concurrency", 1, 100),
        per_job,
    )


def check_new_id(webhook_id: str) -> str:
    """Return the id of a webhook that a client has generated, or raise `InvalidInput`."""
    if not _ID.fullmatch(webhook_id):
        raise errors.InvalidInput("id", "must be wh_ and 16 characters of a to z and 2 to 7")
    return webhook_id


def _types(types: Sequence[str]) -> tuple[str, ...]:
    chosen = validation.names(types, "types", len(TYPES))
    if not chosen:
        raise errors.InvalidInput("types", "must contain an event type, such as job.done")
    for index, one in enumerate(chosen):
        validation.one_of(one, f"types[{index}]", TYPES)
    return chosen


def _filter(values: Sequence[str] | None, option: str, count_max: int) -> tuple[str, ...] | None:
    if values is None:
        return None
    chosen = validation.names(values, option, count_max)
    if not chosen:
        raise errors.InvalidInput(option, "must contain a name; leave it out for any")
    return chosen


class Matcher:
    """Finds the subscriptions of an event, by type and tenant first: their number hardly changes the cost."""

    def __init__(self, webhooks: Sequence[Webhook]) -> None:
        self._found: dict[tuple[str, str | None], list[Webhook]] = {}
        for one in webhooks:
            for name in one.types:
                if one.state == "active" and not one.per_job:
                    self._found.setdefault((name, one.tenant), []).append(one)

    def matching(self, event: Event) -> list[Webhook]:
        """Return the webhooks to which *event* is delivered."""
        if event.lane == LANE:
            return []
        name = f"job.{event.name}"
        return [
            one
            for tenant in (event.tenant, None)
            for one in self._found.get((name, tenant), ())
            if one.since <= event.at
            and (one.kinds is None or event.kind in one.kinds)
            and (one.lanes is None or event.lane in one.lanes)
            and one.tags.items() <= event.tags.items()
        ]


# --- bodies --------------------------------------------------------------------------------------------------------


def delivery_id(event: int, webhook_id: str) -> str:
    """Return the id of the delivery of one event to one webhook."""
    return f"evt_{event}_{webhook_id}"


def body_of(name: str, at: datetime, data: Mapping[str, Json]) -> str:
    """Return the body of a delivery: what is signed and sent, byte for byte."""
    return strict_json.compact({"type": name, "timestamp": timestamp(at), "data": dict(data)})


def timestamp(at: datetime) -> str:
    """Return a time as it is written in bodies."""
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def job_data(event: Event) -> dict[str, Json]:
    """Return the data of a job's event: identifiers and states, without payload and result."""
    data: dict[str, Json] = {
        "job_id": event.job_id,
        "number": event.number,
        "kind": event.kind,
        "lane": event.lane,
        "tenant": event.tenant,
        "tags": event.tags,
    }
    wanted = ("state", "attempt", "epoch", "failure_class", "failure_reason")
    return data | {name: event.details[name] for name in wanted if event.details.get(name) is not None}


def with_result(data: dict[str, Json], result_json: str | None) -> dict[str, Json]:
    """Return *data* with the result of the job, or with `result_omitted` if it is too large for a delivery."""
    if result_json is None or len(result_json.encode()) > limits.WEBHOOK_RESULT_BYTES_MAX:
        return data | {"result_omitted": True}
    return data | {"result": strict_json.decode(result_json)}


def delivery_payload(webhook_id: str, body: str, url: str | None = None) -> dict[str, Json]:
    """Return the payload of the job that makes a delivery; *url* is that of a job with a `webhook_url`."""
    return {"webhook": webhook_id, "body": body} | ({} if url is None else {"url": url})


def delivery_tenant(webhook_id: str) -> str:
    """Return the tenant of the deliveries of a webhook, so that endpoints alternate as tenants do."""
    return f"webhook/{webhook_id}"


# --- tries and endpoints -------------------------------------------------------------------------------------------


class Answer(NamedTuple):
    """What a try has resulted in: the receiver's answer, or why there is none."""

    status: int | None
    text: str = ""
    """The first part of the answer, or the error."""
    retry_after_seconds: float | None = None
    refused: bool = False
    """Whether nothing was sent, because the address is not allowed."""

    def describe(self) -> str:
        """Return the answer as one line."""
        if self.status is None:
            return self.text
        return f"HTTP {self.status}: {self.text}" if self.text else f"HTTP {self.status}"


Verdict: TypeAlias = Literal["success", "failure", "closing", "gone"]


def verdict(answer: Answer) -> Verdict:
    """Return what an answer means: 2xx is a success, 410 is final, overload and silence close the endpoint."""
    if answer.status is None:
        return "failure" if answer.refused else "closing"
    if 200 <= answer.status < 300:
        return "success"
    if answer.status == 410:
        return "gone"
    return "closing" if answer.status in _CLOSING else "failure"


def retry_seconds(tries: int, fraction: float) -> float:
    """Return the pause after a try, spread by 10 %; *tries* counts from 1."""
    return RETRY_SECONDS[min(tries, len(RETRY_SECONDS)) - 1] * (0.95 + fraction / 10)


def retry_after_seconds(header: str | None, now_ms: int) -> float | None:
    """Return the seconds of a header `Retry-After`, a number or a date, up to a day; None without a valid one."""
    text = (header or "").strip()
    if len(text) > _RETRY_AFTER_CHARS_MAX or not text.isascii():
        return None
    if text.isdigit():
        return min(float(text), _RETRY_AFTER_SECONDS_MAX)
    try:
        at = email.utils.parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    # A date without a zone is in UTC.
    at_ms = at.replace(tzinfo=at.tzinfo or UTC).timestamp() * 1000
    return min(max(0.0, (at_ms - now_ms) / 1000), _RETRY_AFTER_SECONDS_MAX)


def closed_seconds(closings: int, answer: Answer) -> float:
    """Return for how long an endpoint is closed; each closing in a row doubles the time, up to an hour."""
    own = min(float(_CLOSED_SECONDS_FIRST << min(closings, 20)), _CLOSED_SECONDS_MAX)
    return max(own, answer.retry_after_seconds or 0.0)


class Admission(NamedTuple):
    """Whether a delivery may be sent now."""

    action: Literal["send", "probe", "wait", "drop"]
    """`probe`: as the only one; `drop`: the webhook is disabled or was removed."""
    seconds: float = 0.0
    """For `wait`: after how many seconds to ask again."""


def admit(stored: StoredWebhook | None, now_ms: int) -> Admission:
    """Return whether a delivery to an endpoint may be sent: while it is closed, one try at a time after its end."""
    if stored is None or stored.webhook.state != "active":
        return Admission("drop")
    closed_until = stored.webhook.closed_until
    if closed_until is None:
        return Admission("send")
    left_ms = max(validation.milliseconds_of(closed_until), stored.probe_until_ms or 0) - now_ms
    return Admission("wait", left_ms / 1000) if left_ms > 0 else Admission("probe")


class EndpointChange(NamedTuple):
    """The columns of an endpoint that an answer changes."""

    closed_until_ms: int | None
    closings: int
    failing_since_ms: int | None
    last_success_at_ms: int | None
    last_answer: str | None
    disabled: str | None = None
    """The reason to disable it."""


def after_answer(stored: StoredWebhook, answer: Answer, now_ms: int) -> EndpointChange | None:
    """Return how an answer changes its endpoint; None if nothing worth a write has changed."""
    one, result = stored.webhook, verdict(answer)
    closed_until_ms, failing_since_ms, success_ms = (
        None if at is None else validation.milliseconds_of(at)
        for at in (one.closed_until, one.failing_since, one.last_success_at)
    )
    if result == "success":
        fresh = success_ms is not None and now_ms - success_ms < limits.TOKEN_USE_MS
        if fresh and failing_since_ms is None and closed_until_ms is None:
            return None
        return EndpointChange(None, 0, None, now_ms, one.last_answer)
    text = answer.describe()[: limits.WEBHOOK_ANSWER_CHARS_KEPT]
    failing_since_ms = now_ms if failing_since_ms is None else failing_since_ms
    reason = None
    if result == "gone":
        reason = "the receiver answered 410 Gone"
    elif now_ms - failing_since_ms >= limits.WEBHOOK_DISABLED_AFTER_MS:
        reason = "no delivery has succeeded for five days"
    closings = stored.closings
    # Answers of deliveries that were already on their way do not extend the time.
    if result == "closing" and (closed_until_ms is None or closed_until_ms <= now_ms):
        closed_until_ms = now_ms + round(closed_seconds(closings, answer) * 1000)
        closings += 1
    elif stored.probe_until_ms is not None and result == "failure":
        # It answers again, though not with success: the other deliveries may be tried.
        closed_until_ms, closings = None, 0
    return EndpointChange(closed_until_ms, closings, failing_since_ms, success_ms, text, reason)


def probe_until_ms(now_ms: int) -> int:
    """Return until when one process may try a closed endpoint."""
    return now_ms + _PROBE_MS


# --- places --------------------------------------------------------------------------------------------------------

PLACES_MS: Final = 40_000
"""How long a process has its places without renewing them."""


def with_places(stored: StoredWebhook, holder: str, wanted: int, now_ms: int) -> StoredWebhook:
    """Return the endpoint after a process has asked for places; it gets those that no other has, or none.

    It asks again to change or renew them, and for none when it has nothing to send. Those of a process that was
    killed are free when their time has passed.
    """
    others = tuple(one for one in stored.places if one.holder != holder and one.until_ms > now_ms)
    number = min(wanted, stored.webhook.concurrency - sum(one.number for one in others))
    own = (Places(holder, number, now_ms + PLACES_MS),) if number > 0 else ()
    return stored._replace(places=(*others, *own))


def places_of(stored: StoredWebhook, holder: str) -> int:
    """Return how many places a process has."""
    return sum(one.number for one in stored.places if one.holder == holder)


# --- stored form ---------------------------------------------------------------------------------------------------


def secrets_to_json(secrets: Sequence[StoredSecret]) -> str:
    """Return secrets as JSON."""
    return strict_json.compact([list(one) for one in secrets])


def secrets_from_json(text: str) -> tuple[StoredSecret, ...]:
    """Return the secrets of a stored webhook."""
    found: Any = strict_json.decode(text)
    return tuple(StoredSecret(*one) for one in found)


def places_to_json(places: Sequence[Places]) -> str:
    """Return places as JSON."""
    return strict_json.compact([list(one) for one in places])


def places_from_json(text: str) -> tuple[Places, ...]:
    """Return the places of a stored webhook."""
    found: Any = strict_json.decode(text)
    return tuple(Places(*one) for one in found)
