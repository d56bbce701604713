"""Failures of peers: the tables show the reason instead of a figure, and the run continues."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, TypeVar

from bench.candidates import Candidate, CandidateFailedError

Failures: TypeAlias = dict[str, str]
"""Reasons by candidate without a figure."""

_Found = TypeVar("_Found")


def measure_or_record_failure(
    candidate: Candidate, what: str, failures: Failures, measure: Callable[[], _Found]
) -> _Found | None:
    """Return the result of *measure*. If the peer fails, now or in an earlier round, record it and return None.

    A failure of Holdfast ends the run.
    """
    if name_of(candidate, what) in failures:
        return None
    try:
        return measure()
    except CandidateFailedError as error:
        if candidate.name == "holdfast":
            raise
        failures[name_of(candidate, what)] = str(error)
        return None


def name_of(candidate: Candidate, what: str) -> str:
    """Return the key of a failure."""
    return f"{candidate.label}, {what}"
