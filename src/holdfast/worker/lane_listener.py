"""Listening for notifications: a worker subscribes to the lanes it claims from."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress

from holdfast.storage.notifications import Notifier, lane_topic


class LaneListener:
    """Wakes the worker loop when a lane may have jobs to claim, or sessions if *topic_of* says so."""

    def __init__(self, notifier: Notifier, wake: asyncio.Event, topic_of: Callable[[str], str] = lane_topic) -> None:
        self._notifier = notifier
        self._topic_of = topic_of
        self._loop = asyncio.get_running_loop()
        self._wake = wake
        self._topics: set[str] = set()
        self._notified = False

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
        """Record a notification and wake the worker loop. Safe to call from any thread."""
        if not self._notified:
            self._notified = True
            with suppress(RuntimeError):  # the event loop is closed
                self._loop.call_soon_threadsafe(self._wake.set)

    def take_notified(self) -> bool:
        """Return whether a notification came since the last call."""
        notified, self._notified = self._notified, False
        return notified
