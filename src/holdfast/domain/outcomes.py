"""Outcomes: the results with which an attempt settles, and their validated form for the store."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, TypeAlias

from holdfast.domain import limits, strict_json, validation
from holdfast.domain.artifacts import (
    AnyArtifact,
    CheckedArtifact,
    check_artifacts,
    check_direct_size,
    check_list,
    contents,
    direct_size,
)
from holdfast.domain.backoff import Backoff
from holdfast.domain.codec import NULL, Codec, encode_text
from holdfast.domain.errors import InvalidInput
from holdfast.domain.failures import Failure
from holdfast.domain.new_job import CheckedJob, JobLike, check_job
from holdfast.domain.strict_json import Json
from holdfast.domain.validation import Duration


@dataclass(frozen=True, slots=True)
class Done:
    """The work succeeded. Result, follow-up jobs and artifacts are stored together with the settlement."""

    result: Json = None
    """The result, as JSON."""
    follow_ups: Sequence[JobLike] = ()
    """Jobs to enqueue."""
    artifacts: Sequence[AnyArtifact] = ()
    """Artifacts to store; earlier outputs of the same names are replaced."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The attempt failed. It is retried after a pause unless the failure is permanent or no attempts are left.

    The pause is `retry_after` seconds if given, else by `backoff` if given, else by the job's own backoff.
    """

    message: str
    """The message for people."""
    reason: str = "error"
    """A short code, such as `rate_limit`."""
    permanent: bool = False
    """Whether to fail the job even if attempts are left."""
    retry_after: Duration | None = None
    """Seconds until the next attempt."""
    backoff: Backoff | None = None
    """The backoff that determines the pause, instead of the job's."""
    traceback: str | None = None
    """The traceback, for people."""


@dataclass(frozen=True, slots=True)
class Deferred:
    """The work cannot be done yet. The job is rescheduled, by `after` or `until`, without using up an attempt."""

    after: Duration | None = None
    """Seconds until the job may be claimed again."""
    until: datetime | None = None
    """The earliest time at which it may be claimed again."""


@dataclass(frozen=True, slots=True)
class Released:
    """The worker returns the job without having done it. It is ready at once; no attempt is used up."""


Outcome: TypeAlias = Done | Failed | Deferred | Released
"""How an attempt ended, as `settle` takes it."""


class CheckedOutcome(NamedTuple):
    """A validated outcome in stored form."""

    outcome: Outcome
    digest: str | None
    """Identifies a repeated settlement; None for a plain success, which its result identifies."""
    result_json: str | None = None
    failure: Failure | None = None
    pause_ms: int | None = None
    until_ms: int | None = None
    follow_ups: tuple[CheckedJob, ...] = ()
    artifacts: tuple[CheckedArtifact, ...] = ()

    def encoded(self, codec: Codec) -> CheckedOutcome:
        """Return the outcome with its result and the payloads of its follow-ups encoded."""
        follow_ups = tuple(new.encoded(codec, f"follow_ups[{index}].") for index, new in enumerate(self.follow_ups))
        changed = self._replace(follow_ups=follow_ups) if follow_ups else self
        if self.result_json is None or self.result_json == NULL:
            return changed
        text = encode_text(codec, self.result_json, "result", limits.RESULT_BYTES_MAX)
        # Encoding may differ each time, so that the stored result does not identify a repeated settlement.
        return changed._replace(result_json=text, digest=self.digest or _digest("done", self.result_json))


def check_outcome(outcome: Outcome, *, tenant: str, fresh_id: Callable[[], str]) -> CheckedOutcome:
    """Return *outcome* validated and in stored form; follow-ups belong to *tenant* unless they name another."""
    match outcome:
        case Done():
            return _check_done(outcome, tenant, fresh_id)
        case Failed():
            return _check_failed(outcome)
        case Deferred():
            return _check_deferred(outcome)
        case Released():
            return CheckedOutcome(outcome, _digest("released"))
        case _:
            raise InvalidInput("outcome", f"must be Done, Failed, Deferred or Released, not {outcome!r}")


