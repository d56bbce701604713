"""The text that handlers of a worker emit, as the worker writes it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.domain.claims import Claim
from holdfast.domain.outcomes import Done
from holdfast.tasks.output_buffer import OutputBuffer
from holdfast.worker.attempt import RunningAttempt, failure_from_refusal


def emitted(attempts: Iterable[RunningAttempt]) -> list[tuple[Claim, OutputBuffer]]:
    """Return the buffers of attempts that have emitted text. It belongs to the first entry of a turn."""
    return [(attempt.claim, attempt.output) for attempt in attempts if attempt.output is not None]


def fail_refused(attempts: Sequence[RunningAttempt]) -> None:
    """Fail attempts whose text the store has refused: a part of their output is lost, so they are not done."""
    for attempt in attempts:
        refusal = None if attempt.output is None else attempt.output.refused
        if refusal is not None and isinstance(attempt.outcome, Done):
            attempt.amend(failure_from_refusal(refusal))
