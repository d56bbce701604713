"""Waking within one process: whoever listens to a topic hears of every signal on it that was committed."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterable
from typing import Protocol


class Listener(Protocol):
    """Somebody to be woken. `wake` may be called from any thread."""

    def wake(self) -> None:
        """Note that a signal came."""
        ...


class Notifier:
    """Who listens to what. One hub serves all queues that are open on one store in this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: dict[str, set[Listener]] = {}

    def add(self, topic: str, listener: Listener) -> None:
        """Let *listener* hear of *topic* from now on."""
        with self._lock:
            self._listeners.setdefault(topic, set()).add(listener)

    def remove(self, topic: str, listener: Listener) -> None:
        """Let *listener* hear no more of *topic*."""
        with self._lock:
            others = self._listeners.get(topic, set())
            others.discard(listener)
            if not others:
                self._listeners.pop(topic, None)

    def topics(self) -> set[str]:
        """Return what anybody listens to now."""
        with self._lock:
            return set(self._listeners)

    def refresh(self) -> None:
        """Look again for what signals of other processes come through; a store in memory has no such thing."""

    def publish(self, topics: Iterable[str]) -> None:
        """Wake everybody who listens to one of *topics*."""
        with self._lock:
            woken = [listener for topic in topics for listener in self._listeners.get(topic, ())]
        for listener in woken:
            listener.wake()


class SyncListener:
    """Waits in its thread."""

    def __init__(self) -> None:
        # Not an Event, on whose own lock every waker would hang if an interrupt struck as it is let go of.
        self._quiet = threading.Lock()
        self._quiet.acquire()

    def wake(self) -> None:
        """Note that a signal came."""
        # Others may wake it in the same moment, or its own wait take the signal.
        with contextlib.suppress(RuntimeError):
            self._quiet.release()

    async def wait(self, seconds: float) -> float:
        """Wait for a signal, *seconds* at most, and return the seconds that went by. It blocks, never suspends."""
        started = time.monotonic()
        self._quiet.acquire(timeout=min(seconds, threading.TIMEOUT_MAX))
        return time.monotonic() - started


class AsyncListener:
    """Waits in its event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._signalled = asyncio.Event()

    def wake(self) -> None:
        """Note that a signal came."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._signalled.set)

    async def wait(self, seconds: float) -> float:
        """Wait for a signal, *seconds* at most, and return the seconds that went by."""
        started = time.monotonic()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._signalled.wait(), seconds)
        self._signalled.clear()
        return time.monotonic() - started


def job_topic(job_id: str) -> str:
    """Return the topic signalled when the job has finished."""
    return f"job:{job_id}"


def lane_topic(lane: str) -> str:
    """Return the topic signalled when the lane may have something to claim."""
    return f"lane:{lane}"


def sessions_topic(lane: str) -> str:
    """Return the topic signalled when a session may have something to claim in the lane."""
    return f"sessions:{lane}"


def session_topic(tenant: str, session: str) -> str:
    """Return the topic signalled when this session may have something to claim."""
    return f"session:{tenant}/{session}"


def worker_topic(worker: str) -> str:
    """Return the topic signalled when somebody asks for a job that the worker holds to be cancelled."""
    return f"worker:{worker}"
