"""Events: the immutable log of job transitions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal, NamedTuple, TypeAlias

from holdfast.domain import strict_json
from holdfast.domain.strict_json import Json
from holdfast.domain.validation import datetime_of

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


class Event(NamedTuple):
    """One transition of one job."""

    cursor: str
    """Continue after this event with `events(after=cursor)`. Opaque."""
    name: EventName
    at_ms: int
    job_id: str
    number: int
    """The number of the event among the recorded events of this job, from 1."""
    kind: str
    lane: str
    tenant: str
    tags_json: str
    details_json: str

    @property
    def at(self) -> datetime:
        """When it happened."""
        return datetime_of(self.at_ms)

    @property
    def tags(self) -> dict[str, str]:
        """The job's tags."""
        tags: dict[str, str] = strict_json.decode(self.tags_json)
        return tags

    @property
    def details(self) -> dict[str, Json]:
        """Further values: epoch, attempt, worker, class and reason of the failure, the next due time."""
        details: dict[str, Json] = strict_json.decode(self.details_json)
        return details


@dataclass(frozen=True, slots=True)
class EventPage:
    """Events in order, and the cursor from which to continue, which may be after the last of them."""

    events: tuple[Event, ...]
    cursor: str

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)

    def __len__(self) -> int:
        return len(self.events)
