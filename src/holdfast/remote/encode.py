"""Requests as the JSON of the service: jobs, outcomes and claims."""

import base64
from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from holdfast.domain import backoff as backoffs, claims, errors, limits, results, routing, strict_json, validation
from holdfast.domain.artifacts import CheckedArtifact
from holdfast.domain.new_job import CheckedJob, digest_of
from holdfast.domain.outcomes import CheckedOutcome, Deferred, Done, Failed

# What the service assumes for an option that a job does not have.
_DEFAULTS: Final[Mapping[str, Any]] = {
    "priority": 0,
    "affinity": None,
    "requires": [],
    "headers": {},
    "tags": {},
    "delay": 0.0,
    "lane": routing.DEFAULT_NAME,
    "max_attempts": limits.MAX_ATTEMPTS_DEFAULT,
    "deadline": None,
    "backoff": None,
    "run_at": None,
    "events": "terminal",
}


# Limits of the service.
_ACK_MS_MIN: Final = 100
_ACK_MS_DEFAULT: Final = 10_000
_ACK_MS_MAX: Final = 300_000


def new_job(new: CheckedJob, *, tenant: str = routing.DEFAULT_NAME, with_id: bool = True) -> dict[str, Any]:
    """Return a job as the body of a request.

    It has the options that the caller gave or that are not the defaults, so that those which a worker has published
    apply to the others; *tenant* is the one it gets otherwise. *with_id*: with its id, also if this process generated
    it, so that the request can be sent again.
    """
    settings = new.settings
    given: Container[str] = new.given or ()
    options: dict[str, Any] = {
        "lane": settings.route.lane,
        "priority": settings.priority,
        "affinity": settings.affinity,
        "requires": strict_json.decode(settings.route.requires_json),
        "headers": strict_json.decode(settings.headers_json),
        "tags": strict_json.decode(settings.tags_json),
        "delay": settings.delay_ms / 1000,
        "max_attempts": settings.max_attempts,
        "backoff": None if settings.backoff_json is None else asdict(backoffs.from_json(settings.backoff_json)),
        "events": "all" if settings.record_all else "terminal",
    }
    options["deadline"] = None if settings.deadline_in_ms is None else settings.deadline_in_ms / 1000
    if settings.run_at_ms is not None:
        options["run_at"] = time(settings.run_at_ms)
        del options["delay"]
    if settings.deadline_at_ms is not None:
        options["deadline"] = time(settings.deadline_at_ms)
    sent = {
        option: value
        for option, value in options.items()
        if option in given or (option in _DEFAULTS and value != _DEFAULTS[option])
    }
    if sent.get("deadline", 0) is None:
        del sent["deadline"]
    sent |= _known_to_client(new, sent)
    if settings.tenant != tenant or (new.given is not None and "tenant" in new.given):
        sent["tenant"] = settings.tenant
    if new.debounce is not None:
        # The delay follows from it.
        sent.pop("delay", None)
    sent |= _dedupe_options(new)
    payload: Any = strict_json.decode(new.payload_json)
    if new.entry is not None:
        sent = {option: value for option, value in sent.items() if option not in {"priority", "affinity"}}
        sent |= {name: value for name, value in asdict(new.entry).items() if name != "messages" and value is not None}
        if new.entry.messages is not None and new.plain_json is not None:
            sent["message_count"] = new.entry.messages
        elif new.entry.messages is not None:
            sent["messages"], payload = payload, None
    if new.artifacts:
        sent["artifacts"] = artifacts(new.artifacts)
    sent |= {} if new.dependencies is None else new.dependencies._asdict()
    rare = (("webhook_url", new.webhook_url), *zip(("limit_key", "limit_weight"), new.for_limits or (), strict=False))
    sent |= {name: value for name, value in rare if value is not None}
    sent |= {} if new.on_end is None else {"on_end": new_job(new.on_end, with_id=False)}
    if new.digest is not None or (with_id and not (new.entry is not None and new.entry.message_id is not None)):
        sent["job_id"] = new.id
    return {"kind": settings.route.kind, **({} if payload is None else {"payload": payload}), **sent}


def _dedupe_options(new: CheckedJob) -> dict[str, Any]:
    if new.dedupe_key is None:
        return {}
    sent: dict[str, Any] = {
        "dedupe_key": new.dedupe_key,
        "dedupe_scope": "kind" if new.settings.dedupe_kind else "tenant",
        "on_duplicate": new.settings.on_duplicate,
    }
    if new.dedupe_for_ms is not None:
        sent["dedupe_for"] = new.dedupe_for_ms / 1000
    if new.debounce is not None:
        sent["debounce"] = new.debounce.pause_ms / 1000
        sent |= {} if new.debounce.max_wait_ms is None else {"max_wait": new.debounce.max_wait_ms / 1000}
    return sent


