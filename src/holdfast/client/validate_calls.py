"""Validation of whole calls, before a transaction begins."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

from holdfast.client import ids
from holdfast.domain import alike_jobs, artifacts, errors, failures, groups, limits, new_job, results, validation
from holdfast.domain.claims import Claim, Lease
from holdfast.domain.job import STATES, Job, State
from holdfast.domain.outcomes import CheckedOutcome, Done, Outcome, check_outcome, check_plain, children_of
from holdfast.domain.session_claims import SessionClaim, SessionLease, TurnLease
from holdfast.tasks.definition import TaskTable

Params: TypeAlias = Sequence[Any] | Mapping[str, Any]
"""The parameters of the caller's SQL."""
_FINGERPRINT: Final = re.compile("[0-9a-f]{16}")


def not_connected(function: str) -> errors.InvalidInput:
    """Return the error for a caller that constructs a queue instead of calling *function*."""
    return errors.InvalidInput("store", f'a queue is opened by path or URL; write holdfast.{function}("jobs.db")')


def jobs(
    values: Sequence[new_job.JobLike], tasks: TaskTable, parent: Job | None = None
) -> Sequence[new_job.CheckedJob]:
    """Return the jobs of one call, validated, or raise `InvalidInput` that names the invalid one.

    The options of *tasks* are the defaults for jobs of their kinds. *parent* is the job whose handler enqueues them.
    """
    count(values, "jobs", limits.ENQUEUE_MANY_MAX)
    fresh_ids = ids.job_ids(len(values))
    checked_jobs: Sequence[new_job.CheckedJob]
    if (alike := _check_bare(values, tasks, fresh_ids)) is not None:
        checked_jobs, chars = alike, sum(map(len, alike.payloads))
    else:
        checked_jobs = [_check_one(new, tasks, fresh_ids[index], index) for index, new in enumerate(values)]
        chars = sum(len(new.payload_json) + artifacts.direct_size(new.artifacts) for new in checked_jobs)
    # A character takes at most four bytes in UTF-8; measure the bytes only if the limit could be exceeded.
    if chars * 4 > limits.ENQUEUE_MANY_BYTES_MAX:
        _refuse_large_payloads(checked_jobs)
    return checked_jobs if parent is None else children_of(parent, checked_jobs)


def _check_bare(
    values: Sequence[new_job.JobLike], tasks: TaskTable, fresh_ids: Sequence[str]
) -> alike_jobs.AlikeNewJobs | None:
    """Return jobs that are dicts of one kind and a payload, as those of most calls are; None for any others."""
    kind = values[0].get("kind") if values and type(values[0]) is dict else None
    if type(kind) is not str or kind in tasks.by_kind:
        return None
    payloads = []
    for new in values:
        if type(new) is not dict or len(new) != 2:
            return None
        named = new.get("kind")
        if "payload" not in new or (named is not kind and (type(named) is not str or named != kind)):
            return None
        payloads.append(new["payload"])
    try:
        return alike_jobs.check_alike(kind, payloads, fresh_ids)
    except errors.InvalidInput:
        # To be named by the index of its job.
        return None


def _check_one(new: new_job.JobLike, tasks: TaskTable, fresh_id: str, index: int) -> new_job.CheckedJob:
    try:
        return new_job.check_job(tasks.complete(new), fresh_id=fresh_id)
    except errors.InvalidInput as error:
        raise errors.InvalidInput(f"jobs[{index}].{error.field}", error.problem, error.limit) from None


def _refuse_large_payloads(checked_jobs: Sequence[new_job.CheckedJob]) -> None:
    """Raise `InvalidInput` for the job that exceeds the limit for the payloads and artifacts of one call."""
    size = 0
    for index, checked in enumerate(checked_jobs):
        size += len(checked.payload_json.encode()) + artifacts.direct_size(checked.artifacts)
        if size > limits.ENQUEUE_MANY_BYTES_MAX:
            raise errors.InvalidInput(
                f"jobs[{index}].payload",
                f"makes the payloads and artifacts of this call exceed {limits.ENQUEUE_MANY_BYTES_MAX} bytes;"
                " send fewer jobs",
            )


def settlements(
    values: Sequence[tuple[Claim, Outcome]], *, observed: bool = False
) -> list[tuple[Claim, CheckedOutcome]]:
    """Return the claims of one call with validated outcomes, or raise `InvalidInput` that names the invalid one.

    Successes with the same result are one object, unless they are *observed* by middleware, which reads the outcomes
    as they were given.
    """
    if type(values) is not list or len(values) > limits.SETTLE_MANY_MAX:
        count(values, "settlements", limits.SETTLE_MANY_MAX)
    checked = []
    pair: Any
    # A worker settles most jobs with the same outcome, the success of a handler that returned nothing.
    last, plain, alike = object(), None, None
    for index, pair in enumerate(values):
        # isinstance() with an abstract class is slow; check for the usual type first.
        if (type(pair) is not tuple and not isinstance(pair, Sequence)) or len(pair) != 2:
            raise errors.InvalidInput(f"settlements[{index}]", "must be a pair of a claim and an outcome")
        held, outcome = pair
        if not isinstance(held, Claim):
            raise _wrong_claim(held, "a Claim")
        try:
            if outcome is not last:
                last, plain = outcome, check_plain(outcome, alike)
                alike = None if observed else plain
            found = plain or check_outcome(outcome, tenant=held.job.tenant, fresh_id=ids.job_id)
        except errors.InvalidInput as error:
            if len(values) == 1:
                raise
            raise errors.InvalidInput(f"settlements[{index}].{error.field}", error.problem, error.limit) from None
        checked.append((held, found))
    return checked


