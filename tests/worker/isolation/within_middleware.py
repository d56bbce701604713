"""A queue with middleware and isolated tasks, in a module that an isolated process imports."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextvars import ContextVar
from typing import Any

import holdfast
from holdfast import Context, Middleware
from holdfast.types import EndedAttempt
from tests.worker.isolation.collection import tasks

current: ContextVar[str | None] = ContextVar("current", default=None)
recorded: list[EndedAttempt] = []
"""The attempts that have ended, in the process of the worker."""


class Current(Middleware):
    """Sets a context variable to the id of the job while its handler runs."""

    def run(self, context: Context) -> Generator[None, Any, None]:
        token = current.set(context.job.id)
        yield
        current.reset(token)

    def ended(self, attempt: EndedAttempt) -> None:
        recorded.append(attempt)


queue = holdfast.connect(":memory:", middleware=[Current()])
queue.include(tasks)


@queue.task("where", isolate="process")
def where() -> dict[str, Any]:
    return {"within": current.get(), "process": os.getpid()}
