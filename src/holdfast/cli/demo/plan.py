"""The demo's script of work: which jobs are enqueued in which act, and at what pace everything runs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from typing import Final, Literal, NamedTuple

from holdfast import NewJob

TENANTS: Final = ("acme", "birch", "cedar")
WORKERS: Final = ("worker 1", "worker 2", "worker 3")

Trouble = Literal["transient", "permanent"]

# The length that all times below are made for.
_NORMAL_SECONDS: Final = 30.0


class Pace(NamedTuple):
    """Times in seconds, all derived from how long the demo is to take."""

    scale: float
    lease: float
    idle: float
    retry: float
    tick: float
    """How often the story looks at the store and the picture is drawn."""
    hold: float
    """How long a change of act is left to be seen."""
    limit: float
    """After this the demo gives up: something is wrong."""

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
    """A kind of job and how it runs."""

    kind: str
    prefix: str
    seconds: float
    seconds_min: float
    steps: int
    phases: tuple[str, ...]
    priority: int = 0


# Somebody waits for an answer, so it goes first; it is also long enough to be caught in the middle.
CHAT: Final = Sort("chat.answer", "chat", 2.8, 1.0, 8, ("thinking", "replying"), priority=5)
DOCUMENT: Final = Sort("document.extract", "doc", 1.7, 0.2, 5, ("loading", "reading", "storing"))
EMAIL: Final = Sort("email.send", "mail", 0.7, 0.1, 2, ("sending",))


class Plan:
    """Makes the jobs of the demo, each with an id that people can say."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._tenants: Iterator[str] = cycle(TENANTS)
        self._made: dict[str, int] = {}

    def opening(self) -> list[NewJob]:
        """Return the jobs of the first act: some fail for a while, one for good."""
        jobs = [self.job(EMAIL, "transient"), self.job(DOCUMENT, "permanent"), self.job(EMAIL, "transient")]
        return jobs + self._mixed(chats=2, documents=4, emails=5)

    def wave(self) -> list[NewJob]:
        """Return the jobs that arrive with a later act."""
        return [self.job(EMAIL, "transient"), *self._mixed(chats=3, documents=5, emails=4)]

    def job(self, sort: Sort, trouble: Trouble | None = None) -> NewJob:
        """Return one more job of a sort."""
        number = self._made[sort.prefix] = self._made.get(sort.prefix, 0) + 1
        seconds = max(sort.seconds * self._pace.scale, sort.seconds_min)
        payload = {"seconds": seconds, "steps": sort.steps, "phases": list(sort.phases), "trouble": trouble}
        return NewJob(
            sort.kind,
            payload,
            job_id=f"{sort.prefix}-{number:02}",
            tenant=next(self._tenants),
            priority=sort.priority,
            # A machine under load may lose leases that nobody planned to lose.
            max_attempts=20,
        )

    def _mixed(self, *, chats: int, documents: int, emails: int) -> list[NewJob]:
        sorts = [CHAT] * chats + [DOCUMENT] * documents + [EMAIL] * emails
        # Every third first, so that the kinds are mingled and no chance is needed.
        return [self.job(sort) for start in range(3) for sort in sorts[start::3]]
