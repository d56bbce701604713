"""Notifications within one process: listeners of a topic are woken by every committed notification on it."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterable
from typing import Final, Protocol

POLL_SECONDS: Final = 1.0


class Listener(Protocol):
    """An object that can be woken. `wake` may be called from any thread."""

    def wake(self) -> None:
        """Record that a notification arrived."""
        ...


class Notifier:
    """The listeners of each topic. One notifier serves all queues that are open on one store in this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.listeners: dict[str, set[Listener]] = {}
        """The listeners of each topic that has any."""

    @property
    def poll_seconds(self) -> float:
        """How often a worker looks itself, in case a notification was lost."""
        return POLL_SECONDS

    def add(self, topic: str, listener: Listener) -> None:
        """Notify *listener* of *topic* from now on."""
        with self._lock:
            self.listeners.setdefault(topic, set()).add(listener)

    def remove(self, topic: str, listener: Listener) -> None:
        """Stop notifying *listener* of *topic*."""
        with self._lock:
            others = self.listeners.get(topic, set())
            others.discard(listener)
            if not others:
                self.listeners.pop(topic, None)

    def topics(self) -> set[str]:
        """Return the topics that have listeners."""
        with self._lock:
            return set(self.listeners)

    def refresh(self) -> None:
        """Retry to watch for notifications of other processes; a store in memory has none."""

    def publish(self, topics: Iterable[str]) -> None:
        """Wake all listeners of *topics*."""
        with self._lock:
            # Of hundreds of jobs that are settled together, few have listeners.
            woken = [listener for topic in self.listeners.keys() & topics for listener in self.listeners[topic]]
        for listener in woken:
            listener.wake()


class SyncListener:
    """A listener whose caller blocks in its thread."""

    def __init__(self) -> None:
        # Not an Event: if an interrupt arrives while its internal lock is released, all callers of `wake` would hang.
        self._quiet = threading.Lock()
        self._quiet.acquire()

    def wake(self) -> None:
        """Record that a notification arrived."""
        # Another thread may wake it at the same time, or its own wait may have taken the lock.
        with contextlib.suppress(RuntimeError):
            self._quiet.release()

    def wait(self, seconds: float) -> float:
        """Block until a notification arrives, at most *seconds*; return the seconds that passed."""
        started = time.monotonic()
        self._quiet.acquire(timeout=min(seconds, threading.TIMEOUT_MAX))
        return time.monotonic() - started


class AsyncListener:
    """A listener whose caller awaits in its event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._signalled = asyncio.Event()

    def wake(self) -> None:
        """Record that a notification arrived."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._signalled.set)

    async def wait(self, seconds: float) -> float:
        """Wait until a notification arrives, at most *seconds*; return the seconds that passed."""
        started = time.monotonic()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._signalled.wait(), seconds)
        self._signalled.clear()
        return time.monotonic() - started


JOB_TOPIC: Final = "job:"
LANE_TOPIC: Final = "lane:"
WORKER_TOPIC: Final = "worker:"
"""Prefixes of topics."""


def job_topic(job_id: str) -> str:
    """Return the topic notified when the job has finished."""
    return JOB_TOPIC + job_id


def output_topic(job_id: str) -> str:
    """Return the topic notified when the output of the job has grown."""
    return f"output:{job_id}"


def lane_topic(lane: str) -> str:
    """Return the topic notified when the lane may have claimable jobs."""
    return LANE_TOPIC + lane


def sessions_topic(lane: str) -> str:
    """Return the topic notified when a session may have claimable entries in the lane."""
    return f"sessions:{lane}"


def session_topic(tenant: str, session: str) -> str:
    """Return the topic notified when this session may have claimable entries."""
    return f"session:{tenant}/{session}"


def group_topic(tenant: str, group: str) -> str:
    """Return the topic notified when the last member of this group was counted."""
    return f"group:{tenant}/{group}"


def worker_topic(worker: str) -> str:
    """Return the topic notified when a job that the worker holds is to be cancelled."""
    return WORKER_TOPIC + worker


def worker_request_topic(worker: str) -> str:
    """Return the topic notified when the worker is requested to drain or stop."""
    return f"request:{worker}"
