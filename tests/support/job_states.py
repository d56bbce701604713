"""Shortcuts to bring jobs into the state that a test needs, through the public API only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Literal, TypeAlias, Unpack

from holdfast import Claim, Done, Failed, Job, Outcome, Queue, Transaction
from holdfast.types import ClaimOptions, Event, JobOptions

State: TypeAlias = Literal["scheduled", "blocked", "ready", "running", "done", "failed", "cancelled", "retired"]

WAITING: tuple[State, ...] = ("scheduled", "blocked", "ready")
UNFINISHED: tuple[State, ...] = (*WAITING, "running")
FINISHED: tuple[State, ...] = ("done", "failed", "cancelled", "retired")

FAILS = Failed("it broke", permanent=True)
RETRIES = Failed("it may work later", retry_after=60)


def claimed(queue: Queue, **options: Unpack[ClaimOptions]) -> Claim:
    """Claim the next job; fail if there is none."""
    claim = queue.claim(**options)
    assert claim is not None
    return claim


def start(queue: Queue, job: Job) -> Claim:
    """Claim exactly this job, which must be the next of its kind, lane and tenant."""
    claim = claimed(queue, lanes=[job.lane], kinds=[job.kind], tenant=job.tenant, capabilities=job.requires)
    assert claim.job.id == job.id
    return claim


def run(queue: Queue, job: Job, outcome: Outcome) -> Job:
    """Claim exactly this job and settle it."""
    return queue.settle(start(queue, job), outcome)


def enqueue_and_run(queue: Queue, kind: str, outcome: Outcome, **options: Unpack[JobOptions]) -> Job:
    """Enqueue one job and settle its first attempt."""
    return run(queue, queue.enqueue(kind, **options).job, outcome)


def blocked_pair(queue: Queue, kind: str = "pair", **options: Unpack[JobOptions]) -> tuple[Claim, Job]:
    """Return the claim of a running job, and the successor that waits for it to finish."""
    options.setdefault("dedupe_key", "pair")
    options["on_duplicate"] = "run_again"
    first = start(queue, queue.enqueue(kind, {"run": 1}, **options).job)
    second = queue.enqueue(kind, {"run": 2}, **options).job
    assert second.state == "blocked"
    return first, second


def job_in(queue: Queue, state: State, kind: str = "task", **options: Unpack[JobOptions]) -> Job:
    """Return a new job in *state*. Requires that no other job of its kind waits; `retired` restores the kind."""
    if state == "blocked":
        return blocked_pair(queue, kind, **options)[1]
    if state == "scheduled":
        options["delay"] = 3600
    job = queue.enqueue(kind, **options).job
    match state:
        case "running":
            start(queue, job)
        case "done":
            run(queue, job, Done())
        case "failed":
            run(queue, job, FAILS)
        case "cancelled":
            queue.cancel(job.id)
        case "retired":
            queue.kinds.retire(kind)
            queue.kinds.restore(kind)
        case _:
            pass
    return queue.get(job.id)


class _UndoError(Exception):
    """Raised to roll back a transaction."""


@contextmanager
def rolled_back(queue: Queue) -> Iterator[Transaction]:
    """A transaction that is rolled back."""
    with suppress(_UndoError), queue.transaction() as transaction:
        yield transaction
        raise _UndoError


def all_events(queue: Queue, *, after: str | None = None, limit: int = 100) -> list[Event]:
    """Read the event log to its end."""
    found: list[Event] = []
    while True:
        page = queue.events(after=after, limit=limit)
        if not page.events:
            return found
        found += page.events
        after = page.cursor


def event_names(queue: Queue, job_id: str) -> list[str]:
    """Return the names of one job's recorded events, in order."""
    return [event.name for event in all_events(queue) if event.job_id == job_id]


def nonzero(counts: dict[str, int]) -> dict[str, int]:
    """Leave out counts of zero."""
    return {name: count for name, count in counts.items() if count}