def _known_to_client(new: CheckedJob, sent: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the server cannot know: which options a task or middleware has set, and which call this is."""
    known: dict[str, Any] = {}
    if new.given is None:
        known["declared"] = True
    elif "tags" in sent and "tags" not in new.given:
        known["merge_tags"] = True
    if new.digest is not None and digest_of(new) != new.digest:
        # Encoded, or changed by middleware: the server would take it for another call.
        known["digest"] = new.digest
    return known


def time(milliseconds: int) -> str:
    """Return a timestamp as a time with a zone."""
    return validation.datetime_of(milliseconds).isoformat()


def artifacts(given: Sequence[CheckedArtifact]) -> list[dict[str, Any]]:
    """Return artifacts: their bytes, or the uploads that have them."""
    return [
        {
            "name": one.name,
            "media_type": one.media_type,
            **(
                {"data": base64.b64encode(one.data or b"").decode()}
                if one.upload_id is None
                else {"upload_id": one.upload_id, "digest": one.digest}
            ),
        }
        for one in given
    ]


def outcome(checked: CheckedOutcome, tenant: str) -> dict[str, Any]:
    """Return the outcome of an attempt on a job of *tenant*."""
    document = _outcome(checked, tenant)
    return {**document, "usage": dict(checked.usage)} if checked.usage else document


def _outcome(checked: CheckedOutcome, tenant: str) -> dict[str, Any]:
    match checked.outcome:
        case Done():
            document: dict[str, Any] = {
                "outcome": "done",
                "result": strict_json.decode(checked.result_json or "null"),
            }
            if checked.follow_ups:
                # Without new ids: they would make the same settlement another one when it is sent again.
                document["follow_ups"] = [new_job(one, tenant=tenant, with_id=False) for one in checked.follow_ups]
            if checked.digest is not None:
                document["digest"] = checked.digest
            if checked.artifacts:
                document["artifacts"] = artifacts(checked.artifacts)
            return document
        case Failed(backoff=backoff):
            failure = checked.failure
            assert failure is not None  # noqa: S101  # a checked failure has one
            return {
                "outcome": "failed",
                "message": failure.message,
                "reason": failure.reason,
                "permanent": failure.failure_class == "permanent",
                "traceback": failure.traceback,
                "backoff": None if backoff is None else asdict(backoffs.from_json(backoffs.to_json(backoff))),
                **({} if checked.pause_ms is None else {"retry_after": checked.pause_ms / 1000}),
            }
        case Deferred():
            closes = {"closes": True} if checked.outcome.closes else {}
            if checked.until_ms is not None:
                return {"outcome": "deferred", "until": time(checked.until_ms), **closes}
            return {"outcome": "deferred", "after": (checked.pause_ms or 0) / 1000, **closes}
        case _:
            return {"outcome": "released"}


def lease(fence: claims.JobFence) -> dict[str, Any]:
    """Return the proof of a claim."""
    return {"job_id": fence.job_id, "epoch": fence.epoch, "lease_token": fence.lease_token}


def settlements(outcomes: Sequence[tuple[claims.Claim, CheckedOutcome]]) -> list[dict[str, Any]]:
    """Return claims with their outcomes."""
    return [{**lease(claims.fence_of(held)), **outcome(checked, held.job.tenant)} for held, checked in outcomes]


def claim(request: claims.ClaimRequest, wait_seconds: float) -> dict[str, Any]:
    """Return a claim that waits for jobs up to this time."""
    preference = request.preference
    document: dict[str, Any] = {
        "lanes": list(request.lanes),
        "kinds": None if request.kinds is None else list(request.kinds),
        "tenant": request.tenant,
        "capabilities": sorted(request.capabilities),
        "affinity": sorted(preference.affinities),
        "affinities_held": sorted(preference.held),
        "affinities_max": preference.affinities_max,
        "hold_left": 0 if preference.expired else None,
        "drain": "listed" if request.listed else None,
        "worker": request.worker,
        "incarnation": request.incarnation,
        "exclusive": request.exclusive or None,
        "cut_off": request.cut_off or None,
        "limit": request.limit,
        "lease_token": request.lease_token,
        "wait": wait_seconds or None,
        "ack_ms": ack_ms(request.lease_ms, acknowledged=True),
    }
    return {name: value for name, value in document.items() if value is not None}


def ack_ms(lease_ms: int, *, acknowledged: bool) -> int:
    """Return after which time a claim is released unless the client, which received it, says so.

    A claim that starts at once is acknowledged by the next request; another one may wait as long as its lease.
    """
    return min(max(lease_ms, _ACK_MS_MIN), _ACK_MS_DEFAULT if acknowledged else _ACK_MS_MAX)


def job_filter(wanted: results.JobFilter) -> dict[str, Any]:
    """Return the parameters of a list of jobs."""
    if any("=" in tag for tag, _ in wanted.tags):
        raise errors.InvalidInput("tags", "has a key with '=', which a filter over HTTP cannot express")
    return {
        "state": list(wanted.states),
        "kind": wanted.kind,
        "lane": wanted.lane,
        "tenant": wanted.tenant,
        "failure_class": wanted.failure_class,
        "session": wanted.session,
        "root": wanted.root,
        "group": wanted.group,
        "tag": [f"{tag}={value}" for tag, value in wanted.tags],
        "fingerprint": wanted.fingerprint,
        "older_than": None if wanted.age_ms is None else wanted.age_ms / 1000,
    }
