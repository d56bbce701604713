"""Failures: why an attempt, and perhaps its job, did not succeed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

FailureClass: TypeAlias = Literal["transient", "permanent"]
"""Transient: the same work may succeed later. Permanent: it will not."""

# Reasons used by Holdfast itself; handlers choose their own.
LEASE_EXPIRED: Final = "lease_expired"
WORKER_CUT_OFF: Final = "worker_cut_off"
DEADLINE_PASSED: Final = "deadline_passed"
DEPENDENCY_FAILED: Final = "dependency_failed"
CALLBACK_REFUSED: Final = "callback_refused"
DEFERRED_TOO_LONG: Final = "deferred_too_long"
RELEASED_TOO_OFTEN: Final = "released_too_often"
PAYLOAD_INVALID: Final = "payload_invalid"
RESULT_INVALID: Final = "result_invalid"
TIMEOUT: Final = "timeout"
PROCESS_DIED: Final = "process_died"
OUT_OF_MEMORY: Final = "out_of_memory"
ISOLATION_FAILED: Final = "isolation_failed"
LOAD_FAILED: Final = "load_failed"


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure's class, its short reason code, a human-readable message and, if there is one, the traceback."""

    failure_class: FailureClass
    """`transient` if the same work may succeed later, else `permanent`."""
    reason: str
    """A short code, such as `timeout`, or one chosen by the handler."""
    message: str
    """The message for people."""
    traceback: str | None = None
    """The traceback of the handler's exception."""
