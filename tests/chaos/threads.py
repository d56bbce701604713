"""Threads for tests: background work that never blocks the end of a test, and interrupts like Ctrl-C."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

from holdfast import Queue
from holdfast.types import WorkerInfo
from tests.chaos.processes import PATIENCE_SECONDS

T = TypeVar("T")


def wait_until(come: Callable[[], bool]) -> None:
    """Wait until a condition is true."""
    patience, pause = time.monotonic() + PATIENCE_SECONDS, 0.001
    while not come():
        assert time.monotonic() < patience, "the condition did not become true"
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)


def registered(queue: Queue) -> WorkerInfo:
    """Return the only worker after it has registered."""
    wait_until(lambda: bool(queue.admin.workers()))
    [row] = queue.admin.workers()
    return row


def in_background(work: Callable[..., T], *arguments: Any) -> Future[T]:
    """Call *work* in a daemon thread and return a future of its result."""
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(work(*arguments))
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return answer


@contextmanager
def interruptible() -> Iterator[Callable[[], None]]:
    """Yield a function that interrupts the main thread as Ctrl-C does."""

    def stop(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, stop)
    try:
        yield lambda: os.kill(os.getpid(), signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
