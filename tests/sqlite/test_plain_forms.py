"""Plain forms write what the full forms write, and serve the requests of usual workers."""

from __future__ import annotations

import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from holdfast import Claim, Deferred, Done, Failed, NewJob, Outcome, Queue
from holdfast.client.connect import queue_on
from holdfast.domain.job import Job, row_of
from holdfast.errors import JobNotFound
from holdfast.storage.sqlite.store import SqliteStore
from holdfast.storage.sqlite.transaction import SqliteTransaction
from tests.support.clock import ManualClock
from tests.support.filesystems import MEMORY_FOLDER

TABLES = ("job_row", "body", "event", "attempt", "fair_key", "holder", "route")
PLAIN = ("insert_plain", "select_plain", "finish_held")


class Pair:
    """The same calls on two stores, of which the second has no plain forms."""

    def __init__(self, folder: Path) -> None:
        self._clocks = ManualClock(), ManualClock()
        self._paths = folder / "plain.db", folder / "full.db"
        self.queues = [
            queue_on(SqliteStore(str(path), clock=clock, relaxed=True))
            for path, clock in zip(self._paths, self._clocks, strict=True)
        ]
        self._claims: tuple[list[Claim], list[Claim]] = ([], [])
        for queue in self.queues:
            queue.migrate()

    def close(self) -> None:
        for queue in self.queues:
            queue.close()

    def _both(self) -> Iterator[tuple[int, Queue]]:
        yield 0, self.queues[0]
        with without_plain_forms():
            yield 1, self.queues[1]

    def enqueue(self, kind: str, options: dict[str, Any]) -> None:
        for _, queue in self._both():
            queue.enqueue(kind, {"text": "x" * options.get("size", 1)}, **_options(options))

    def claim(self, limit: int, options: dict[str, Any]) -> None:
        token = f"token-{len(self._claims[0])}"
        for index, queue in self._both():
            claims = queue.claim_many(limit=limit, worker="w", incarnation="i", **options)
            # Tokens are random, and the only difference.
            with sqlite3.connect(self._paths[index]) as connection:
                connection.execute(
                    "update holdfast_job set lease_token = ? where lease_token = ?", (token, _token(claims))
                )
            self._claims[index].extend(_with_token(claim, token) for claim in claims)

    def settle(self, count: int, outcome: Outcome) -> None:
        for index, queue in self._both():
            chosen, self._claims[index][:] = self._claims[index][:count], self._claims[index][count:]
            for settlement in queue.settle_many([(claim, outcome) for claim in chosen]):
                assert settlement.job is None or settlement.job == queue.get(settlement.job.id)

    def advance(self, seconds: float) -> None:
        for clock in self._clocks:
            clock.advance(seconds)

    def contents(self) -> list[dict[str, list[Any]]]:
        found = []
        for path in self._paths:
            with sqlite3.connect(path) as connection:
                ids = dict(connection.execute("select id, seq from holdfast_job"))
                found.append(
                    {
                        table: [
                            tuple(ids.get(value, value) for value in row)
                            for row in connection.execute(f"select * from holdfast_{table}")
                        ]
                        for table in TABLES
                    }
                )
        return found


def _options(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name != "size"}


def _token(claims: Sequence[Claim]) -> str:
    return claims[0].lease_token if claims else ""


def _with_token(claim: Claim, token: str) -> Claim:
    return Claim(Job(row_of(claim.job)._replace(lease_token=token)), claim.lease_ms)


@contextmanager
def without_plain_forms() -> Iterator[None]:
    async def nothing(*_arguments: object) -> None:
        return None

    async def none_finished(*_arguments: object) -> dict[int, object]:
        return {}

    with pytest.MonkeyPatch.context() as patch:
        for name in PLAIN:
            patch.setattr(SqliteTransaction, name, none_finished if name == "finish_held" else nothing)
        yield


