"""Maps the return value or exception of a handler to the outcome of its attempt. Pure functions.

Every outcome is one that settle accepts, so that an invalid result of one job cannot make a batch fail.
"""

from __future__ import annotations

import asyncio
import re
import traceback
from collections.abc import Sequence
from typing import Final

from holdfast.domain import failures, limits
from holdfast.domain.backoff import Backoff
from holdfast.domain.errors import HoldfastError, InvalidInput, Unavailable
from holdfast.domain.job import row_of
from holdfast.domain.new_job import JobLike, copy_job
from holdfast.domain.outcomes import Deferred, Done, Failed, Outcome, Released, check_outcome
from holdfast.tasks.arguments import PayloadInvalid
from holdfast.tasks.context import Context
from holdfast.tasks.control_flow import Cancelled, Defer, Fail, OutcomeRequest, Retry
from holdfast.tasks.json_encode import InvalidValue, encode
from holdfast.tasks.policy import Policy

_CONNECTION_ERRORS: Final = (OSError, TimeoutError, Unavailable)
# These OSErrors are about files: the same call would fail again.
_FILE_ERRORS: Final = (FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError, NotADirectoryError)
_WORD_BOUNDARY: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_DONE: Final = Done()


def outcome_of(result: object, policy: Policy, context: Context) -> Outcome:
    """Return the outcome of an attempt whose handler returned or raised *result*. Never raises.

    Encoding a value may run its code; an exception from that counts as raised by the handler.
    """
    try:
        return _outcome_of(result, policy, context)
    except BaseException as error:  # SystemExit and CancelledError too: the attempt must be decided
        try:
            return _outcome_of_error(error, policy, context)
        except BaseException:  # the exception itself cannot be handled
            return _invalid_result("neither the outcome nor the error from encoding it can be encoded")


def _outcome_of(result: object, policy: Policy, context: Context) -> Outcome:
    if result is None and not context.collected:
        return _DONE
    if isinstance(result, BaseException):
        return _outcome_of_error(result, policy, context)
    if isinstance(result, Failed | Deferred | Released):
        return _checked(result, context)
    return _done(result if isinstance(result, Done) else Done(result), context)


def _outcome_of_error(error: BaseException, policy: Policy, context: Context) -> Outcome:
    if isinstance(error, OutcomeRequest):
        return _requested(error, policy, context)
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


def _requested(error: OutcomeRequest, policy: Policy, context: Context) -> Outcome:
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
    """Return the outcome of a handler that stopped on request; if the job was cancelled, the store cancels it."""
    if context.stop_reason == "timeout":
        message = f"the attempt took longer than {policy.timeout_seconds:g} s"
        return Failed(message, reason=failures.TIMEOUT, backoff=_backoff(policy, context))
    return Released()


def _is_permanent(error: BaseException, policy: Policy) -> bool:
    if isinstance(error, policy.permanent_on):
        return True
    if not policy.retry_on or isinstance(error, policy.retry_on):
        return False
    # Connection errors are retried even if retry_on does not list them.
    return isinstance(error, _FILE_ERRORS) or not isinstance(error, _CONNECTION_ERRORS)


def _backoff(policy: Policy, context: Context) -> Backoff | None:
    """Return the task's backoff for a job that was enqueued without one, such as by kind name only."""
    return policy.backoff if row_of(context.job).backoff_json is None else None


def _done(done: Done, context: Context) -> Outcome:
    try:
        result = encode(done.result)
    except InvalidValue as error:
        return _invalid_result(f"result{error.path}: {error.problem}")
    try:
        done = Done(result, _completed(done.follow_ups, context), done.artifacts)
    except InvalidInput as error:
        return _invalid_result(str(error))
    return _checked(_with_collected(done, context) if context.collected else done, context)


def _completed(follow_ups: Sequence[JobLike], context: Context) -> Sequence[JobLike]:
    """Return *follow_ups* with the options of their kinds' tasks; raise `InvalidInput` if one is invalid."""
    if not follow_ups or not isinstance(follow_ups, list | tuple):
        return follow_ups
    completed = []
    for index, new in enumerate(follow_ups):
        try:
            completed.append(context.completed(new))
        except InvalidInput as error:
            raise InvalidInput(f"follow_ups[{index}].{error.field}", error.problem) from None
    return completed


def _with_collected(done: Done, context: Context) -> Done:
    try:
        own_names = {artifact.name for artifact in done.artifacts}
        collected = [artifact for artifact in context.artifacts if artifact.name not in own_names]
        return Done(done.result, (*context.follow_ups, *done.follow_ups), (*collected, *done.artifacts))
    except (TypeError, AttributeError):
        # Not artifacts or not a list: the following check reports it.
        return done


def _checked(outcome: Outcome, context: Context) -> Outcome:
    """Return *outcome* if settle would accept it, else a failure with the reason."""
    try:
        checked = check_outcome(outcome, tenant=context.job.tenant, fresh_id=str)
    except InvalidInput as error:
        return _invalid_result(str(error))
    if isinstance(outcome, Done) and checked.follow_ups:
        # Copy the follow-ups, because the handler may still change the originals.
        follow_ups = tuple(map(copy_job, outcome.follow_ups, checked.follow_ups))
        return Done(outcome.result, follow_ups, tuple(outcome.artifacts))
    return outcome


def _invalid_result(problem: str) -> Failed:
    return Failed(problem, reason=failures.RESULT_INVALID, permanent=True)


def _reason(error: BaseException) -> str:
    if isinstance(error, HoldfastError):
        return error.code
    name = _WORD_BOUNDARY.sub("_", type(error).__name__).lower()
    code = re.sub(r"[^a-z0-9_]+", "_", name).strip("_")[: limits.REASON_CHARS_MAX]
    return code or "error"


def _message(error: BaseException) -> str:
    try:
        return str(error) or type(error).__name__
    except BaseException:  # __str__ itself may fail
        return f"a {type(error).__name__} whose message cannot be shown"


def _trace(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))
    except BaseException:  # as above
        return ""
