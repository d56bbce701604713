"""Threads for tests: work in the background that nobody hangs on, and interrupts as Ctrl-C brings them."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

from holdfast import Queue, WorkerInfo
from tests.chaos.processes import PATIENCE_SECONDS

T = TypeVar("T")


def wait_until(come: Callable[[], bool]) -> None:
    """Wait for something that must come."""
    patience, pause = time.monotonic() + PATIENCE_SECONDS, 0.001
    while not come():
        assert time.monotonic() < patience, "what was waited for did not come"
        time.sleep(pause)
        pause = min(pause * 1.5, 0.02)


def registered(queue: Queue) -> WorkerInfo:
    """Return what the store says of the only worker, once that has registered itself."""
    wait_until(lambda: bool(queue.workers()))
    [row] = queue.workers()
    return row


def in_background(work: Callable[..., T], *words: Any) -> Future[T]:
    """Do *work* in a thread that nobody waits for at the end, and return its answer to be."""
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(work(*words))
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return answer


@contextmanager
def interruptible() -> Iterator[Callable[[], None]]:
    """Give a way to interrupt the main thread as Ctrl-C does."""

    def stop(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, stop)
    try:
        yield lambda: os.kill(os.getpid(), signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
