"""Callbacks: jobs that are declared with others and enqueued when those have ended."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from holdfast.domain import backoff as backoffs, codec, errors, limits, new_job, publications, strict_json


class Callback(NamedTuple):
    """A job to be enqueued later, in stored form."""

    kind: str
    payload_json: str
    options_json: str


def check_callback(new: new_job.JobLike, field: str) -> Callback:
    """Return a callback in stored form, or raise `InvalidInput`, which names the option below *field*."""
    checked = new_job.check_callback(new, field)
    kind, _, options = new_job.parts_of(new)
    given = {option: value for option, value in options.items() if value is not None}
    if isinstance(given.get("deadline"), datetime):
        raise errors.InvalidInput(f"{field}.deadline", "must be a number of seconds, counted from its enqueue")
    return Callback(kind, checked.payload_json, stored_options(given))


def stored_options(given: Mapping[str, Any]) -> str:
    """Return the options of jobs that are enqueued later, as JSON."""
    options: Any = given
    stored = strict_json.decode(publications.published_options(options))
    if "headers" in given:
        stored["headers"] = dict(given["headers"])
    return strict_json.compact(dict(sorted(stored.items())))


def encoded(callback: Callback | None, used: codec.Codec | None, field: str) -> Callback | None:
    """Return the callback with its payload encoded by the codec of a queue, if it has one."""
    if callback is None or used is None or callback.payload_json == codec.NULL:
        return callback
    text = codec.encode_text(used, callback.payload_json, f"{field}.payload", limits.PAYLOAD_BYTES_MAX)
    return callback._replace(payload_json=text)


def job_of_callback(
    callback: Callback, job_id: str, tenant: str, headers: Mapping[str, str] | None = None
) -> new_job.CheckedJob:
    """Return the job of a callback with the options that were given, and more *headers*."""
    options: Any = strict_json.decode(callback.options_json)
    if options.get("backoff") is not None:
        options["backoff"] = backoffs.Backoff(**options["backoff"])
    if headers:
        options["headers"] = {**options.get("headers", {}), **headers}
    options["tenant"] = tenant
    checked = new_job.check_job(new_job.NewJob(callback.kind, **options), fresh_id=job_id)
    return checked._replace(payload_json=callback.payload_json)


def document(callback: Callback) -> dict[str, Any]:
    """Return a callback as the JSON of a request."""
    return {
        "kind": callback.kind,
        "payload": strict_json.decode(callback.payload_json),
        **strict_json.decode(callback.options_json),
    }


def to_json(callback: Callback | None) -> str | None:
    """Return a callback as the store keeps it."""
    return None if callback is None else strict_json.compact(list(callback))


def from_json(text: str | None) -> Callback | None:
    """Return a callback that the store has kept."""
    return None if text is None else Callback(*strict_json.decode(text))
