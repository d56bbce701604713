"""Middleware around attempts: reports claimed attempts and wraps their handlers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any, TypeAlias

from holdfast.client.middleware import AttemptObserver
from holdfast.domain.claims import Claim
from holdfast.worker.attempt import RunningAttempt
from holdfast.worker.status import WorkerStatus

Enclose: TypeAlias = Callable[[Claim], AbstractContextManager[object]]


class WorkerMetrics(AttemptObserver):
    """Receives the measurements of one worker; `telemetry.metrics` returns one."""

    def start(self, concurrency: int, status: Callable[[], WorkerStatus]) -> None:
        """Start measuring a worker with *concurrency* slots; *status* returns its status."""

    def stop(self) -> None:
        """Stop measuring: the worker has stopped."""


def observe_attempts(observers: Sequence[AttemptObserver], attempts: Sequence[RunningAttempt]) -> None:
    """Report claimed attempts to *observers*, and wrap their handlers in the context managers of `running`."""
    claims = [attempt.claim for attempt in attempts]
    for observer in observers:
        observer.claimed(claims)
    enclosing = [observer.running for observer in observers if observer.running is not None]
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
