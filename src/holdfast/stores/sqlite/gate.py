"""One at a time, in the order of asking, for threads and tasks alike."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from concurrent.futures import Future


class Gate:
    """A lock handed over in the order of asking. Tasks that wait for it occupy no thread and block no event loop."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._held = False
        self._waiting: deque[Future[None]] = deque()

    def acquire(self) -> None:
        """Wait for the gate in this thread."""
        turn = self._ask()
        if turn is None:
            return
        try:
            turn.result()
        except BaseException:
            self._give_up(turn)
            raise

    async def acquire_async(self) -> None:
        """Wait for the gate without blocking the event loop."""
        turn = self._ask()
        if turn is None:
            return
        try:
            await asyncio.wrap_future(turn)
        except BaseException:
            self._give_up(turn)
            raise

    def release(self) -> None:
        """Hand the gate to whoever has waited longest."""
        with self._mutex:
            while self._waiting:
                turn = self._waiting.popleft()
                if turn.set_running_or_notify_cancel():
                    break
            else:
                self._held = False
                return
        turn.set_result(None)

    def _ask(self) -> Future[None] | None:
        with self._mutex:
            if not self._held:
                self._held = True
                return None
            turn: Future[None] = Future()
            self._waiting.append(turn)
            return turn

    def _give_up(self, turn: Future[None]) -> None:
        # Cancelling fails if the gate was handed over in this very moment; then it is ours to hand on.
        if not turn.cancel():
            self.release()