def _check_done(done: Done, tenant: str, fresh_id: Callable[[], str]) -> CheckedOutcome:
    result_json = strict_json.encode(done.result, "result", limits.RESULT_BYTES_MAX)
    if done.follow_ups == () == done.artifacts:
        return CheckedOutcome(done, None, result_json)
    check_list(done.follow_ups, "follow_ups")
    if len(done.follow_ups) > limits.FOLLOW_UPS_MAX:
        raise InvalidInput("follow_ups", f"has {len(done.follow_ups)} jobs; the limit is {limits.FOLLOW_UPS_MAX}")
    follow_ups = tuple(
        check_job(new, fresh_id=fresh_id(), tenant=tenant, field=f"follow_ups[{index}]")
        for index, new in enumerate(done.follow_ups)
    )
    artifacts = check_artifacts(done.artifacts)
    if any(new.artifacts for new in follow_ups):
        size = direct_size(artifacts) + sum(direct_size(new.artifacts) for new in follow_ups)
        check_direct_size(size, "follow_ups")
    # New ids differ each time the same settlement is sent, so they are not part of the digest.
    follow_up_jobs = [
        (new._replace(id="" if new.digest is None else new.id, given=None, artifacts=()), contents(new.artifacts))
        for new in follow_ups
    ]
    # Not the upload: the same bytes may be uploaded again before the same settlement is sent again.
    artifact_digests = contents(artifacts)
    # Empty lists are equivalent to omitted ones.
    digest = (
        _digest("done", result_json, follow_up_jobs, artifact_digests) if follow_up_jobs or artifact_digests else None
    )
    return CheckedOutcome(
        done,
        digest,
        result_json=result_json,
        follow_ups=follow_ups,
        artifacts=artifacts,
    )


def _check_failed(failed: Failed) -> CheckedOutcome:
    if not isinstance(failed.message, str):
        raise InvalidInput("message", f"must be a string, not {type(failed.message).__name__}")
    if failed.traceback is not None and not isinstance(failed.traceback, str):
        raise InvalidInput("traceback", f"must be a string, not {type(failed.traceback).__name__}")
    permanent = validation.flag(failed.permanent, "permanent")
    failure = Failure(
        "permanent" if permanent else "transient",
        validation.reason(failed.reason, "reason"),
        _shortened(failed.message, limits.FAILURE_MESSAGE_CHARS_MAX),
        None if failed.traceback is None else _shortened(failed.traceback, limits.TRACEBACK_CHARS_MAX),
    )
    pause_ms = None if failed.retry_after is None else validation.duration_ms(failed.retry_after, "retry_after")
    if failed.backoff is not None and not isinstance(failed.backoff, Backoff):
        raise InvalidInput("backoff", f"must be a Backoff, not {type(failed.backoff).__name__}")
    shown = None if failed.backoff is None else failed.backoff.to_json()
    return CheckedOutcome(failed, _digest("failed", failure, pause_ms, shown), failure=failure, pause_ms=pause_ms)


def _check_deferred(deferred: Deferred) -> CheckedOutcome:
    if (deferred.after is None) == (deferred.until is None):
        raise InvalidInput("after", "give either after or until")
    pause_ms = None if deferred.after is None else validation.duration_ms(deferred.after, "after")
    until_ms = None if deferred.until is None else validation.timestamp_ms(deferred.until, "until")
    return CheckedOutcome(deferred, _digest("deferred", pause_ms, until_ms), pause_ms=pause_ms, until_ms=until_ms)


def _shortened(text: str, chars_max: int) -> str:
    """Keep both ends of a long text: a message is most useful at its start, a traceback at its end."""
    # NUL and lone surrogates cannot be stored; replace them rather than lose the failure.
    clean = text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()
    if len(clean) <= chars_max:
        return clean
    half = (chars_max - 20) // 2
    return f"{clean[:half]} … shortened … {clean[-half:]}"[:chars_max]


def _digest(*parts: object) -> str:
    return hashlib.blake2b(strict_json.canonical(parts), digest_size=16).hexdigest()
