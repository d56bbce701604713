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
    "parked",
    "late",
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
"""The name of a transition."""
TERMINAL: Final[frozenset[EventName]] = frozenset(("done", "failed", "cancelled", "retired"))
ALWAYS: Final = TERMINAL | {"late"}
"""The events that are recorded in every lane."""


@dataclass(frozen=True, slots=True)
class Event:
    """One transition of one job."""

    cursor: str
    """Continue after this event with `events(after=cursor)`. Opaque."""
    name: EventName
    """The name of the transition."""
    at: datetime
    """When it happened."""
    job_id: str
    """The id of the job."""
    number: int
    """The number of the event among the recorded events of this job, from 1."""
    kind: str
    """The job's kind."""
    lane: str
    """The job's lane."""
    tenant: str
    """The job's tenant."""
    tags: dict[str, str] = field(hash=False)
    """The job's tags."""
    details: dict[str, Json] = field(hash=False)
    """Further values: epoch, attempt, worker, class and reason of the failure, the next due time."""


@dataclass(frozen=True, slots=True)
class EventPage:
    """Events in order, and the cursor from which to continue, which may be after the last of them."""

    events: tuple[Event, ...]
    """The events; the page itself can be iterated too."""
    cursor: str
    """Pass it as `after` for the next page."""

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)

    def __len__(self) -> int:
        return len(self.events)
