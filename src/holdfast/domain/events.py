"""Events: the immutable log of job transitions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal, TypeAlias

from holdfast.domain.strict_json import Json

EventName: TypeAlias = Literal[
    "enqueued",
    "replaced",
    "promoted",
    "unblocked",
    "claimed",
    "retrying",
    "deferred",
    "released",
    "expired",
    "taken_back",
    "cancel_requested",
    "reprioritized",
    "requeued",
    "done",
    "failed",
    "cancelled",
    "retired",
]
TERMINAL: Final[frozenset[EventName]] = frozenset(("done", "failed", "cancelled", "retired"))


@dataclass(frozen=True, slots=True)
class Event:
    """One transition of one job."""

    cursor: str
    """Continue after this event with `events(after=cursor)`. Opaque."""
    name: EventName
    at: datetime
    job_id: str
    number: int
    """The number of the event among the recorded events of this job, from 1."""
    kind: str
    lane: str
    tenant: str
    tags: dict[str, str] = field(hash=False)
    """The job's tags."""
    details: dict[str, Json] = field(hash=False)
    """Further values: epoch, attempt, worker, class and reason of the failure, the next due time."""


@dataclass(frozen=True, slots=True)
class EventPage:
    """Events in order, and the cursor from which to continue, which may be after the last of them."""

    events: tuple[Event, ...]
    cursor: str

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)

    def __len__(self) -> int:
        return len(self.events)
