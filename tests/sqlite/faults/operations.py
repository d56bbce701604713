"""The calls into which faults are injected: each can be repeated, and leaves a store that can be compared."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import holdfast
from holdfast.storage.sqlite.connection import CHECKPOINT_PAGES
from tests.sqlite.faults.history import numbers
from tests.support.claims import changed_job

# A page in the log, with its header.
_FRAME_BYTES = 4096 + 24
_WORKER: Any = {"worker": "w", "incarnation": "i", "lease": 3600}


class Operation(NamedTuple):
    """A call, and its preparation in the same process."""

    perform: Callable[[holdfast.Queue], object]
    approach: Callable[[holdfast.Queue, str], object] = lambda queue, _path: queue.migrate()


def _enqueue(queue: holdfast.Queue) -> None:
    queue.enqueue_many([{"kind": "mail", "job_id": f"new-{place}", "payload": "x" * 3_000} for place in range(3)])


def _claim(queue: holdfast.Queue) -> None:
    queue.claim_many(limit=2, lease_token="second", **_WORKER)


def _settle(queue: holdfast.Queue) -> None:
    # The claim as returned by `prepare`, regardless of later changes to the job.
    claim = holdfast.Claim(changed_job(queue.get("old-0"), epoch=1, lease_token="first"), 3_600_000)
    follow_ups = [{"kind": "mail", "job_id": f"then-{place}"} for place in range(2)]
    queue.settle(claim, holdfast.Done("ok", follow_ups=follow_ups, artifacts=[holdfast.Artifact("a", b"b" * 5_000)]))


def _cancel(queue: holdfast.Queue) -> None:
    queue.cancel("old-4")


def _close(queue: holdfast.Queue) -> None:
    _enqueue(queue)
    queue.close()


def _lengthen_log(queue: holdfast.Queue, path: str) -> None:
    """Extend the log close to the length at which the next commit checkpoints it."""
    queue.enqueue_many([{"kind": "bulk", "lane": "bulk", "payload": "x" * 800_000} for _ in range(4)])
    log = Path(f"{path}-wal")
    while log.stat().st_size < (CHECKPOINT_PAGES - 8) * _FRAME_BYTES:
        queue.enqueue("bulk", lane="bulk")


OPERATIONS = {
    "enqueue": Operation(_enqueue),
    "claim": Operation(_claim),
    "settle": Operation(_settle),
    "cancel": Operation(_cancel),
    "close": Operation(_close),
    "checkpoint": Operation(_enqueue, _lengthen_log),
}


def prepare(folder: Path) -> None:
    """Create a store with a few jobs, the first of them claimed."""
    folder.mkdir()
    queue = holdfast.connect(str(folder / "jobs.db"))
    for place in range(5):
        queue.enqueue("mail", {"place": place}, job_id=f"old-{place}", events="all")
    queue.claim_many(limit=1, lease_token="first", **_WORKER)
    queue.close()


class References(NamedTuple):
    """The store before a call and after it."""

    before: dict[str, Any]
    after: dict[str, Any]


def references(prepared: Path, name: str) -> References:
    """Return the store before and after an operation without faults."""
    folder = prepared.with_name(f"undisturbed-{name}")
    shutil.copytree(prepared, folder)
    queue = holdfast.connect(str(folder / "jobs.db"))
    before = numbers(queue)
    OPERATIONS[name].perform(queue)
    after = numbers(queue)
    queue.close()
    assert before != after
    return References(before, after)


def without_bulk(seen: dict[str, Any]) -> dict[str, Any]:
    """Leave out the jobs that only lengthened the log: their ids are random."""
    known = ("old-", "new-", "then-")
    return {
        "jobs": [row for row in seen["jobs"] if row[0].startswith(known)],
        "events": [row for row in seen["events"] if row[0].startswith(known)],
        "attempts": {job_id: count for job_id, count in seen["attempts"].items() if job_id.startswith(known)},
    }


def copy_of(prepared: str, number: int) -> str:
    """Return a new copy of the prepared folder, which may be empty."""
    folder = f"{prepared}-{os.getpid()}-{number}"
    shutil.copytree(prepared, folder)
    return folder
