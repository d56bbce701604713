"""The demo's jobs and timing."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from typing import Final, Literal, NamedTuple

from holdfast import NewJob

TENANTS: Final = ("acme", "birch", "cedar")
WORKERS: Final = ("worker 1", "worker 2", "worker 3")

Trouble = Literal["transient", "permanent"]

# The duration for which the times below are chosen.
_NORMAL_SECONDS: Final = 30.0


class Pace(NamedTuple):
    """Times in seconds, derived from the duration of the demo."""

    scale: float
    lease: float
    idle: float
    retry: float
    tick: float
    """The interval at which the store is read and the screen is drawn."""
    hold: float
    """The pause at a change of act."""
    limit: float
    """The time after which the demo fails."""

    @classmethod
    def lasting(cls, seconds: float) -> Pace:
        """Return the pace at which the demo takes about *seconds*."""
        scale = seconds / _NORMAL_SECONDS
        return cls(
            scale=scale,
            lease=max(0.7, min(1.2 * scale, 3.0)),
            idle=max(0.02, 0.08 * scale),
            retry=1.5 * scale,
            tick=max(0.04, min(0.08 * scale, 0.1)),
            hold=1.2 * scale,
            limit=60.0 + 2 * seconds,
        )


class Sort(NamedTuple):
    """A kind of job and its timing."""

    kind: str
    prefix: str
    seconds: float
    seconds_min: float
    steps: int
    phases: tuple[str, ...]
    priority: int = 0


# The highest priority, and long enough to be interrupted in the middle.
CHAT: Final = Sort("chat.answer", "chat", 2.8, 1.0, 8, ("thinking", "replying"), priority=5)
DOCUMENT: Final = Sort("document.extract", "doc", 1.7, 0.2, 5, ("loading", "reading", "storing"))
EMAIL: Final = Sort("email.send", "mail", 0.7, 0.1, 2, ("sending",))
SORTS: Final = (CHAT, DOCUMENT, EMAIL)


class Plan:
    """Creates the jobs of the demo, with short ids."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._tenants: Iterator[str] = cycle(TENANTS)
        self._created: dict[str, int] = {}

    def opening(self) -> list[NewJob]:
        """Return the jobs of the first act; some fail transiently, one permanently."""
        jobs = [self.job(EMAIL, "transient"), self.job(DOCUMENT, "permanent"), self.job(EMAIL, "transient")]
        return jobs + self._mixed(chats=2, documents=4, emails=5)

    def wave(self) -> list[NewJob]:
        """Return the jobs of a later act."""
        return [self.job(EMAIL, "transient"), *self._mixed(chats=3, documents=5, emails=4)]

    def job(self, sort: Sort, trouble: Trouble | None = None) -> NewJob:
        """Return a new job of a sort."""
        number = self._created[sort.prefix] = self._created.get(sort.prefix, 0) + 1
        seconds = max(sort.seconds * self._pace.scale, sort.seconds_min)
        payload = {"seconds": seconds, "steps": sort.steps, "phases": list(sort.phases), "trouble": trouble}
        return NewJob(
            sort.kind,
            payload,
            job_id=f"{sort.prefix}-{number:02}",
            tenant=next(self._tenants),
            priority=sort.priority,
            # On a loaded machine further leases may expire.
            max_attempts=20,
        )

    def _mixed(self, *, chats: int, documents: int, emails: int) -> list[NewJob]:
        sorts = [CHAT] * chats + [DOCUMENT] * documents + [EMAIL] * emails
        # Interleave the kinds in a fixed order.
        return [self.job(sort) for start in range(3) for sort in sorts[start::3]]
