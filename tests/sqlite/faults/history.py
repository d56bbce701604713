"""Acknowledged calls, and the checks of a store image against them.

A process under test notes, in the log of its own writes, each request and each result. The notes before a power cut
determine the required content of every image of that cut.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import holdfast
from holdfast.domain.events import TERMINAL
from holdfast.domain.job import FINISHED

# Within one epoch a job runs, then waits again, then perhaps finishes; before its first epoch it waits.
_PHASES = {"running": 0, "blocked": 1, "scheduled": 1, "ready": 2}
_FINISHED_PHASE = 3


@dataclass
class History:
    """The notes up to some point."""

    acknowledged: dict[str, tuple[str, int]] = field(default_factory=dict)
    """For each job the newest state and epoch that a caller has received."""
    batches: list[list[str]] = field(default_factory=list)
    """Jobs that come to be together or not at all."""
    follow_ups: dict[str, list[str]] = field(default_factory=dict)
    """What has to be there once this job is done, and only then."""

    def take(self, note: str) -> None:
        """Process one note."""
        for kind, said in json.loads(note).items():
            match kind:
                case "received":
                    for job_id, state, epoch in said:
                        self._told(job_id, state, epoch)
                case "batch":
                    self.batches.append(said)
                case "follow_ups":
                    self.follow_ups |= said
                case _:
                    raise AssertionError(kind)

    def _told(self, job_id: str, state: str, epoch: int) -> None:
        # Threads write their notes in any order.
        if _place(state, epoch) >= _place(*self.acknowledged.get(job_id, ("ready", -1))):
            self.acknowledged[job_id] = (state, epoch)


def received(jobs: Iterable[holdfast.Job]) -> str:
    """Return the note that a caller received *jobs*."""
    return json.dumps({"received": [(job.id, job.state, job.epoch) for job in jobs]})


def _place(state: str, epoch: int) -> tuple[int, int]:
    return epoch, _PHASES.get(state, _FINISHED_PHASE)


# --- checking a store ----------------------------------------------------------------------------------------------


def complaints(path: str, history: History) -> list[str]:
    """Return the problems of the store at *path*: corruption, loss, or partial writes. Opening it is the recovery."""
    queue = holdfast.connect(path)
    try:
        queue.migrate()
        unsound = _unsound(path)
        if unsound:
            return unsound
        jobs = _all_jobs(queue)
        return [
            *_lost(jobs, history),
            *_half_done(jobs, history),
            *_inconsistent(queue, jobs),
            *_stuck(queue, jobs),
        ]
    except (holdfast.errors.StoreDamaged, holdfast.errors.UnsupportedStore, sqlite3.DatabaseError) as error:
        return [f"unsound: {error}"]
    finally:
        queue.close()


def _unsound(path: str) -> list[str]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        said = [row for (row,) in connection.execute("pragma integrity_check")]
    return [] if said == ["ok"] else [f"unsound: {line}" for line in said]


def _all_jobs(queue: holdfast.Queue) -> dict[str, holdfast.Job]:
    found: dict[str, holdfast.Job] = {}
    page = queue.jobs(limit=1000)
    while page.jobs:
        found |= {job.id: job for job in page.jobs}
        if page.cursor is None:
            break
        page = queue.jobs(limit=1000, after=page.cursor)
    return found


def _lost(jobs: dict[str, holdfast.Job], history: History) -> list[str]:
    lost = []
    for job_id, (state, epoch) in history.acknowledged.items():
        job = jobs.get(job_id)
        if job is None:
            lost.append(f"lost: {job_id} was acknowledged and is not there")
        elif _place(job.state, job.epoch) < _place(state, epoch) or (state in FINISHED and job.state != state):
            lost.append(f"lost: {job_id} was {state}/{epoch} and is {job.state}/{job.epoch}")
    return lost


def _half_done(jobs: dict[str, holdfast.Job], history: History) -> list[str]:
    torn = [f"half done: {batch}" for batch in history.batches if 0 < sum(id_ in jobs for id_ in batch) < len(batch)]
    for parent, expected in history.follow_ups.items():
        finished = parent in jobs and jobs[parent].state == "done"
        if any((job_id in jobs) != finished for job_id in expected):
            torn.append(f"half done: {parent} and its follow-ups {expected}")
    return torn


def _inconsistent(queue: holdfast.Queue, jobs: dict[str, holdfast.Job]) -> list[str]:
    ends = Counter(event.job_id for event in _all_events(queue) if event.name in TERMINAL)
    wrong = [
        f"inconsistent: {job.id} is {job.state} with {ends[job.id]} terminal events"
        for job in jobs.values()
        if ends[job.id] != (job.state in FINISHED)
    ]
    wrong += [f"inconsistent: an event of {job_id}, which is not there" for job_id in ends.keys() - jobs.keys()]
    wrong += [
        f"inconsistent: {job.id} at epoch {job.epoch} has another number of attempts"
        for job in jobs.values()
        if len(queue.attempts(job.id)) != job.epoch
    ]
    keys = Counter((job.kind, job.dedupe_key) for job in jobs.values() if job.dedupe_key and not job.finished)
    return wrong + [f"inconsistent: {count} unfinished jobs for {key}" for key, count in keys.items() if count > 1]


def _all_events(queue: holdfast.Queue) -> list[holdfast.types.Event]:
    found: list[holdfast.types.Event] = []
    page = queue.events(limit=1000)
    while page.events:
        found += page.events
        page = queue.events(after=page.cursor, limit=1000)
    return found


def _stuck(queue: holdfast.Queue, jobs: dict[str, holdfast.Job]) -> list[str]:
    """Return a problem if the store does not continue to work."""
    made = queue.enqueue("after", lane="after", job_id="after-the-fault")
    claim = queue.claim(lanes=["after"])
    if not made.created or claim is None or queue.settle(claim, holdfast.Done()).state != "done":
        return ["stuck: a new job does not go through"]
    return []


def numbers(queue: holdfast.Queue) -> dict[str, Any]:
    """Return all values that a call could have changed, in a form that can be compared and sent."""
    return {
        "jobs": sorted([job.id, job.state, job.epoch, job.attempt] for job in _all_jobs(queue).values()),
        "events": sorted([event.job_id, event.name] for event in _all_events(queue)),
        "attempts": {job_id: len(queue.attempts(job_id)) for job_id in sorted(_all_jobs(queue))},
    }
