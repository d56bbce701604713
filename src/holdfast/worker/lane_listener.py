"""Listening for notifications: a worker subscribes to the lanes it claims from."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from holdfast.storage.notifications import Notifier
from holdfast.worker.events import EventQueue, Notified


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
