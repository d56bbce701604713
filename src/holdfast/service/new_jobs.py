"""New jobs over HTTP: their options from JSON, within the grants of the caller, and idempotency keys."""

import base64
import binascii
import hashlib
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from holdfast.domain import access, artifacts, backoff, errors, limits, new_job, routing, strict_json, validation
from holdfast.service.call import Call
from holdfast.service.problems import ProblemError

# What only the Python client sends.
_SENT: Final = frozenset(("declared", "digest", "merge_tags", "message_count"))
_DIGEST: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)
_TIMES: Final = ("run_at", "deadline")
# The options that are converted or checked beyond the schema.
_CONVERTED: Final = frozenset((*_TIMES, "backoff", "on_end", "artifacts"))


def granted_job(grants: access.Grants, body: Mapping[str, Any], path: str = "") -> new_job.NewJob:
    """Return the job that *body* describes, or raise if the caller may not enqueue it.

    *path* is the place of the job within the request, with a dot at its end.
    """
    options = dict(body)
    kind, payload = options.pop("kind"), options.pop("payload", None)
    sent = {name: options.pop(name) for name in _SENT & options.keys()} if options else {}
    access.check_kind(grants, kind, f"{path}kind")
    lane = access.check_lane(grants, options.get("lane"), f"{path}lane")
    if lane is not None:
        options["lane"] = lane
    tenant = access.tenant_for(grants, options.get("tenant"), f"{path}tenant")
    if tenant is not None:
        options["tenant"] = tenant
    size = 0
    if grants.payload_bytes_max is not None:
        content = options.get("messages", payload)
        size = len(strict_json.encode(content, f"{path}payload", limits.PAYLOAD_BYTES_MAX).encode())
    access.check_job_ceilings(grants, options.get("priority", 0), size, path)
    if options and not _CONVERTED.isdisjoint(options):
        convert_values(options, path)
        if options.get("on_end") is not None:
            options["on_end"] = granted_callback(grants, options["on_end"], f"{path}on_end.")
        if "artifacts" in options:
            options["artifacts"] = artifacts_of(options["artifacts"], path)
    if not sent:
        return new_job.NewJob(kind, payload, **options)
    new = new_job.SentJob(kind, payload, **options)
    new.declared, new.merge_tags = sent.get("declared", False), sent.get("merge_tags", False)
    new.digest, new.message_count = _identity(sent.get("digest"), f"{path}digest"), sent.get("message_count")
    if new.message_count is not None:
        if payload is None or "session" not in options:
            raise errors.InvalidInput(f"{path}message_count", "belongs to an encoded payload of a session")
        validation.integer(new.message_count, f"{path}message_count", 1, limits.SESSION_ENTRY_MESSAGES_MAX)
    return new


def granted_callback(grants: access.Grants, body: Mapping[str, Any], path: str) -> new_job.NewJob:
    """Return the callback that *body* describes; it belongs to the tenant of what it follows."""
    new = granted_job(grants, body, path)
    new.options.pop("tenant", None)
    return new


def _identity(digest: str | None, path: str) -> str | None:
    if digest is not None and not _DIGEST.fullmatch(digest):
        raise errors.InvalidInput(path, "must be 32 hexadecimal digits")
    return digest


def identity_of(given: Mapping[str, Any], path: str) -> str | None:
    """Return the digest by which the client identifies a settlement."""
    return _identity(given.get("digest"), f"{path}digest")


def convert_values(options: dict[str, Any], path: str) -> None:
    """Convert values that JSON cannot express: times and backoffs."""
    for name in _TIMES:
        if isinstance(options.get(name), str):
            options[name] = time_of(options[name], f"{path}{name}")
    if isinstance(options.get("backoff"), dict):
        options["backoff"] = backoff_of(options["backoff"], path)


def artifacts_of(given: Sequence[Mapping[str, Any]], path: str) -> list[artifacts.AnyArtifact]:
    """Return artifacts: their bytes as base64, or the upload that has them. *path* ends with a dot, if it has any."""
    return [_artifact_of(one, f"{path}artifacts[{index}].") for index, one in enumerate(given)]


def _artifact_of(given: Mapping[str, Any], path: str) -> artifacts.AnyArtifact:
    media_type = given.get("media_type", "application/octet-stream")
    if "upload_id" not in given:
        if "data" not in given:
            raise errors.InvalidInput(f"{path}data", "is missing; give data, or upload_id and digest")
        if "digest" in given:
            raise errors.InvalidInput(f"{path}digest", "belongs to an upload_id")
        try:
            data = base64.b64decode(given["data"], validate=True)
        except (ValueError, binascii.Error):
            raise errors.InvalidInput(f"{path}data", "must be base64") from None
        return artifacts.Artifact(given["name"], data, media_type)
    if "data" in given:
        raise errors.InvalidInput(f"{path}data", "cannot be combined with upload_id")
    if "digest" not in given:
        raise errors.InvalidInput(f"{path}digest", "is missing; give that of the finished upload")
    return artifacts.UploadedArtifact(given["name"], given["upload_id"], given["digest"], media_type)


def time_of(value: str, path: str) -> datetime:
    """Return a time with a zone, or raise `InvalidInput`."""
    try:
        return datetime.fromisoformat(value)
    except ValueError:
        raise errors.InvalidInput(path, "must be a time such as 2030-01-31T09:00:00Z") from None


def backoff_of(value: Mapping[str, Any], path: str) -> backoff.Backoff:
    """Return a backoff, or raise `InvalidInput`."""
    try:
        return backoff.Backoff(**value)
    except errors.InvalidInput as error:
        raise errors.InvalidInput(f"{path}{error.field}", error.problem, error.limit) from None


def keyed_jobs(call: Call, jobs: Sequence[new_job.NewJob], first: int = 0, *, single: bool = False) -> None:
    """Give each job the id that follows from the request's idempotency key, its route, tenant and index."""
    key = call.idempotency_key
    if key is None:
        return
    for index, new in enumerate(jobs, first):
        if new.options.get("job_id") is not None:
            path = "job_id" if single else f"jobs[{index}].job_id"
            raise errors.InvalidInput(path, "cannot be combined with Idempotency-Key; give one of them")
        new.options["job_id"] = keyed_id(call, key, new.options.get("tenant", routing.DEFAULT_NAME), index)


def keyed_id(call: Call, key: str, tenant: str, place: str | int) -> str:
    """Return the id that follows from an idempotency key, the route, the tenant and the place in the request."""
    parts = [tenant, call.route.name, key, place]
    return f"idem-{hashlib.blake2b(strict_json.canonical(parts), digest_size=16).hexdigest()}"


def explain_conflict(error: errors.Conflict, jobs: Sequence[new_job.NewJob]) -> Exception:
    """Return the problem of a reused idempotency key, if that is the conflict; else the error."""
    if error.job_id is None or not error.job_id.startswith("idem-"):
        return error
    if error.job_id not in {new.options.get("job_id") for new in jobs}:
        return error
    field = error.path or "Idempotency-Key"
    return ProblemError(
        422,
        "idempotency_key_reused",
        "this Idempotency-Key was sent with another body; choose a new key",
        field=field,
    )