def count(values: Sequence[object], field: str, count_max: int) -> None:
    """Raise `InvalidInput` unless *values* is a sequence of at most *count_max* values."""
    # isinstance() with an abstract class is slow; check for the usual type first.
    if type(values) is not list and (isinstance(values, str | bytes | Mapping) or not isinstance(values, Sequence)):
        raise errors.InvalidInput(field, f"must be a list, not {type(values).__name__}")
    if len(values) > count_max:
        raise errors.InvalidInput(field, f"has {len(values)} entries; the limit is {count_max}", count_max)


def claim(value: Claim) -> Claim:
    """Return *value*, or raise `InvalidInput` if it is not a claim."""
    if not isinstance(value, Claim):
        raise _wrong_claim(value, "a Claim")
    return value


def lease(value: Lease) -> Lease:
    """Return *value*, or raise `InvalidInput` if it is not a valid lease."""
    if not isinstance(value, Lease):
        raise _wrong_claim(value, "a Claim or a Lease")
    validation.name(value.job_id, "claim.job_id", limits.JOB_ID_CHARS_MAX)
    _epoch(value.epoch, "claim.epoch")
    validation.name(value.lease_token, "claim.lease_token", limits.LEASE_TOKEN_CHARS_MAX)
    validation.optional_name(value.tenant, "claim.tenant")
    return value


def _wrong_claim(value: object, expected: str) -> errors.InvalidInput:
    hint = "; use queue.sessions for a turn" if isinstance(value, SessionClaim | TurnLease) else ""
    return errors.InvalidInput("claim", f"must be {expected}, not {type(value).__name__}{hint}")


def _epoch(value: object, field: str) -> None:
    validation.integer(value, field, 0, (1 << 63) - 1)


# --- sessions ------------------------------------------------------------------------------------------------------


def turn_lease(value: TurnLease) -> TurnLease:
    """Return *value*, or raise `InvalidInput` if it is not a valid lease of a turn."""
    if not isinstance(value, TurnLease):
        hint = "; use queue.settle and queue.heartbeat for a job" if isinstance(value, Claim | Lease) else ""
        raise errors.InvalidInput("turn", f"must be a SessionClaim or a TurnLease, not {type(value).__name__}{hint}")
    validation.name(value.session, "turn.session")
    validation.name(value.tenant, "turn.tenant")
    validation.name(value.lease_token, "turn.lease_token", limits.LEASE_TOKEN_CHARS_MAX)
    count(value.entries, "turn.entries", limits.CLAIM_MAX)
    if not value.entries:
        raise errors.InvalidInput("turn.entries", "must not be empty")
    pair: Any
    for index, pair in enumerate(value.entries):
        field = f"turn.entries[{index}]"
        if isinstance(pair, str) or not isinstance(pair, Sequence) or len(pair) != 2:
            raise errors.InvalidInput(field, "must be a pair of a job id and an epoch")
        validation.name(pair[0], f"{field}[0]", limits.JOB_ID_CHARS_MAX)
        _epoch(pair[1], f"{field}[1]")
    return value


def session_lease(value: SessionLease) -> SessionLease:
    """Return *value*, or raise `InvalidInput` if it is not a session lease."""
    if not isinstance(value, SessionLease):
        raise errors.InvalidInput("lease", f"must be a SessionLease, not {type(value).__name__}")
    return value


def turn_outcomes(turn: SessionClaim, outcome: Outcome | Sequence[Outcome]) -> list[CheckedOutcome]:
    """Return the validated outcome of each entry of *turn*, or raise `InvalidInput` that names the invalid one."""
    entries = len(turn.entries)
    if not isinstance(outcome, Sequence):
        # Follow-ups and artifacts of one outcome for all entries are stored once, with the first entry.
        rest = Done(outcome.result) if isinstance(outcome, Done) else outcome
        return [_turn_outcome(turn, outcome), *(_turn_outcome(turn, rest) for _ in range(entries - 1))]
    if len(outcome) != entries:
        raise errors.InvalidInput("outcome", f"has {len(outcome)} outcomes; this claim has {entries} entries")
    return [_turn_outcome(turn, one, f"outcome[{index}].") for index, one in enumerate(outcome)]


def _turn_outcome(turn: SessionClaim, outcome: Outcome, prefix: str = "") -> CheckedOutcome:
    try:
        return check_outcome(outcome, tenant=turn.tenant, fresh_id=ids.job_id)
    except errors.InvalidInput as error:
        raise errors.InvalidInput(f"{prefix}{error.field}", error.problem, error.limit) from None


