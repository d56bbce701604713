"""The events that the worker loop reads, the queue that carries them from other threads and tasks, and listeners."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from holdfast.storage.notifications import Notifier
from holdfast.worker.attempt import RunningAttempt
from holdfast.worker.timers import Timer


@dataclass(slots=True)
class AttemptDecided:
    """An attempt was decided before its handler ended: it was released, timed out, or its lease is lost."""

    urgent: ClassVar = False
    attempt: RunningAttempt


@dataclass(slots=True)
class TaskNotFound:
    """An isolated process did not find the task of a suspect, which therefore has not run."""

    urgent: ClassVar = False
    attempt: RunningAttempt
    problem: str


@dataclass(slots=True)
class Notified:
    """There may be jobs or sessions to claim."""

    urgent: ClassVar = False
    of: Literal["jobs", "sessions"]


@dataclass(slots=True)
class AffinitiesChanged:
    """An affinity is being loaded, was loaded, or could not be loaded."""

    urgent: ClassVar = False


@dataclass(slots=True)
class StoreRecovered:
    """The store answers again after calls that failed."""

    urgent: ClassVar = True


@dataclass(slots=True)
class ExchangeEnded:
    """The calls that settle and claim have ended."""

    urgent: ClassVar = True


@dataclass(slots=True)
class DrainRequested:
    """The worker claims no more jobs."""

    urgent: ClassVar = True


@dataclass(slots=True)
class StopRequested:
    """The worker stops; a second request skips the grace period, unless it is to be handled only *once*."""

    urgent: ClassVar = True
    once: bool = False


Event: TypeAlias = (
    AttemptDecided
    | TaskNotFound
    | Notified
    | AffinitiesChanged
    | StoreRecovered
    | ExchangeEnded
    | DrainRequested
    | StopRequested
)


class EventQueue:
    """Carries events from any thread to one reader, a coroutine of the event loop that creates the queue.

    Waking an event loop from another thread is costly: events that arrive before the reader runs wake it once, and
    none wakes it while it is not waiting. The most frequent event, the end of a handler, has no object of its own.
    """

    def __init__(self, timer: Timer) -> None:
        self._timer = timer
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._events: deque[Event] = deque()
        self._ended: deque[RunningAttempt] = deque()
        self._has_urgent = False
        self._waits_for: Literal["nothing", "urgent", "any"] = "nothing"
        self._wake = asyncio.Event()

    def put(self, event: Event) -> None:
        """Add an event. Safe to call from any thread."""
        self._events.append(event)
        if event.urgent:
            self._has_urgent = True
        # Read after the event was added: the reader says what it waits for, and then looks for events.
        waits_for = self._waits_for
        if waits_for == "any" or (waits_for == "urgent" and event.urgent):
            self._waits_for = "nothing"
            self._wake_reader()

    def put_ended(self, attempt: RunningAttempt) -> None:
        """Report that the handler of *attempt* has ended, and that its slot is free. Safe to call from any thread."""
        self._ended.append(attempt)
        if self._waits_for == "any":
            self._waits_for = "nothing"
            self._wake_reader()

    def _wake_reader(self) -> None:
        if threading.get_ident() == self._thread:
            self._wake.set()
        else:
            with suppress(RuntimeError):  # the event loop is closed
                self._loop.call_soon_threadsafe(self._wake.set)

    def drain(self) -> Iterator[Event]:
        """Remove and return the events, oldest first, including those that arrive while the caller iterates."""
        self._has_urgent = False
        while self._events:
            yield self._events.popleft()

    def take_ended(self) -> list[RunningAttempt]:
        """Remove and return the attempts whose handlers have ended, in this order."""
        return [self._ended.popleft() for _ in range(len(self._ended))]

    async def wait(self, seconds: float, *, urgent_only: bool = False) -> None:
        """Wait until there is an event, or one that is urgent, at most *seconds*."""
        self._wake.clear()
        self._waits_for = "urgent" if urgent_only else "any"
        try:
            if not (self._has_urgent if urgent_only else self._events or self._ended):
                await self._timer.wait_async(self._wake, seconds)
        finally:
            self._waits_for = "nothing"


class LaneListener:
    """Puts *event* into the queue when a lane may have something to claim; *topic_of* returns a lane's topic."""

    def __init__(
        self, notifier: Notifier, topic_of: Callable[[str], str], events: EventQueue, event: Notified
    ) -> None:
        self._notifier = notifier
        self._topic_of = topic_of
        self._events = events
        self._event = event
        self._topics: set[str] = set()
        self._pending = False

    def listen(self, lanes: Iterable[str]) -> None:
        """Subscribe to *lanes* in addition to the current ones."""
        for topic in {self._topic_of(lane) for lane in lanes} - self._topics:
            self._notifier.add(topic, self)
            self._topics.add(topic)

    def close(self) -> None:
        """Cancel all subscriptions."""
        for topic in self._topics:
            self._notifier.remove(topic, self)
        self._topics.clear()

    def wake(self) -> None:
        """Put the event into the queue, unless it is there. Safe to call from any thread."""
        if not self._pending:
            self._pending = True
            self._events.put(self._event)

    def handled(self) -> None:
        """Put the event into the queue again at the next notification."""
        self._pending = False
