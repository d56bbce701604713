"""How an attempt ended, from what its handler returned or raised: a rule without input or output.

Whatever a handler does, the outcome is one that a settle accepts: one job's bad result never refuses the batch.
"""

from __future__ import annotations

import asyncio
import re
import traceback
from collections.abc import Sequence
from typing import Any, Final

from holdfast.domain import failures, limits, strict_json
from holdfast.domain.backoff import Backoff
from holdfast.domain.errors import HoldfastError, InvalidInput, Unavailable
from holdfast.domain.new_job import CheckedJob, JobLike, NewJob
from holdfast.domain.outcomes import Deferred, Done, Failed, Outcome, Released, check_outcome
from holdfast.tasks.arguments import PayloadInvalid
from holdfast.tasks.context import Context
from holdfast.tasks.control_flow import Ask, Cancelled, Defer, Fail, Retry
from holdfast.tasks.json_encode import Unfit, write
from holdfast.tasks.policy import Policy

_CONNECTION_ERRORS: Final = (OSError, TimeoutError, Unavailable)
# These are of the same family but tell of files: the same call would fail again.
_FILE_ERRORS: Final = (FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError, NotADirectoryError)
_WORD: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_NOTHING: Final = Done()


def outcome_of(ended: object, policy: Policy, context: Context) -> Outcome:
    """Return the outcome of an attempt whose handler returned, or raised, *ended*. It raises nothing.

    A value may run code of its own while it is encoded. What that raises counts as raised by the handler.
    """
    try:
        return _outcome_of(ended, policy, context)
    except BaseException as error:  # an exit or a cancel too: the attempt must be decided
        try:
            return _outcome_of_error(error, policy, context)
        except BaseException:  # an error that is broken itself
            return _refused("the outcome cannot be encoded, and neither can the error that this raises")


def _outcome_of(ended: object, policy: Policy, context: Context) -> Outcome:
    if ended is None and not context.collected:
        return _NOTHING
    if isinstance(ended, BaseException):
        return _outcome_of_error(ended, policy, context)
    if isinstance(ended, Failed | Deferred | Released):
        return _sound(ended, context)
    return _done(ended if isinstance(ended, Done) else Done(ended), context)


def _outcome_of_error(error: BaseException, policy: Policy, context: Context) -> Outcome:
    if isinstance(error, Ask):
        return _asked(error, policy, context)
    if isinstance(error, Cancelled | asyncio.CancelledError) and context.cancelled:
        return _stopped(policy, context)
    if isinstance(error, PayloadInvalid):
        return Failed(str(error), reason=failures.PAYLOAD_INVALID, permanent=True)
    return Failed(
        _message(error),
        reason=_reason(error),
        permanent=_is_permanent(error, policy),
        backoff=_backoff(policy, context),
        traceback=_trace(error),
    )


def _asked(error: Ask, policy: Policy, context: Context) -> Outcome:
    trace = None if error.__cause__ is None and error.__context__ is None else _trace(error)
    match error:
        case Retry():
            backoff = _backoff(policy, context)
            return Failed(error.message, error.reason, retry_after=error.after, backoff=backoff, traceback=trace)
        case Defer():
            return Deferred(after=error.after, until=error.until)
        case Fail():
            return Failed(error.message, error.reason, permanent=True, traceback=trace)
        case _:
            return Failed(_message(error), reason=_reason(error), traceback=trace)


def _stopped(policy: Policy, context: Context) -> Outcome:
    """Return the outcome of a handler that stopped when told to; where somebody cancelled the job, the store does."""
    if context.stop_reason == "timeout":
        message = f"the attempt took longer than {policy.timeout_seconds:g} s"
        return Failed(message, reason=failures.TIMEOUT, backoff=_backoff(policy, context))
    return Released()


def _is_permanent(error: BaseException, policy: Policy) -> bool:
    if isinstance(error, policy.permanent_on):
        return True
    if not policy.retry_on or isinstance(error, policy.retry_on):
        return False
    # A list of errors worth another attempt is not meant to exclude a broken connection.
    return isinstance(error, _FILE_ERRORS) or not isinstance(error, _CONNECTION_ERRORS)


def _backoff(policy: Policy, context: Context) -> Backoff | None:
    """Return the task's backoff for a job that was enqueued without any, as one known by name only is."""
    return policy.backoff if context.job.backoff_json is None else None


def _done(done: Done, context: Context) -> Outcome:
    try:
        result = write(done.result)
    except Unfit as error:
        return _refused(f"result{error.path}: {error.problem}")
    try:
        done = Done(result, _completed(done.follow_ups, context), done.artifacts)
    except InvalidInput as error:
        return _refused(str(error))
    return _sound(_joined(done, context) if context.collected else done, context)


def _completed(follow_ups: Sequence[JobLike], context: Context) -> Sequence[JobLike]:
    """Return *follow_ups* with the options of their kinds' tasks, or raise `InvalidInput`."""
    if not follow_ups or not isinstance(follow_ups, list | tuple):
        return follow_ups
    completed = []
    for index, new in enumerate(follow_ups):
        try:
            completed.append(context.completed(new))
        except InvalidInput as error:
            raise InvalidInput(f"follow_ups[{index}].{error.field}", error.problem) from None
    return completed


def _joined(done: Done, context: Context) -> Done:
    try:
        own = {artifact.name for artifact in done.artifacts}
        kept = [artifact for artifact in context.artifacts if artifact.name not in own]
        return Done(done.result, (*context.follow_ups, *done.follow_ups), (*kept, *done.artifacts))
    except (TypeError, AttributeError):
        # Not artifacts or not a list: the check that follows says so in its words.
        return done


def _sound(outcome: Outcome, context: Context) -> Outcome:
    """Return *outcome* if a settle would accept it, else a failure that says why not."""
    try:
        checked = check_outcome(outcome, tenant=context.job.tenant, fresh_id=str)
    except InvalidInput as error:
        return _refused(str(error))
    if isinstance(outcome, Done) and checked.follow_ups:
        # Copies, because what the handler still changes must not change what is settled.
        follow_ups = tuple(map(_copied, outcome.follow_ups, checked.follow_ups))
        return Done(outcome.result, follow_ups, checked.artifacts)
    return outcome


def _copied(new: JobLike, checked: CheckedJob) -> NewJob:
    options = new.options if isinstance(new, NewJob) else new
    kept: Any = {name: value for name, value in options.items() if name not in {"kind", "payload"}}
    return NewJob(checked.settings.route.kind, strict_json.decode(checked.payload_json), **kept)


def _refused(problem: str) -> Failed:
    return Failed(problem, reason=failures.RESULT_INVALID, permanent=True)


def _reason(error: BaseException) -> str:
    if isinstance(error, HoldfastError):
        return error.code
    words = _WORD.sub("_", type(error).__name__).lower()
    code = re.sub(r"[^a-z0-9_]+", "_", words).strip("_")[: limits.REASON_CHARS_MAX]
    return code or "error"


def _message(error: BaseException) -> str:
    try:
        return str(error) or type(error).__name__
    except BaseException:  # an error that cannot be shown is still one that happened
        return f"a {type(error).__name__} that cannot be shown"


def _trace(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))
    except BaseException:  # as above
        return ""
