"""The outcomes of attempts whose process died or could not be started."""

from __future__ import annotations

import os
import signal

from holdfast.domain import failures
from holdfast.domain.job import row_of
from holdfast.domain.outcomes import Failed
from holdfast.tasks.context import Context
from holdfast.tasks.policy import Policy


def process_died(status: int | None, policy: Policy, context: Context) -> Failed:
    """Return the failure of an attempt whose process died with the wait status *status*, or None if unknown."""
    # The job may or may not die again; max_attempts limits its retries.
    return _failed(describe_exit(status), failures.PROCESS_DIED, policy, context)


def invalid_message(error: Exception, policy: Policy, context: Context) -> Failed:
    """Return the failure of an attempt whose process sent an invalid message, such as after memory corruption."""
    message = f"its process sent an invalid message and was killed: {error}"
    return _failed(message, failures.PROCESS_DIED, policy, context)


def not_started(problem: str, policy: Policy, context: Context) -> Failed:
    """Return the failure of an attempt for which no process could be started."""
    return _failed(problem, failures.ISOLATION_FAILED, policy, context)


def _failed(message: str, reason: str, policy: Policy, context: Context) -> Failed:
    backoff = policy.backoff if row_of(context.job).backoff_json is None else None
    return Failed(message, reason=reason, backoff=backoff)


def describe_exit(status: int | None) -> str:
    """Return a description of how a process died."""
    if status is None:
        return "its process died, and its exit status is unknown"
    if os.WIFSIGNALED(status):
        return f"its process was killed by {_describe_signal(os.WTERMSIG(status))}"
    return f"its process ended with exit code {os.waitstatus_to_exitcode(status)} before the handler had returned"


def _describe_signal(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        # Real-time signals have no names.
        return f"signal {number}"
    hint = ": by a user or program, or by the kernel (out of memory)" if number == signal.SIGKILL else ""
    return f"signal {number} ({name}){hint}"
