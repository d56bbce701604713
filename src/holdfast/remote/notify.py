"""Notifications over HTTP: one thread follows a stream of the server while this process has listeners.

Notifications may be lost while there is no stream. So all listeners are woken whenever one begins or ends, and
workers look more often while there is none.
"""

import asyncio
import contextlib
import json
import logging
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Final

import httpx2

from holdfast.domain import backoff, errors
from holdfast.remote import connection
from holdfast.storage import notifications, randomness

log = logging.getLogger("holdfast")

# How often a worker looks itself while a stream brings notifications.
_CONNECTED_POLL_SECONDS: Final = 10.0
# The server sends a comment every 15 seconds.
_SILENCE_SECONDS: Final = 45.0
_CONNECT_SECONDS: Final = 5.0
_RECONNECTS: Final = backoff.RetryPolicy(first=0.1, last=5.0)
# The server accepts no more parameters.
_PARAMETERS_MAX: Final = 100

# The parameter of the request for each prefix of a topic, and the topics that each member of an event names.
_PARAMETERS: Final = {"lane": "lane", "sessions": "session_lane", "worker": "worker", "request": "worker"}
_MEMBERS: Final[Mapping[str, Callable[[str], str]]] = {
    "lanes": notifications.lane_topic,
    "session_lanes": notifications.sessions_topic,
    "cancellations": notifications.worker_topic,
    "requests": notifications.worker_request_topic,
}

NewClient = Callable[[], httpx2.AsyncClient]


class HttpNotifier(notifications.Notifier):
    """The listeners of each topic, notified by the server."""

    def __init__(self, new_client: NewClient) -> None:
        super().__init__()
        self._new_client = new_client
        self._guard = threading.Lock()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed: asyncio.Event | None = None
        self._connected = False

    @property
    def poll_seconds(self) -> float:
        """How often a worker looks itself: often while there is no stream."""
        return _CONNECTED_POLL_SECONDS if self._connected else notifications.POLL_SECONDS

    def add(self, topic: str, listener: notifications.Listener) -> None:
        """Notify *listener* of *topic* from now on; it is woken once the stream has the topic."""
        known = topic in self.listeners
        super().add(topic, listener)
        with self._guard:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="holdfast-notifications", daemon=True)
                self._thread.start()
            elif not known:
                self._restart()

    def remove(self, topic: str, listener: notifications.Listener) -> None:
        """Stop notifying *listener* of *topic*."""
        super().remove(topic, listener)
        if not self.listeners:
            with self._guard:
                self._restart()

    def _restart(self) -> None:
        """Make the thread begin another stream, or end."""
        if self._loop is not None and self._changed is not None:
            with contextlib.suppress(RuntimeError):  # the event loop is closed
                self._loop.call_soon_threadsafe(self._changed.set)

    def _run(self) -> None:
        try:
            asyncio.run(self._follow_until_idle())
        except errors.HoldfastError as error:
            # Such as certificates that cannot be read: every call of the queue raises it too.
            log.warning("notifications of the server cannot be followed: %s", error)
            with self._guard:
                self._thread = self._loop = self._changed = None

    async def _follow_until_idle(self) -> None:
        changed = asyncio.Event()
        with self._guard:
            self._loop, self._changed = asyncio.get_running_loop(), changed
        failures = 0
        async with self._new_client() as client:
            while topics := self._topics_or_end(changed):
                answered = asyncio.Event()
                following = asyncio.create_task(self._follow(client, topics, answered))
                restarting = asyncio.create_task(_each(answered, changed))
                await asyncio.wait({following, restarting}, return_when=asyncio.FIRST_COMPLETED)
                for task in (following, restarting):
                    task.cancel()
                [ended, _] = await asyncio.gather(following, restarting, return_exceptions=True)
                failures = 0 if self._connected else failures + 1
                self._connected = False
                if not changed.is_set():
                    log.info("notifications of the server ended: %s", str(ended) or type(ended).__name__)
                    self.publish(topics)
                    pause = _RECONNECTS.pause_seconds(failures, randomness.RANDOM.random())
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(changed.wait(), pause)

    def _topics_or_end(self, changed: asyncio.Event) -> set[str]:
        """Return the topics; if there are none, the thread ends, and the next listener starts another."""
        with self._guard:
            changed.clear()
            topics = self.topics()
            if not topics:
                self._thread = self._loop = self._changed = None
            return topics

    async def _follow(self, client: httpx2.AsyncClient, topics: set[str], answered: asyncio.Event) -> None:
        """Wake the listeners of *topics* that the server names, until the stream ends."""
        pairs = {(_PARAMETERS[prefix], name) for prefix, _, name in (topic.partition(":") for topic in topics)}
        if len(pairs) > _PARAMETERS_MAX:
            raise ValueError(f"more than {_PARAMETERS_MAX} lanes and workers cannot be followed")
        request = client.build_request(
            "GET",
            connection.path("notifications"),
            params=sorted(pairs),
            headers={"Accept": "text/event-stream"},
            timeout=httpx2.Timeout(_SILENCE_SECONDS, connect=_CONNECT_SECONDS),
        )
        response = await client.send(request, stream=True)
        answered.set()
        try:
            if response.status_code != 200:
                raise ValueError(f"the server answers with status {response.status_code}")
            async for event in httpx2.EventSource(response):
                self._handle(event.event, json.loads(event.data or "{}"), topics)
        finally:
            await response.aclose()

    def _handle(self, name: str, data: Mapping[str, Any], topics: set[str]) -> None:
        if name == "listening":
            self._connected = True
            self.publish(topics)
        elif name == "notified":
            self.publish([topic_of(one) for member, topic_of in _MEMBERS.items() for one in data[member]])


async def _each(*events: asyncio.Event) -> None:
    """Wait for all events, first for an answer: a client cancelled in a TLS handshake leaves its socket open."""
    for event in events:
        await event.wait()


# --- one notifier for each server and token ------------------------------------------------------------------------

_notifiers: weakref.WeakValueDictionary[tuple[str, str | None], HttpNotifier] = weakref.WeakValueDictionary()
_notifiers_lock = threading.Lock()


def notifier_for(url: str, token: str | None, new_client: NewClient) -> HttpNotifier:
    """Return the notifier of a server, shared by all queues of this process that are connected to it."""
    with _notifiers_lock:
        return _notifiers.setdefault((url, token), HttpNotifier(new_client))


def _reset_notifiers() -> None:
    """Start over in a forked child: the parent's threads do not exist there."""
    global _notifiers, _notifiers_lock
    _notifiers, _notifiers_lock = weakref.WeakValueDictionary(), threading.Lock()


os.register_at_fork(after_in_child=_reset_notifiers)
