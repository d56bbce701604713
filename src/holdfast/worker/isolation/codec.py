"""Encoding and decoding of claims and outcomes as messages."""

import base64
import dataclasses
from collections.abc import Iterator, Mapping, Sequence, Set
from datetime import datetime, timedelta
from typing import Any

from holdfast.domain import backoff as backoffs, claims, job, new_job, outcomes
from holdfast.domain.artifacts import AnyArtifact, Artifact, UploadedArtifact
from holdfast.worker.isolation.channel import Message

_TIMESTAMP, _DURATION, _BACKOFF, _ARTIFACTS, _JOB = "timestamp", "duration", "backoff", "artifacts", "job"
_ON_END = "on_end"


# --- claims ---------------------------------------------------------------------------------------------------------


def encode_claim(claim: claims.Claim) -> Message:
    """Return *claim* as a message."""
    return {"job": list(job.row_of(claim.job)), "lease_ms": claim.lease_ms}


def decode_claim(message: Message) -> claims.Claim:
    """Return the claim in *message*."""
    return claims.Claim(job.job_of(job.JobRow(*message["job"])), message["lease_ms"])


# --- outcomes -------------------------------------------------------------------------------------------------------


def encode_outcome(outcome: outcomes.Outcome, tenant: str) -> tuple[Message, list[bytes]]:
    """Return a valid outcome as a message and the data of its artifacts."""
    match outcome:
        case outcomes.Done():
            artifacts = [_encode_artifact(artifact) for artifact in outcome.artifacts]
            follow_ups = [_encode_job(new) for new in outcome.follow_ups]
            encoded = {"outcome": "done", "result": outcome.result, "artifacts": artifacts, "follow_ups": follow_ups}
            if outcome.usage is not None:
                encoded["usage"] = dict(outcome.usage)
            return encoded, [artifact.data for artifact in outcome.artifacts if isinstance(artifact, Artifact)]
        case outcomes.Failed():
            return {"outcome": "failed", "options": _encode_failed(outcome, tenant)}, []
        case outcomes.Deferred():
            return {
                "outcome": "deferred",
                "options": _encode_options(
                    {field.name: getattr(outcome, field.name) for field in dataclasses.fields(outcome)}
                ),
            }, []
        case outcomes.Released():
            return {"outcome": "released"}, []


def decode_outcome(message: Message, blobs: list[bytes]) -> outcomes.Outcome:
    """Return the outcome in *message*."""
    match message["outcome"]:
        case "done":
            remaining = iter(blobs)
            artifacts = tuple(_decode_artifact(encoded, remaining) for encoded in message["artifacts"])
            follow_ups = tuple(_decode_job(new) for new in message["follow_ups"])
            return outcomes.Done(message["result"], follow_ups, artifacts, message.get("usage"))
        case "failed":
            return outcomes.Failed(**_decode_options(message["options"]))
        case "deferred":
            return outcomes.Deferred(**_decode_options(message["options"]))
        case "released":
            return outcomes.Released()
        case name:
            raise ValueError(f"unknown outcome {name!r}")


def _encode_artifact(artifact: AnyArtifact) -> list[str]:
    """Return what describes *artifact*; the bytes of an `Artifact` are sent separately."""
    if isinstance(artifact, Artifact):
        return [artifact.name, artifact.media_type]
    return [artifact.name, artifact.media_type, artifact.upload_id, artifact.digest]


def _decode_artifact(encoded: list[str], blobs: Iterator[bytes]) -> AnyArtifact:
    name, media_type, *uploaded = encoded
    if not uploaded:
        return Artifact(name, next(blobs), media_type)
    upload_id, digest = uploaded
    return UploadedArtifact(name, upload_id, digest, media_type)


def _encode_failed(failed: outcomes.Failed, tenant: str) -> Message:
    # Long texts are truncated before they are sent: an exception message may be huge.
    failure = outcomes.check_outcome(failed, tenant=tenant, fresh_id=str).failure
    options = {field.name: getattr(failed, field.name) for field in dataclasses.fields(failed)}
    if failure is not None:
        options |= {"message": failure.message, "traceback": failure.traceback}
    return _encode_options(options)


def _encode_job(new: new_job.NewJob | Mapping[str, Any]) -> Message:
    if isinstance(new, new_job.NewJob):
        options, from_task = _encode_options(new.options), isinstance(new, new_job.TaskJob)
        return {"kind": new.kind, "payload": new.payload, "options": options, "from_task": from_task}
    options = {name: value for name, value in new.items() if name not in {"kind", "payload"}}
    return {"kind": new["kind"], "payload": new.get("payload"), "options": _encode_options(options)}


def _decode_job(message: Message) -> new_job.NewJob:
    job_class = new_job.TaskJob if message.get("from_task") else new_job.NewJob
    return job_class(message["kind"], message["payload"], **_decode_options(message["options"]))


# --- options with values that are not JSON --------------------------------------------------------------------------


def _encode_options(options: Mapping[str, Any]) -> Message:
    return {name: _encode_option(name, value) for name, value in options.items()}


def _encode_option(name: str, value: Any) -> list[Any]:
    if name == _ARTIFACTS:
        return _encode_inputs(value)
    return [_JOB, _encode_job(value)] if name == _ON_END and value is not None else _encode_value(value)


def _encode_inputs(artifacts: Sequence[AnyArtifact]) -> list[Any]:
    """Return the input artifacts of a follow-up with their bytes."""
    data = [base64.b64encode(one.data).decode() for one in artifacts if isinstance(one, Artifact)]
    return [_ARTIFACTS, [[_encode_artifact(artifact) for artifact in artifacts], data]]


def _decode_options(message: Message) -> dict[str, Any]:
    return {name: _decode_value(encoded) for name, encoded in message.items()}


def _encode_value(value: Any) -> list[Any]:
    """Return the name of the value's type and its JSON form."""
    match value:
        case datetime():
            return [_TIMESTAMP, value.isoformat()]
        case timedelta():
            return [_DURATION, [value.days, value.seconds, value.microseconds]]
        case backoffs.Backoff():
            return [_BACKOFF, backoffs.to_json(value)]
        case Mapping():
            return ["plain", dict(value)]
        case Set():
            return ["plain", sorted(value)]
        case _:
            return ["plain", value]


def _decode_value(encoded: list[Any]) -> Any:
    type_name, value = encoded
    match type_name:
        case "timestamp":
            return datetime.fromisoformat(value)
        case "duration":
            return timedelta(*value)
        case "backoff":
            return backoffs.from_json(value)
        case "artifacts":
            encoded_artifacts, data = value
            blobs = map(base64.b64decode, data)
            return [_decode_artifact(one, blobs) for one in encoded_artifacts]
        case "job":
            return _decode_job(value)
        case _:
            return value