def params(value: Params) -> Params:
    """Return *value*, or raise `InvalidInput` if it is neither a mapping nor a sequence of parameters."""
    if isinstance(value, str | bytes) or not isinstance(value, Sequence | Mapping):
        raise errors.InvalidInput("params", f"must be a mapping or a sequence, not {type(value).__name__}")
    return value


# --- jobs ----------------------------------------------------------------------------------------------------------


def actor(value: str | None) -> str:
    """Return how the audit log names the caller: *value*, by default the user of this process."""
    return ids.operator() if value is None else validation.name(value, "actor")


def job_id(value: str) -> str:
    """Return *value*, or raise `InvalidInput` if it is not a valid job id."""
    return validation.name(value, "job_id", limits.JOB_ID_CHARS_MAX)


def job_id_or_number(value: str | int) -> str | int:
    """Return *value*, or raise `InvalidInput` if it is not a valid job id or job number."""
    if isinstance(value, int):
        return validation.integer(value, "job_id", 1, (1 << 63) - 1)
    return job_id(value)


def failure_fingerprint(value: str | None) -> str | None:
    """Return *value*, or raise `InvalidInput` if it is not the fingerprint of a failure."""
    if value is not None and not _FINGERPRINT.fullmatch(validation.name(value, "fingerprint")):
        raise errors.InvalidInput("fingerprint", "must be 16 hexadecimal digits, as 'holdfast failures list' shows")
    return value


def job_filter(
    *,
    state: State | Sequence[State] | None,
    kind: str | None,
    lane: str | None,
    tenant: str | None,
    failure_class: failures.FailureClass | None,
    session: str | None = None,
    root: str | None = None,
    group: str | None = None,
    tags: Mapping[str, str] | None = None,
    older_than: validation.Duration | None,
    fingerprint: str | None = None,
) -> results.JobFilter:
    """Return the filter for these options, or raise `InvalidInput`."""
    if fingerprint is not None and (session is not None or root is not None):
        raise errors.InvalidInput("fingerprint", "cannot be combined with a session or a root; leave one out")
    if group is not None and (session is not None or root is not None or fingerprint is not None):
        raise errors.InvalidInput("group", "cannot be combined with a session, root or fingerprint; leave one out")
    return results.JobFilter(
        states=_states(state),
        kind=validation.optional_name(kind, "kind"),
        lane=validation.optional_name(lane, "lane"),
        tenant=validation.optional_name(tenant, "tenant"),
        failure_class=_failure_class(failure_class),
        session=validation.optional_name(session, "session"),
        root=validation.optional_name(root, "root", limits.JOB_ID_CHARS_MAX),
        group=None if group is None else groups.check_name(group, "group"),
        tags=tuple(validation.string_map(tags or {}, "tags", limits.TAGS_MAX, limits.TAG_VALUE_CHARS_MAX).items()),
        fingerprint=failure_fingerprint(fingerprint),
        age_ms=None if older_than is None else validation.duration_ms(older_than, "older_than"),
    )


def pieces(source: object) -> Iterator[bytes]:
    """Return the bytes of *source* in chunks of an upload, or raise `InvalidInput` if it does not have bytes."""
    if isinstance(source, bytes):
        return _cut((source,))
    if hasattr(source, "read"):
        return _cut(iter(lambda: source.read(limits.ARTIFACT_CHUNK_BYTES), b""))
    if not isinstance(source, Iterable) or isinstance(source, str):
        found = type(source).__name__
        raise errors.InvalidInput("source", f"must be bytes, a binary file or an iterable of bytes, not {found}")
    return _cut(source)


def _cut(parts: Iterable[object]) -> Iterator[bytes]:
    step, buffer = limits.ARTIFACT_CHUNK_BYTES, bytearray()
    for part in parts:
        if not isinstance(part, bytes | bytearray | memoryview):
            raise errors.InvalidInput("source", f"must contain bytes, not {type(part).__name__}")
        buffer += part
        start = 0
        while len(buffer) - start >= step:
            yield bytes(buffer[start : start + step])
            start += step
        del buffer[:start]
    if buffer:
        yield bytes(buffer)


def _states(value: State | Sequence[State] | None) -> tuple[State, ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        return (validation.one_of(value, "state", STATES),)
    count(value, "state", len(STATES))
    if not value:
        raise errors.InvalidInput("state", "must contain a state; leave it out for all states")
    return tuple(dict.fromkeys(validation.one_of(one, f"state[{index}]", STATES) for index, one in enumerate(value)))


def tenant(value: str | None) -> str | None:
    """Return *value*, which is None for all tenants, or raise `InvalidInput` if it is not a valid tenant."""
    return validation.optional_name(value, "tenant")


def _failure_class(value: failures.FailureClass | None) -> Literal["transient", "permanent"] | None:
    return None if value is None else validation.one_of(value, "failure_class", ("transient", "permanent"))
