"""The numbers of starts of workers: given at the first claim, deleted when no job and no event has them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from holdfast import Done, Queue
from holdfast.client.connect import queue_on
from holdfast.client.sync_api.worker_calls import WorkerCalls
from holdfast.storage.sqlite import transaction
from holdfast.storage.sqlite.store import SqliteStore
from tests.support.clock import ManualClock

DAY = timedelta(days=1)
MANY = 20


class Holders:
    """A store with a clock, and the starts of workers that have numbers in it."""

    def __init__(self, path: Path) -> None:
        self.clock = ManualClock()
        self._path = path
        store = SqliteStore(str(path), clock=self.clock, relaxed=True)
        self.queue: Queue = queue_on(store)
        self._calls = WorkerCalls(store)

    def execute(self, sql: str) -> list[tuple[object, ...]]:
        connection = sqlite3.connect(self._path)
        with closing(connection), connection:
            return connection.execute(sql).fetchall()

    def starts(self) -> set[object]:
        return {name for (name,) in self.execute("select worker from holdfast_holder")}

    def claims(self, *workers: str) -> None:
        """Let each of *workers* claim and settle a job."""
        for worker in workers:
            self.queue.enqueue("kind")
            claim = self.queue.claim(worker=worker, incarnation="first")
            assert claim is not None
            self.queue.settle(claim, Done())

    def prune(self) -> None:
        """Delete all finished jobs and their events, except the newest."""
        self.clock.advance(DAY)
        self.queue.admin.prune(older_than=1)

    def maintain(self) -> None:
        while self._calls.delete_expired():
            pass


@pytest.fixture
def holders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Holders]:
    monkeypatch.setattr(transaction, "_HOLDERS_MIN", MANY)
    held = Holders(tmp_path / "jobs.db")
    yield held
    held.queue.close()


def names(first: int, count: int) -> list[str]:
    return [f"worker-{number}" for number in range(first, first + count)]


def test_holders_are_deleted_with_the_last_job_and_event_that_names_them(holders: Holders) -> None:
    holders.claims(*names(0, MANY + 5))
    assert len(holders.starts()) == MANY + 5
    # The row of the highest number stays, without a holder, and so does the newest event, with its holder.
    holders.prune()
    holders.clock.advance(DAY)
    holders.maintain()

    assert holders.starts() == {f"worker-{MANY + 4}"}


@pytest.mark.parametrize("unnamed", ["delete from holdfast_event", "update holdfast_job set holder = null"])
def test_a_holder_that_only_jobs_or_only_events_name_is_kept(holders: Holders, unnamed: str) -> None:
    holders.claims(*names(0, MANY))
    holders.execute(unnamed)
    holders.clock.advance(2 * DAY)
    holders.maintain()

    assert holders.starts() == set(names(0, MANY))


def test_all_jobs_are_read_again_only_after_many_more_starts(holders: Holders) -> None:
    holders.claims(*names(0, MANY))
    holders.clock.advance(2 * DAY)
    holders.maintain()
    holders.claims(*names(MANY, MANY - 1))
    holders.prune()
    holders.clock.advance(DAY)
    holders.maintain()
    # None of the first is in use any more, but few were added since they were last looked for.
    assert len(holders.starts()) == 2 * MANY - 1
    holders.claims("one more")
    holders.clock.advance(2 * DAY)
    holders.maintain()

    assert holders.starts() == {f"worker-{2 * MANY - 2}", "one more"}


def test_a_start_that_still_claims_keeps_its_number(holders: Holders) -> None:
    holders.claims("old")
    before = holders.execute("select holder, worker from holdfast_holder")
    holders.claims(*names(0, MANY))
    holders.clock.advance(2 * DAY)
    holders.claims("old")
    holders.clock.advance(DAY)
    holders.execute("delete from holdfast_event")
    holders.execute("update holdfast_job set holder = null")
    holders.maintain()

    assert holders.starts() == {"old"}
    assert before[0] in holders.execute("select holder, worker from holdfast_holder")


@pytest.mark.parametrize("limit", [1, 3])
def test_a_claim_after_a_pause_of_days_is_stored_like_the_first(holders: Holders, limit: int) -> None:
    for _ in range(2 * limit):
        holders.queue.enqueue("kind")
    for _ in range(2):
        claims = holders.queue.claim_many(limit=limit, worker="w", incarnation="i", lease=60)
        assert [holders.queue.get(claim.job.id).worker for claim in claims] == ["w"] * limit
        holders.queue.settle_many([(claim, Done()) for claim in claims])
        holders.clock.advance(2 * DAY)
