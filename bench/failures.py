"""What happens when a peer breaks down: it has no figure, the tables say so, and the others go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, TypeVar

from bench.candidates import Candidate, CandidateFailedError

Failures: TypeAlias = dict[str, str]
"""Who has no figure, and why."""

_Found = TypeVar("_Found")


def unless_it_fails(
    candidate: Candidate, what: str, failures: Failures, measure: Callable[[], _Found]
) -> _Found | None:
    """Return what *measure* finds; None, noted in *failures*, where a peer breaks down or did so in an earlier round.

    Holdfast itself must not: its failure ends the run.
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
    """Return how a failure is named."""
    return f"{candidate.label}, {what}"
