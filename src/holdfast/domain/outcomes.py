"""Outcomes: the results with which an attempt settles, and their validated form for the store."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple, TypeAlias

from holdfast.domain import (
    artifacts as artifact_rules,
    backoff as backoffs,
    errors,
    gates,
    limits,
    strict_json,
    validation,
)
from holdfast.domain.artifacts import AnyArtifact, CheckedArtifact
from holdfast.domain.backoff import Backoff
from holdfast.domain.codec import NULL, Codec, encode_text
from holdfast.domain.failures import Failure
from holdfast.domain.job import Job, JobRow
from holdfast.domain.new_job import CheckedJob, JobLike, check_job
from holdfast.domain.strict_json import Json
from holdfast.domain.validation import Duration


@dataclass(frozen=True, slots=True, init=False)
class Done:
    """The work succeeded. Result, follow-up jobs and artifacts are stored together with the settlement."""

    result: Json = None
    """The result, as JSON."""
    follow_ups: Sequence[JobLike] = ()
    """Jobs to enqueue."""
    artifacts: Sequence[AnyArtifact] = ()
    """Artifacts to store; earlier outputs of the same names are replaced."""
    usage: Mapping[str, int] | None = None
    """What the attempt has used, such as `{"tokens": 812}`, to correct limits by key that count it."""

    def __init__(
        self,
        result: Json = None,
        follow_ups: Sequence[JobLike] = (),
        artifacts: Sequence[AnyArtifact] = (),
        usage: Mapping[str, int] | None = None,
    ) -> None:
        _set_result(self, result)
        _set_follow_ups(self, follow_ups)
        _set_artifacts(self, artifacts)
        _set_usage(self, usage)


# Not by the generated constructor, which sets each field by name: there is one for every job that is done.
_set_result, _set_follow_ups, _set_artifacts, _set_usage = (
    getattr(Done, name).__set__ for name in ("result", "follow_ups", "artifacts", "usage")
)


@dataclass(frozen=True, slots=True)
class SentDone(Done):
    """A success that the Python client of the HTTP service has validated, with its digest."""

    digest: str | None = None
    """By what a repeated settlement is recognized, because encoding the result may differ each time."""


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
    usage: Mapping[str, int] | None = None
    """What the attempt has used, such as `{"tokens": 812}`, to correct limits by key that count it."""


@dataclass(frozen=True, slots=True)
class Deferred:
    """The work cannot be done yet. The job is rescheduled, by `after` or `until`, without using up an attempt."""

    after: Duration | None = None
    """Seconds until the job may be claimed again."""
    until: datetime | None = None
    """The earliest time at which it may be claimed again."""
    closes: bool = False
    """Whether no other job with its key for a limit starts until then either, as after a response with status 429."""
    usage: Mapping[str, int] | None = None
    """What the attempt has used, such as `{"tokens": 812}`, to correct limits by key that count it."""


@dataclass(frozen=True, slots=True)
class Released:
    """The worker returns the job without having done it. It is ready at once; no attempt is used up."""


Outcome: TypeAlias = Done | Failed | Deferred | Released
"""How an attempt ended, as `settle` takes it."""


_new_tuple: Final = tuple.__new__
_NO_OTHERS: Final = ()


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
    usage: tuple[tuple[str, int], ...] = ()

    def encoded(self, codec: Codec) -> CheckedOutcome:
        """Return the outcome with its result and the payloads of its follow-ups encoded."""
        follow_ups = tuple(new.encoded(codec, f"follow_ups[{index}].") for index, new in enumerate(self.follow_ups))
        changed = self._replace(follow_ups=follow_ups) if follow_ups else self
        if self.result_json is None or self.result_json == NULL:
            return changed
        text = encode_text(codec, self.result_json, "result", limits.RESULT_BYTES_MAX)
        # Encoding may differ each time, so that the stored result does not identify a repeated settlement.
        return changed._replace(result_json=text, digest=self.digest or _digest("done", self.result_json))


def children_of(parent: Job | JobRow, jobs: Iterable[CheckedJob]) -> list[CheckedJob]:
    """Return *jobs* as children of *parent*, in its tree."""
    lineage = parent.id, parent.root or parent.id
    return [new._replace(lineage=lineage) for new in jobs]


def check_outcome(outcome: Outcome, *, tenant: str, fresh_id: Callable[[], str]) -> CheckedOutcome:
    """Return *outcome* validated and in stored form; follow-ups belong to *tenant* unless they name another."""
    match outcome:
        case SentDone(result, follow_ups, artifacts, usage, digest):
            done = Done(result, follow_ups, artifacts, usage)
            return _check_done(done, tenant, fresh_id)._replace(digest=digest)
        case Done():
            return _check_done(outcome, tenant, fresh_id)
        case Failed():
            return _check_failed(outcome)
        case Deferred():
            return _check_deferred(outcome)
        case Released():
            return CheckedOutcome(outcome, _digest("released"))
        case _:
            raise errors.InvalidInput(
                "outcome", f"must be Done, Failed, Deferred or Released, not {errors.shown(outcome)}"
            )


def check_plain(outcome: Outcome, alike: CheckedOutcome | None = None) -> CheckedOutcome | None:
    """Return a success without follow-ups and artifacts as `check_outcome` does, and None for any other outcome.

    Return *alike*, another plain success, instead if it has the same result.
    """
    if type(outcome) is not Done or outcome.usage is not None:
        return None
    # There is only one empty tuple; any other value takes longer, and may be invalid.
    if outcome.follow_ups is not _NO_OTHERS or outcome.artifacts is not _NO_OTHERS:
        return None
    result = outcome.result
    if alike is not None and result is alike.outcome.result:  # type: ignore[union-attr]  # it is a success, too
        return alike
    result_json = NULL if result is None else strict_json.encode(result, "result", limits.RESULT_BYTES_MAX)
    if alike is not None and alike.result_json == result_json:
        return alike
    # In a third of the time that the constructor takes, which is spent for every job that is settled.
    return _new_tuple(CheckedOutcome, (outcome, None, result_json, None, None, None, (), (), ()))


def _check_done(done: Done, tenant: str, fresh_id: Callable[[], str]) -> CheckedOutcome:
    if (plain := check_plain(done)) is not None:
        return plain
    result_json = strict_json.encode(done.result, "result", limits.RESULT_BYTES_MAX)
    artifact_rules.check_list(done.follow_ups, "follow_ups")
    if len(done.follow_ups) > limits.FOLLOW_UPS_MAX:
        raise errors.InvalidInput(
            "follow_ups",
            f"has {len(done.follow_ups)} jobs; the limit is {limits.FOLLOW_UPS_MAX}",
            limits.FOLLOW_UPS_MAX,
        )
    follow_ups = tuple(
        check_job(new, fresh_id=fresh_id(), tenant=tenant, field=f"follow_ups[{index}]")
        for index, new in enumerate(done.follow_ups)
    )
    # A character takes at most four bytes in UTF-8; measure the bytes only if the limit could be exceeded.
    if (
        4 * sum(len(new.payload_json) for new in follow_ups) > limits.ENQUEUE_MANY_BYTES_MAX
        and sum(len(new.payload_json.encode()) for new in follow_ups) > limits.ENQUEUE_MANY_BYTES_MAX
    ):
        problem = f"have payloads of more than {limits.ENQUEUE_MANY_BYTES_MAX} bytes together; enqueue fewer jobs"
        raise errors.InvalidInput("follow_ups", problem)
    artifacts = artifact_rules.check_artifacts(done.artifacts)
    if any(new.artifacts for new in follow_ups):
        all_artifacts = [artifacts, *(new.artifacts for new in follow_ups)]
        artifact_rules.check_direct_size(sum(map(artifact_rules.direct_size, all_artifacts)), "follow_ups")
    # New ids differ each time the same settlement is sent, so they are not part of the digest.
    follow_up_jobs = [
        (
            new._replace(id="" if new.digest is None else new.id, given=None, artifacts=()),
            artifact_rules.contents(new.artifacts),
        )
        for new in follow_ups
    ]
    # Not the upload: the same bytes may be uploaded again before the same settlement is sent again.
    artifact_digests = artifact_rules.contents(artifacts)
    usage = _usage(done)
    # Empty lists are equivalent to omitted ones. Usage is read in the full form, which a digest asks for.
    digest = (
        _digest("done", result_json, follow_up_jobs, artifact_digests)
        if follow_up_jobs or artifact_digests or usage
        else None
    )
    return CheckedOutcome(
        done,
        digest,
        result_json=result_json,
        follow_ups=follow_ups,
        artifacts=artifacts,
        usage=usage,
    )


def _usage(outcome: Done | Failed | Deferred) -> tuple[tuple[str, int], ...]:
    return () if outcome.usage is None else gates.check_usage(outcome.usage)


def _check_failed(failed: Failed) -> CheckedOutcome:
    if not isinstance(failed.message, str):
        raise errors.InvalidInput("message", f"must be a string, not {type(failed.message).__name__}")
    if failed.traceback is not None and not isinstance(failed.traceback, str):
        raise errors.InvalidInput("traceback", f"must be a string, not {type(failed.traceback).__name__}")
    permanent = validation.flag(failed.permanent, "permanent")
    failure = Failure(
        "permanent" if permanent else "transient",
        validation.reason(failed.reason, "reason"),
        shortened(failed.message, limits.FAILURE_MESSAGE_CHARS_MAX),
        None if failed.traceback is None else shortened(failed.traceback, limits.TRACEBACK_CHARS_MAX),
    )
    pause_ms = None if failed.retry_after is None else validation.duration_ms(failed.retry_after, "retry_after")
    if failed.backoff is not None and not isinstance(failed.backoff, Backoff):
        raise errors.InvalidInput("backoff", f"must be a Backoff, not {type(failed.backoff).__name__}")
    shown = None if failed.backoff is None else backoffs.to_json(failed.backoff)
    digest = _digest("failed", failure, pause_ms, shown)
    return CheckedOutcome(failed, digest, failure=failure, pause_ms=pause_ms, usage=_usage(failed))


def _check_deferred(deferred: Deferred) -> CheckedOutcome:
    if (deferred.after is None) == (deferred.until is None):
        raise errors.InvalidInput("after", "give either after or until")
    pause_ms = None if deferred.after is None else validation.duration_ms(deferred.after, "after")
    until_ms = None if deferred.until is None else validation.timestamp_ms(deferred.until, "until")
    closes = ("closes",) if validation.flag(deferred.closes, "closes") else ()
    digest = _digest("deferred", pause_ms, until_ms, *closes)
    return CheckedOutcome(deferred, digest, pause_ms=pause_ms, until_ms=until_ms, usage=_usage(deferred))


def shortened(text: str, chars_max: int) -> str:
    """Keep both ends of a long text: a message is most useful at its start, a traceback at its end."""
    # NUL and lone surrogates cannot be stored; replace them rather than lose the failure.
    clean = text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()
    if len(clean) <= chars_max:
        return clean
    half = (chars_max - 20) // 2
    return f"{clean[:half]} … shortened … {clean[-half:]}"[:chars_max]


def _digest(*parts: object) -> str:
    return hashlib.blake2b(strict_json.canonical(parts), digest_size=16).hexdigest()
