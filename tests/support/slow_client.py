"""A client of PostgreSQL whose transactions stop before their commit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

import pytest

import holdfast
from holdfast.client.connect import queue_on
from holdfast.domain.clock import Clock
from holdfast.storage.postgres.store import PostgresStore
from tests.chaos.processes import PATIENCE_SECONDS
from tests.chaos.threads import in_background

T = TypeVar("T")


class Slow:
    """A client whose calls stop before their commit until they are released."""

    def __init__(self, url: str, schema: str, clock: Clock | None = None) -> None:
        self.queue = queue_on(PostgresStore(url, schema=schema, clock=clock, observe=self._observe))
        self._stopped, self._go_on = threading.Event(), threading.Event()

    def _observe(self, name: str) -> None:
        if name == "commit":
            self._stopped.set()
            assert self._go_on.wait(PATIENCE_SECONDS)

    def begin(self, call: Callable[[holdfast.Queue], T]) -> Future[T]:
        """Make *call* in another thread, and return as soon as it is about to commit."""
        answer = in_background(lambda: call(self.queue))
        assert self._stopped.wait(PATIENCE_SECONDS), answer.exception(0)
        return answer

    def go_on(self) -> None:
        self._go_on.set()

    def during(self, call: Callable[[holdfast.Queue], object], concurrent: Callable[[], T]) -> T:
        """Make *call*; before it commits start *concurrent*, which must wait for it, and return its result."""
        first = self.begin(call)
        second = in_background(concurrent)
        with pytest.raises(TimeoutError):
            second.result(0.3)
        self.go_on()
        first.result(PATIENCE_SECONDS)
        return second.result(PATIENCE_SECONDS)
