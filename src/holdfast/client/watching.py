"""Watching attempts: what a worker tells those who measure or trace it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from holdfast.domain.claim import Claim
from holdfast.domain.job import Job


class Watch:
    """Told of every attempt in a worker's hands, in the worker's loop. Each call is short and never raises."""

    running: Callable[[Claim], AbstractContextManager[object]] | None = None
    """Returns a block in which a handler runs, entered and left in its own thread or task; none where not needed."""

    def claimed(self, claims: Sequence[Claim]) -> None:
        """Take note that these jobs were claimed."""

    def ended(self, claim: Claim, outcome: str, job: Job | None, seconds: float | None) -> None:
        """Take note of how an attempt ended.

        *job* is what its settlement left behind, if the worker was told; *seconds* is how long its handler ran, if it
        did.
        """
