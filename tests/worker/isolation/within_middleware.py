"""A queue with middleware and isolated tasks, in a module that an isolated process imports."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from contextvars import ContextVar
from typing import Any

import holdfast
from holdfast import Context, Middleware
from holdfast.types import EndedAttempt, JobDraft, StoredJob
from tests.support.codecs import Scrambler
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

    def enqueue(self, jobs: Sequence[JobDraft]) -> Generator[None, Sequence[StoredJob], None]:
        for job in jobs:
            job.headers["by"] = "middleware"
        yield

    def ended(self, attempt: EndedAttempt) -> None:
        recorded.append(attempt)


queue = holdfast.connect(":memory:", middleware=[Current()], codec=Scrambler())
queue.include(tasks)


@queue.task("where", isolate="process")
def where(secret: str) -> dict[str, Any]:
    return {"within": current.get(), "process": os.getpid(), "secret": secret}


@queue.task("committed", isolate="process")
def committed(context: Context, secret: str) -> dict[str, Any]:
    with context.transaction() as tx:
        tx.enqueue("next", secret)
    return {"within": current.get(), "process": os.getpid(), "secret": secret}
