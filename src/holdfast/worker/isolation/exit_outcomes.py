"""What a process that died makes of the attempt it was running."""

from __future__ import annotations

import os
import signal

from holdfast.domain import failures
from holdfast.domain.outcomes import Failed
from holdfast.tasks.context import Context
from holdfast.tasks.policy import Policy


def failed_by(status: int | None, policy: Policy, context: Context) -> Failed:
    """Return the failure of an attempt whose process died with *status*, as the kernel gave it; none if not known."""
    # Nothing tells whether it would die again, so that the attempts are the bound.
    return _failed(told(status), failures.PROCESS_DIED, policy, context)


def garbled(error: Exception, policy: Policy, context: Context) -> Failed:
    """Return the failure of an attempt whose process said what nobody understands, as one with damaged memory may."""
    message = f"its process said what the worker does not understand, and was killed: {error}"
    return _failed(message, failures.PROCESS_DIED, policy, context)


def not_started(problem: str, policy: Policy, context: Context) -> Failed:
    """Return the failure of an attempt for which there was no process."""
    return _failed(problem, failures.ISOLATION_FAILED, policy, context)


def _failed(message: str, reason: str, policy: Policy, context: Context) -> Failed:
    backoff = policy.backoff if context.job.backoff_json is None else None
    return Failed(message, reason=reason, backoff=backoff)


def told(status: int | None) -> str:
    """Say how a process died."""
    if status is None:
        return "its process is gone, nobody knows how"
    if os.WIFSIGNALED(status):
        return f"its process was killed by {_signal_told(os.WTERMSIG(status))}"
    return f"its process ended with exit code {os.waitstatus_to_exitcode(status)} before the handler had returned"


def _signal_told(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        # The real-time signals have numbers only.
        return f"signal {number}"
    hint = ": by somebody, or by the kernel for want of memory" if number == signal.SIGKILL else ""
    return f"signal {number} ({name}){hint}"
