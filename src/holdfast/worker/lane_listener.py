"""Hearing that there may be something to claim: a worker listens to the lanes it takes from."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress

from holdfast.storage.notifications import Notifier, lane_topic


class LaneListener:
    """Wakes the core's loop when a lane may have something to claim: jobs, or by another topic sessions."""

    def __init__(self, notifier: Notifier, wake: asyncio.Event, topic_of: Callable[[str], str] = lane_topic) -> None:
        self._notifier = notifier
        self._topic_of = topic_of
        self._loop = asyncio.get_running_loop()
        self._wake = wake
        self._topics: set[str] = set()
        self._heard = False

    def listen(self, lanes: Iterable[str]) -> None:
        """Hear of *lanes* too, from now on."""
        for topic in {self._topic_of(lane) for lane in lanes} - self._topics:
            self._notifier.add(topic, self)
            self._topics.add(topic)

    def close(self) -> None:
        """Hear of nothing any more."""
        for topic in self._topics:
            self._notifier.remove(topic, self)
        self._topics.clear()

    def wake(self) -> None:
        """Note that a signal came; from any thread."""
        if not self._heard:
            self._heard = True
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._wake.set)

    def take(self) -> bool:
        """Tell whether a signal came since this was last asked."""
        heard, self._heard = self._heard, False
        return heard