kinds = st.sampled_from(["extract", "send"])
new_options = st.fixed_dictionaries(
    {},
    optional={
        "size": st.sampled_from([1, 1_500]),
        "tenant": st.sampled_from(["a", "b", "c"]),
        "priority": st.sampled_from([-1, 0, 2]),
        "delay": st.sampled_from([0, 5]),
        "deadline": st.sampled_from([3, 60]),
        "tags": st.just({"order": "42"}),
        "headers": st.just({"trace": "1"}),
        "max_attempts": st.sampled_from([1, 3]),
        "events": st.just("all"),
        "affinity": st.just("model"),
        "dedupe_key": st.sampled_from(["k1", "k2"]),
    },
)
claim_options = st.fixed_dictionaries(
    {}, optional={"kinds": st.sampled_from([["send"], ["extract", "send"]]), "acknowledged": st.sampled_from([0, 1])}
)
outcomes = st.sampled_from([Done({"ok": True}), Done(), Done(), Failed("no", retry_after=0), Deferred(after=1)])
plain_options = st.fixed_dictionaries({"tenant": st.sampled_from(["a", "b", "c"])})
enqueues = st.tuples(st.just("enqueue"), kinds, st.one_of(plain_options, new_options))
claims = st.tuples(st.just("claim"), st.sampled_from([1, 1, 1, 2]), st.one_of(st.just({}), claim_options))
steps = st.one_of(
    enqueues,
    claims,
    claims,
    st.tuples(st.just("settle"), st.sampled_from([1, 1, 2, 10]), outcomes),
    st.tuples(st.just("advance"), st.sampled_from([0.5, 6, 31, 31])),
)
histories = st.tuples(st.lists(enqueues, min_size=6, max_size=10), st.lists(steps, min_size=15, max_size=25)).map(
    lambda parts: [*parts[0], *parts[1]]
)


@pytest.mark.slow("dozens of random histories run on two stores")
@settings(max_examples=12, deadline=None, derandomize=True, phases=[Phase.generate])
@given(histories)
def test_plain_and_full_forms_write_the_same_rows(history: list[tuple[Any, ...]]) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY_FOLDER) as folder:
        pair = Pair(Path(folder))
        for step, *arguments in history:
            getattr(pair, step)(*arguments)
            plain, full = pair.contents()
            assert plain == full, step
        pair.close()


def test_most_claims_of_a_worker_with_many_kinds_lanes_and_tenants_are_plain(tmp_path: Path) -> None:
    statements: Counter[str] = Counter()
    store = SqliteStore(str(tmp_path / "jobs.db"), observe=lambda name: statements.update([name]), relaxed=True)
    lanes, kinds_taken = ["default", "other", "third"], [f"kind-{number}" for number in range(20)]
    with queue_on(store) as queue:
        queue.enqueue_many(
            [
                NewJob(kinds_taken[number % 20], lane=lanes[number % 20 % 3], tenant=f"tenant-{number % 100}")
                for number in range(300)
            ]
        )
        statements.clear()
        while claim := queue.claim(lanes=lanes, kinds=kinds_taken, worker="w"):
            queue.settle(claim, Done())

    assert statements["ready_plain_routes"] == 301
    assert statements["claim_header"] <= 3  # the first claim of this opened queue, and the last, which finds nothing
    assert statements["jobs_current"] == 0


def test_the_number_of_a_deleted_job_is_never_used_again(tmp_path: Path) -> None:
    clock = ManualClock()
    path = tmp_path / "jobs.db"
    with queue_on(SqliteStore(str(path), clock=clock)) as queue:
        queue.enqueue_many([NewJob("mail", {"text": "x" * 2_000}, tags={"a": "b"})] * 3)
        queue.settle_many([(claim, Done()) for claim in queue.claim_many()])
        cursor = queue.events().cursor
        clock.advance(60)

        assert queue.admin.prune(older_than=30, events_older_than=30).jobs == 3

        assert list(queue.jobs()) == []
        assert queue.counts() == {}
        assert queue.counts(by="tenant") == queue.counts(by="kind") == {}
        with pytest.raises(JobNotFound):
            queue.get(3)
        with sqlite3.connect(path) as connection:
            assert connection.execute("select count(*) from holdfast_body").fetchone() == (0,)
            assert connection.execute("select extra, payload, result from holdfast_job").fetchall() == [(None,) * 3]

        assert queue.enqueue("mail").job.number == 4
        queue.settle_many([(claim, Done()) for claim in queue.claim_many()])
        assert [event.name for event in queue.events(after=cursor)] == ["done"]
        queue.enqueue("mail")
        clock.advance(60)
        assert queue.admin.prune(older_than=30).jobs == 1
        with sqlite3.connect(path) as connection:
            assert connection.execute("select seq from holdfast_job").fetchall() == [(5,)]


def test_a_payload_that_is_replaced_moves_between_the_tables(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    with queue_on(SqliteStore(str(path))) as queue:
        for size, apart in ((10, 0), (2_000, 1), (3_000, 1), (10, 0)):
            payload = {"text": "x" * size}
            job = queue.enqueue("mail", payload, dedupe_key="one", on_duplicate="replace").job
            assert queue.get(job.id).payload == payload
            with sqlite3.connect(path) as connection:
                assert connection.execute("select count(*) from holdfast_body").fetchone() == (apart,)
