"""Maps the return value or exception of a handler to the outcome of its attempt. Pure functions.

Every outcome is one that settle accepts, so that an invalid result of one job cannot make a batch fail.
"""

import asyncio
import dataclasses
import re
import traceback
from collections.abc import Sequence
from typing import Final

from holdfast.domain import errors, failures, job, limits, new_job
from holdfast.domain.backoff import Backoff
from holdfast.domain.outcomes import Deferred, Done, Failed, Outcome, Released, check_outcome
from holdfast.tasks import arguments, control_flow, json_encode
from holdfast.tasks.handler_state import HandlerState
from holdfast.tasks.policy import Policy

_CONNECTION_ERRORS: Final = (OSError, TimeoutError, errors.Unavailable)
# These OSErrors are about files: the same call would fail again.
_FILE_ERRORS: Final = (FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError, NotADirectoryError)
_WORD_BOUNDARY: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
DONE: Final = Done()
"""The outcome of a handler that returned None and collected nothing."""


def outcome_of(result: object, policy: Policy, state: HandlerState) -> Outcome:
    """Return the outcome of an attempt whose handler returned or raised *result*. Never raises.

    Encoding a value may run its code; an exception from that counts as raised by the handler.
    """
    outcome = _decided(result, policy, state)
    if state.used is None or isinstance(outcome, Released):
        return outcome
    return dataclasses.replace(outcome, usage={**state.used, **(outcome.usage or {})})


def _decided(result: object, policy: Policy, state: HandlerState) -> Outcome:
    try:
        return _outcome_of(result, policy, state)
    except BaseException as error:  # SystemExit and CancelledError too: the attempt must be decided
        try:
            return _outcome_of_error(error, policy, state)
        except BaseException:  # the exception itself cannot be handled
            return _invalid_result("neither the outcome nor the error from encoding it can be encoded")


def _outcome_of(result: object, policy: Policy, state: HandlerState) -> Outcome:
    if result is None and not state.collected:
        return DONE
    if isinstance(result, BaseException):
        return _outcome_of_error(result, policy, state)
    if isinstance(result, Failed | Deferred | Released):
        return _checked(result, state)
    return _done(result if isinstance(result, Done) else Done(result), state)


def _outcome_of_error(error: BaseException, policy: Policy, state: HandlerState) -> Outcome:
    if isinstance(error, control_flow.OutcomeRequest):
        return _requested(error, policy, state)
    if isinstance(error, control_flow.Cancelled | asyncio.CancelledError) and state.stop_reason is not None:
        return _stopped(policy, state)
    if isinstance(error, arguments.PayloadInvalid):
        return Failed(str(error), reason=failures.PAYLOAD_INVALID, permanent=True)
    return Failed(
        _message(error),
        reason=_reason(error),
        permanent=_is_permanent(error, policy),
        backoff=_backoff(policy, state),
        traceback=_trace(error),
    )


def _requested(error: control_flow.OutcomeRequest, policy: Policy, state: HandlerState) -> Outcome:
    trace = None if error.__cause__ is None and error.__context__ is None else _trace(error)
    match error:
        case control_flow.Retry(closes=True):
            return Deferred(after=error.after, closes=True)
        case control_flow.Retry():
            backoff = _backoff(policy, state)
            return Failed(error.message, error.reason, retry_after=error.after, backoff=backoff, traceback=trace)
        case control_flow.Defer():
            return Deferred(after=error.after, until=error.until)
        case control_flow.Fail():
            return Failed(error.message, error.reason, permanent=True, traceback=trace)
        case _:
            return Failed(_message(error), reason=_reason(error), traceback=trace)


def _stopped(policy: Policy, state: HandlerState) -> Outcome:
    """Return the outcome of a handler that stopped on request; if the job was cancelled, the store cancels it."""
    if state.stop_reason == "timeout":
        message = f"the attempt took longer than {policy.timeout_seconds:g} s"
        return Failed(message, reason=failures.TIMEOUT, backoff=_backoff(policy, state))
    return Released()


def _is_permanent(error: BaseException, policy: Policy) -> bool:
    if isinstance(error, policy.permanent_on):
        return True
    if not policy.retry_on or isinstance(error, policy.retry_on):
        return False
    # Connection errors are retried even if retry_on does not list them.
    return isinstance(error, _FILE_ERRORS) or not isinstance(error, _CONNECTION_ERRORS)


def _backoff(policy: Policy, state: HandlerState) -> Backoff | None:
    """Return the task's backoff for a job that was enqueued without one, such as by kind name only."""
    return policy.backoff if job.row_of(state.job).backoff_json is None else None


def _done(done: Done, state: HandlerState) -> Outcome:
    try:
        result = json_encode.encode(done.result)
    except json_encode.InvalidValue as error:
        return _invalid_result(f"result{error.path}: {error.problem}")
    try:
        done = Done(result, _completed(done.follow_ups, state), done.artifacts, done.usage)
    except errors.InvalidInput as error:
        return _invalid_result(str(error))
    return _checked(_with_collected(done, state) if state.collected else done, state)


def _completed(follow_ups: Sequence[new_job.JobLike], state: HandlerState) -> Sequence[new_job.JobLike]:
    """Return *follow_ups* with the options of their kinds' tasks; raise `InvalidInput` if one is invalid."""
    if not follow_ups or not isinstance(follow_ups, list | tuple):
        return follow_ups
    completed = []
    for index, new in enumerate(follow_ups):
        try:
            completed.append(state.complete(new))
        except errors.InvalidInput as error:
            raise errors.InvalidInput(f"follow_ups[{index}].{error.field}", error.problem, error.limit) from None
    return completed


def _with_collected(done: Done, state: HandlerState) -> Done:
    try:
        own_names = {artifact.name for artifact in done.artifacts}
        collected = [artifact for artifact in state.artifacts if artifact.name not in own_names]
        return Done(done.result, (*state.follow_ups, *done.follow_ups), (*collected, *done.artifacts), done.usage)
    except (TypeError, AttributeError):
        # Not artifacts or not a list: the following check reports it.
        return done


def _checked(outcome: Outcome, state: HandlerState) -> Outcome:
    """Return *outcome* if settle would accept it, else a failure with the reason."""
    try:
        checked = check_outcome(outcome, tenant=state.job.tenant, fresh_id=str)
    except errors.InvalidInput as error:
        return _invalid_result(str(error))
    if isinstance(outcome, Done) and checked.follow_ups:
        # Copy the follow-ups, because the handler may still change the originals.
        follow_ups = tuple(map(new_job.copy_job, outcome.follow_ups, checked.follow_ups))
        return Done(outcome.result, follow_ups, tuple(outcome.artifacts), outcome.usage)
    return outcome


def _invalid_result(problem: str) -> Failed:
    return Failed(problem, reason=failures.RESULT_INVALID, permanent=True)


def _reason(error: BaseException) -> str:
    if isinstance(error, errors.HoldfastError):
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
