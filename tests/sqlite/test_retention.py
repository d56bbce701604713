"""Pruning leaves no rows behind."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from holdfast import Artifact, Done, Failed
from holdfast.client.connect import queue_on
from holdfast.storage.sqlite.store import SqliteStore
from tests.support.claims import claim_one
from tests.support.clock import ManualClock

OWNED = ("holdfast_job", "holdfast_attempt", "holdfast_artifact")


def rows(path: Path) -> list[int]:
    with sqlite3.connect(path) as connection:
        return [connection.execute(f"select count(*) from {table}").fetchone()[0] for table in OWNED]


def test_attempts_and_artifacts_go_with_their_job(tmp_path: Path) -> None:
    path, clock = tmp_path / "jobs.db", ManualClock()
    queue = queue_on(SqliteStore(str(path), clock=clock))
    for _ in range(3):
        queue.enqueue("mail")
        queue.settle(claim_one(queue), Failed("not yet", retry_after=0))
        queue.settle(claim_one(queue), Done(artifacts=[Artifact("out", b"x")]))
    assert rows(path) == [3, 3, 3]
    queue.enqueue("mail")
    clock.advance(60)
    assert queue.admin.prune(older_than=30).jobs == 3
    assert rows(path) == [1, 0, 0]
