"""Watching attempts: what a worker tells those who measure or trace it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from holdfast.domain.claim import Claim
from holdfast.domain.job import Job


class Watch(Protocol):
    """Told of every attempt in a worker's hands. Each call is short, never blocks and never raises."""

    def claimed(self, claims: Sequence[Claim]) -> None:
        """Take note that these jobs were claimed; told in the worker's loop."""
        ...

    def running(self, claim: Claim) -> AbstractContextManager[object]:
        """Return a block in which the handler runs, entered and left in its own thread or task."""
        ...

    def ended(self, claim: Claim, outcome: str, job: Job | None, seconds: float | None) -> None:
        """Take note of how an attempt ended; told in the worker's loop.

        *job* is what its settlement left behind, if the worker was told, *seconds* how long its handler ran, if it did.
        """
        ...
