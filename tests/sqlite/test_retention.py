"""Pruning leaves no rows behind."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from holdfast import Artifact, Done, Failed
from holdfast.client.connect import queue_on
from holdfast.storage.sqlite.store import SqliteStore
from tests.support.claims import claim_one
from tests.support.clock import ManualClock

OWNED = ("job", "attempt", "artifact", "output", "upload", "upload_chunk")


def rows(path: Path) -> list[int]:
    with sqlite3.connect(path) as connection:
        return [connection.execute(f"select count(*) from holdfast_{table}").fetchone()[0] for table in OWNED]


def test_attempts_artifacts_and_output_go_with_their_job(tmp_path: Path) -> None:
    path, clock = tmp_path / "jobs.db", ManualClock()
    queue = queue_on(SqliteStore(str(path), clock=clock))
    for _ in range(3):
        queue.enqueue("mail")
        queue.settle(claim_one(queue), Failed("not yet", retry_after=0))
        claim = claim_one(queue)
        queue.emit(claim, "text")
        queue.settle(claim, Done(artifacts=[Artifact("out", b"x")]))
    assert rows(path) == [3, 3, 3, 3, 3, 3]
    queue.enqueue("mail")
    clock.advance(60)
    assert queue.admin.prune(older_than=30).jobs == 3
    assert rows(path) == [1, 0, 0, 0, 0, 0]
