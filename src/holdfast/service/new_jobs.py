"""New jobs over HTTP: their options from JSON, within the grants of the caller, and idempotency keys."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from holdfast.domain import access, limits, strict_json
from holdfast.domain.access import Grants
from holdfast.domain.artifacts import AnyArtifact, Artifact, UploadedArtifact
from holdfast.domain.backoff import Backoff
from holdfast.domain.errors import Conflict, InvalidInput
from holdfast.domain.new_job import NewJob, TaskJob
from holdfast.domain.routing import DEFAULT_NAME
from holdfast.service.call import Call
from holdfast.service.problems import ProblemError

_TIMES: Final = ("run_at", "deadline")


def granted_job(grants: Grants, body: Mapping[str, Any], path: str = "") -> NewJob:
    """Return the job that *body* describes, or raise if the caller may not enqueue it.

    *path* is the place of the job within the request, with a dot at its end.
    """
    options = dict(body)
    kind, payload = options.pop("kind"), options.pop("payload", None)
    job_type = TaskJob if options.pop("declared", False) else NewJob
    access.check_kind(grants, kind, f"{path}kind")
    lane = access.check_lane(grants, options.get("lane"), f"{path}lane")
    tenant = access.tenant_for(grants, options.get("tenant"), f"{path}tenant")
    options |= {name: value for name, value in (("lane", lane), ("tenant", tenant)) if value is not None}
    size = 0
    if grants.payload_bytes_max is not None:
        content = options.get("messages", payload)
        size = len(strict_json.encode(content, f"{path}payload", limits.PAYLOAD_BYTES_MAX).encode())
    access.check_job_ceilings(grants, options.get("priority", 0), size, path)
    convert_values(options, path)
    if "artifacts" in options:
        options["artifacts"] = artifacts_of(options["artifacts"], path)
    return job_type(kind, payload, **options)


def convert_values(options: dict[str, Any], path: str) -> None:
    """Convert values that JSON cannot express: times and backoffs."""
    for name in _TIMES:
        if isinstance(options.get(name), str):
            options[name] = time_of(options[name], f"{path}{name}")
    if isinstance(options.get("backoff"), dict):
        options["backoff"] = backoff_of(options["backoff"], path)


def artifacts_of(given: Sequence[Mapping[str, Any]], path: str) -> list[AnyArtifact]:
    """Return artifacts: their bytes as base64, or the upload that has them. *path* ends with a dot, if it has any."""
    return [_artifact_of(one, f"{path}artifacts[{index}].") for index, one in enumerate(given)]


def _artifact_of(given: Mapping[str, Any], path: str) -> AnyArtifact:
    media_type = given.get("media_type", "application/octet-stream")
    if "upload_id" not in given:
        if "data" not in given:
            raise InvalidInput(f"{path}data", "is missing; give data, or upload_id and digest")
        if "digest" in given:
            raise InvalidInput(f"{path}digest", "belongs to an upload_id")
        try:
            data = base64.b64decode(given["data"], validate=True)
        except (ValueError, binascii.Error):
            raise InvalidInput(f"{path}data", "must be base64") from None
        return Artifact(given["name"], data, media_type)
    if "data" in given:
        raise InvalidInput(f"{path}data", "cannot be combined with upload_id")
    if "digest" not in given:
        raise InvalidInput(f"{path}digest", "is missing; give that of the finished upload")
    return UploadedArtifact(given["name"], given["upload_id"], given["digest"], media_type)


def time_of(value: str, path: str) -> datetime:
    """Return a time with a zone, or raise `InvalidInput`."""
    try:
        return datetime.fromisoformat(value)
    except ValueError:
        raise InvalidInput(path, "must be a time such as 2030-01-31T09:00:00Z") from None


def backoff_of(value: Mapping[str, Any], path: str) -> Backoff:
    """Return a backoff, or raise `InvalidInput`."""
    try:
        return Backoff(**value)
    except InvalidInput as error:
        raise InvalidInput(f"{path}{error.field}", error.problem) from None


def keyed_jobs(call: Call, jobs: Sequence[NewJob], first: int = 0, *, single: bool = False) -> None:
    """Give each job the id that follows from the request's idempotency key, its route, tenant and index."""
    key = call.idempotency_key
    if key is None:
        return
    for index, new in enumerate(jobs, first):
        if new.options.get("job_id") is not None:
            path = "job_id" if single else f"jobs[{index}].job_id"
            raise InvalidInput(path, "cannot be combined with Idempotency-Key; give one of them")
        parts = [new.options.get("tenant", DEFAULT_NAME), call.route.name, key, index]
        digest = hashlib.blake2b(strict_json.canonical(parts), digest_size=16).hexdigest()
        new.options["job_id"] = f"idem-{digest}"


def explain_conflict(error: Conflict, jobs: Sequence[NewJob]) -> Exception:
    """Return the problem of a reused idempotency key, if that is the conflict; else the error."""
    if error.job_id is None or not error.job_id.startswith("idem-"):
        return error
    if error.job_id not in {new.options.get("job_id") for new in jobs}:
        return error
    extras: dict[str, Any] = {} if error.path is None else {"field": error.path}
    return ProblemError(
        422, "idempotency_key_reused", "this Idempotency-Key was sent with another body; choose a new key", **extras
    )
