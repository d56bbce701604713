"""Notifications across processes: one thread listens to the server while this process has listeners.

Notifications may be lost while the connection is down. So all listeners are woken whenever LISTEN takes effect again,
and every wait also polls slowly.
"""

import os
import selectors
import threading
import time
import weakref
from typing import Any

import psycopg
from psycopg.pq.abc import PGconn

from holdfast.domain.backoff import RetryPolicy
from holdfast.storage import randomness
from holdfast.storage.notifications import Listener, Notifier
from holdfast.storage.postgres import commits
from holdfast.storage.postgres.connection import with_defaults

_LINGER_SECONDS = 2.0
_RECONNECTS = RetryPolicy(first=0.1, last=5.0)


class ServerNotifier(Notifier):
    """The listeners of each topic, notified by this process and by the server."""

    def __init__(self, url: str, channel: str) -> None:
        super().__init__()
        self._conninfo = with_defaults(url)
        self._channel = channel
        self._guard = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, topic: str, listener: Listener) -> None:
        """Notify *listener* of *topic* from now on; it is woken once if LISTEN has yet to take effect."""
        super().add(topic, listener)
        with self._guard:
            if self._thread is None:
                self._thread = threading.Thread(target=self._listen, name="holdfast-listen", daemon=True)
                self._thread.start()

    def _listen(self) -> None:
        failures = 0
        while not self._has_no_listeners():
            try:
                with psycopg.connect(self._conninfo, autocommit=True) as connection:
                    connection.execute(f"listen {self._channel}".encode(), prepare=False)
                    self.publish(self.topics())
                    failures = 0
                    self._serve(connection)
            except psycopg.Error:
                self.publish(self.topics())
                failures += 1
                time.sleep(_RECONNECTS.pause_seconds(failures, randomness.RANDOM.random()))

    def _serve(self, connection: psycopg.Connection[Any]) -> None:
        """Wake the listeners that notifications concern, until none has listened for a while."""
        # Not by `connection.notifies`, which wakes ten times a second.
        pgconn: PGconn = connection.pgconn
        idle_since: float | None = None
        with selectors.DefaultSelector() as selector:
            selector.register(pgconn.socket, selectors.EVENT_READ)
            while idle_since is None or time.monotonic() - idle_since < _LINGER_SECONDS:
                if selector.select(_LINGER_SECONDS):
                    pgconn.consume_input()
                    while (notification := pgconn.notifies()) is not None:
                        self._publish_payload(notification.extra.decode())
                idle_since = None if self.topics() else idle_since or time.monotonic()

    def _publish_payload(self, payload: str) -> None:
        topics = self.topics()
        if payload != "*":
            digests = {payload[at : at + commits.DIGEST_CHARS] for at in range(0, len(payload), commits.DIGEST_CHARS)}
            topics = {topic for topic in topics if commits.digest(topic) in digests}
        self.publish(topics)

    def _has_no_listeners(self) -> bool:
        """Return whether there are no listeners, so that the thread ends; the next listener starts another."""
        with self._guard:
            if self.topics():
                return False
            self._thread = None
            return True


# --- one notifier for each schema of a server ----------------------------------------------------------------------

_notifiers: weakref.WeakValueDictionary[tuple[str, str], ServerNotifier] = weakref.WeakValueDictionary()
_notifiers_lock = threading.Lock()


def notifier_for(url: str, channel: str) -> ServerNotifier:
    """Return the notifier of a schema, shared by all queues of this process that are open on it."""
    with _notifiers_lock:
        return _notifiers.setdefault((url, channel), ServerNotifier(url, channel))


def _reset_notifiers() -> None:
    """Start over in a forked child: the parent's threads do not exist there."""
    global _notifiers, _notifiers_lock
    _notifiers, _notifiers_lock = weakref.WeakValueDictionary(), threading.Lock()


os.register_at_fork(after_in_child=_reset_notifiers)
