"""Middleware: code that runs around each enqueue, claim and settle of a queue, such as tracing.

A middleware method is a generator that yields once. It receives the request and yields it, possibly changed, to the
call; the `yield` returns the answer or raises the error of the call. It awaits nothing, so it serves sync and async
queues alike.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Generic, TypeAlias, TypeVar

from holdfast.domain.claims import Claim, ClaimRequest, Settlement
from holdfast.domain.job import Job
from holdfast.domain.new_job import CheckedJob
from holdfast.domain.outcomes import CheckedOutcome
from holdfast.domain.results import StoredJob

Request = TypeVar("Request")
Answer = TypeVar("Answer")

CheckedSettlements: TypeAlias = Sequence[tuple[Claim, CheckedOutcome]]
"""Claims with their validated outcomes."""


class Middleware:
    """The base class of middleware: each method passes the request on unchanged."""

    def enqueue(self, jobs: Sequence[CheckedJob]) -> Generator[Sequence[CheckedJob], Sequence[StoredJob], None]:
        """Run around a call that stores *jobs*, all or none."""
        yield jobs

    def claim(self, request: ClaimRequest) -> Generator[ClaimRequest, Sequence[Claim], None]:
        """Run around a call that leases ready jobs; the answer is empty if there are none."""
        yield request

    def settle(self, outcomes: CheckedSettlements) -> Generator[CheckedSettlements, Sequence[Settlement], None]:
        """Run around a call that records outcomes; the answer has one settlement for each, in order."""
        yield outcomes


class Around(Generic[Request, Answer]):
    """Runs middleware methods around one call, which takes `request` and sets `answer`."""

    __slots__ = ("_methods", "_running", "answer", "request")

    answer: Answer

    def __init__(self, methods: Sequence[Callable[[Request], Generator[Request, Answer, None]]], request: Request):
        self.request = request
        self._methods = methods
        self._running: list[Generator[Request, Answer, None]] = []

    def __enter__(self) -> Around[Request, Answer]:
        try:
            for method in self._methods:
                steps = method(self.request)
                self.request = next(steps)
                self._running.append(steps)
        except BaseException as error:
            self._throw(error)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._throw(error)
            return
        while self._running:
            try:
                self._running.pop().send(self.answer)
            except StopIteration:
                continue
            except BaseException as raised:
                self._throw(raised)
                raise
            raise RuntimeError("a middleware method must yield exactly once")

    def _throw(self, error: BaseException) -> None:
        """Raise *error* in each middleware method; an error that one raises instead replaces it."""
        while self._running:
            try:
                self._running.pop().throw(error)
            except StopIteration:
                continue
            except BaseException as raised:
                if raised is error:
                    continue
                self._throw(raised)
                raise
            raise RuntimeError("a middleware method must yield exactly once")


class AttemptObserver:
    """Receives the attempts of a worker, in the worker's event loop. Its methods return quickly and never raise."""

    running: Callable[[Claim], AbstractContextManager[object]] | None = None
    """Returns a context manager in which the handler runs, in the handler's thread or task; None if not needed."""

    def claimed(self, claims: Sequence[Claim]) -> None:
        """Handle newly claimed jobs."""

    def ended(self, claim: Claim, outcome: str, job: Job | None, seconds: float | None) -> None:
        """Handle the end of an attempt.

        *job* is the settled job, or None if the worker does not know it; *seconds* is how long the handler ran, or
        None if it did not run.
        """
