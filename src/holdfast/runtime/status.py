"""How a worker is doing, for those who watch it."""

from __future__ import annotations

from typing import NamedTuple


class RunningJob(NamedTuple):
    """One job in a worker's hands."""

    job_id: str
    kind: str
    attempt: int
    seconds: float | None
    """For how long its handler has run; none while it waits for a slot."""


class WorkerStatus(NamedTuple):
    """What a worker has done and is doing."""

    worker: str
    running: tuple[RunningJob, ...]
    ended: dict[str, int]
    """How many attempts ended, by outcome: `done`, `failed`, `deferred`, `released`, `lost`."""
    stopping: bool
    abandoned: int = 0
    """Handlers that run on without a slot, though they were told to stop."""
    loaded: tuple[str, ...] = ()
    """The affinities it has at hand."""
    switches: int = 0
    """How often one of them had to make room for another."""
    loading: tuple[str, ...] = ()
    """Those on their way in."""
