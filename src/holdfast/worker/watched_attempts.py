"""Attempts under watch: told of, and run inside the blocks of those who ask for it. Others never come here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any, TypeAlias

from holdfast.client.middleware import Watch
from holdfast.domain.claims import Claim
from holdfast.worker.attempt import RunningAttempt
from holdfast.worker.status import WorkerStatus

Enclose: TypeAlias = Callable[[Claim], AbstractContextManager[object]]


class WorkerMetrics(Watch):
    """What measures one worker."""

    def start(self, concurrency: int, status: Callable[[], WorkerStatus]) -> None:
        """Begin to measure a worker with so many slots; *status* tells how it is doing."""

    def stop(self) -> None:
        """Take note that the worker has ended."""


def watch_attempts(watches: Sequence[Watch], attempts: Sequence[RunningAttempt]) -> None:
    """Tell of attempts that were claimed, and let their handlers run inside the watches' blocks."""
    claims = [attempt.claim for attempt in attempts]
    for watch in watches:
        watch.claimed(claims)
    enclosing = [watch.running for watch in watches if watch.running is not None]
    if enclosing:
        for attempt in attempts:
            enclose = _enclosed_async if attempt.task.is_async else _enclosed
            attempt.function = enclose(attempt.function, attempt.claim, enclosing)


def _enclosed(function: Callable[..., Any], claim: Claim, enclosing: Sequence[Enclose]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        with ExitStack() as stack:
            for enclose in enclosing:
                stack.enter_context(enclose(claim))
            return function(*args, **kwargs)

    return run


def _enclosed_async(function: Callable[..., Any], claim: Claim, enclosing: Sequence[Enclose]) -> Callable[..., Any]:
    async def run(*args: Any, **kwargs: Any) -> Any:
        with ExitStack() as stack:
            for enclose in enclosing:
                stack.enter_context(enclose(claim))
            return await function(*args, **kwargs)

    return run
