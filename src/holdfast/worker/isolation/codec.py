"""Claims and outcomes as messages, there and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from holdfast.domain.backoff import Backoff
from holdfast.domain.claims import Claim
from holdfast.domain.job import Job
from holdfast.domain.new_job import NewJob
from holdfast.domain.outcomes import Artifact, Deferred, Done, Failed, Outcome, Released, check_outcome
from holdfast.worker.isolation.channel import Message

_DIGEST: Final = Job._fields.index("digest")
_MOMENT, _LENGTH, _BACKOFF = "moment", "length", "backoff"


# --- claims ---------------------------------------------------------------------------------------------------------


def claim_to(claim: Claim) -> Message:
    """Return a claim as a message, without the digest of the enqueue, which is bytes and of no use to a handler."""
    fields: list[Any] = list(claim.job)
    fields[_DIGEST] = None
    return {"job": fields, "lease_ms": claim.lease_ms}


def claim_from(message: Message) -> Claim:
    """Return the claim of a message."""
    return Claim(Job(*message["job"]), message["lease_ms"])


# --- outcomes -------------------------------------------------------------------------------------------------------


def outcome_to(outcome: Outcome, tenant: str) -> tuple[Message, list[bytes]]:
    """Return a sound outcome as a message and the bytes of its artifacts."""
    match outcome:
        case Done():
            artifacts = [[artifact.name, artifact.media_type] for artifact in outcome.artifacts]
            follow_ups = [_job_to(new) for new in outcome.follow_ups]
            said = {"outcome": "done", "result": outcome.result, "artifacts": artifacts, "follow_ups": follow_ups}
            return said, [artifact.data for artifact in outcome.artifacts]
        case Failed():
            return {"outcome": "failed", "words": _failed_to(outcome, tenant)}, []
        case Deferred():
            return {"outcome": "deferred", "words": _words_to({"after": outcome.after, "until": outcome.until})}, []
        case Released():
            return {"outcome": "released"}, []


def outcome_from(message: Message, blobs: list[bytes]) -> Outcome:
    """Return the outcome of a message."""
    match message["outcome"]:
        case "done":
            named = zip(message["artifacts"], blobs, strict=True)
            artifacts = tuple(Artifact(name, data, media_type) for (name, media_type), data in named)
            follow_ups = tuple(_job_from(new) for new in message["follow_ups"])
            return Done(message["result"], follow_ups, artifacts)
        case "failed":
            return Failed(**_words_from(message["words"]))
        case "deferred":
            return Deferred(**_words_from(message["words"]))
        case "released":
            return Released()
        case other:
            raise ValueError(f"no outcome {other!r}")


def _failed_to(failed: Failed, tenant: str) -> Message:
    # Texts of any length are shortened here already: a gigabyte in an exception need not travel.
    failure = check_outcome(failed, tenant=tenant, fresh_id=str).failure
    words = {field.name: getattr(failed, field.name) for field in dataclasses.fields(failed)}
    if failure is not None:
        words |= {"message": failure.message, "traceback": failure.traceback}
    return _words_to(words)


def _job_to(new: NewJob | Mapping[str, Any]) -> Message:
    if isinstance(new, NewJob):
        return {"kind": new.kind, "payload": new.payload, "options": _words_to(new.options)}
    options = {word: value for word, value in new.items() if word not in {"kind", "payload"}}
    return {"kind": new["kind"], "payload": new.get("payload"), "options": _words_to(options)}


def _job_from(message: Message) -> NewJob:
    return NewJob(message["kind"], message["payload"], **_words_from(message["options"]))


# --- words whose values are not all JSON ----------------------------------------------------------------------------


def _words_to(words: Mapping[str, Any]) -> Message:
    return {word: _value_to(value) for word, value in words.items()}


def _words_from(message: Message) -> dict[str, Any]:
    return {word: _value_from(said) for word, said in message.items()}


def _value_to(value: Any) -> list[Any]:
    """Return a value with the name of its form before it."""
    match value:
        case datetime():
            return [_MOMENT, value.isoformat()]
        case timedelta():
            return [_LENGTH, [value.days, value.seconds, value.microseconds]]
        case Backoff():
            return [_BACKOFF, value.to_json()]
        case Mapping():
            return ["plain", dict(value)]
        case _:
            return ["plain", value]


def _value_from(said: list[Any]) -> Any:
    form, value = said
    match form:
        case "moment":
            return datetime.fromisoformat(value)
        case "length":
            return timedelta(*value)
        case "backoff":
            return Backoff.from_json(value)
        case _:
            return value
