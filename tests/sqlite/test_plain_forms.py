"""Plain forms write what the full forms write, and serve the requests of usual workers."""

from __future__ import annotations

import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis.strategies import SearchStrategy

from holdfast import Claim, Done, NewJob, Outcome, Queue, Worker
from holdfast.client.connect import queue_on
from holdfast.domain.claims import are_usual
from holdfast.errors import JobNotFound
from holdfast.storage.plain_contract import FinishedJobs
from holdfast.storage.sql_transaction import SqlTransaction
from holdfast.storage.sqlite.store import SqliteStore
from holdfast.storage.sqlite.transaction import SqliteTransaction
from tests.support import plain_forms
from tests.support.clock import ManualClock
from tests.support.filesystems import MEMORY_FOLDER

# Not when a fairness position was written: a full form may write it more than once.
COLUMNS = {"fair_key": "scope, fair_key", "job": "seq, gate"}
FUSED = ("events_append_done_one", "ready_plain_next", "job_claim_next")
TABLES = ("job_row", "body", "event", "attempt", "fair_key", "holder", "route", "kept_key", "tag", "job", "gate")


class PairOfFiles(plain_forms.Pair):
    """Two files."""

    def __init__(self, folder: Path) -> None:
        self._paths = folder / "plain.db", folder / "full.db"
        super().__init__()

    def open(self, index: int, clock: ManualClock) -> Queue:
        return queue_on(SqliteStore(str(self._paths[index]), clock=clock, relaxed=True))

    def without_plain_forms(self) -> AbstractContextManager[None]:
        return without_plain_forms()

    def rename_token(self, index: int, token: str, renamed: str) -> None:
        with sqlite3.connect(self._paths[index]) as connection:
            connection.execute("update holdfast_job set lease_token = ? where lease_token = ?", (renamed, token))

    def contents_of(self, index: int) -> dict[str, list[Any]]:
        with sqlite3.connect(self._paths[index]) as connection:
            ids = dict(connection.execute("select id, seq from holdfast_job"))
            return {
                table: [
                    tuple(ids.get(value, value) for value in row)
                    for row in connection.execute(f"select {COLUMNS.get(table, '*')} from holdfast_{table}")
                ]
                for table in TABLES
            }


@contextmanager
def without_plain_forms() -> Iterator[None]:
    async def nothing(*_arguments: object) -> None:
        return None

    async def none_finished(tx: SqliteTransaction, _settlements: object) -> FinishedJobs:
        return FinishedJobs(await tx.now(), {})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SqliteTransaction, "insert_plain", nothing)
        patch.setattr(SqliteTransaction, "insert_plain_jobs", SqlTransaction.insert_plain_jobs)
        patch.setattr(SqliteTransaction, "claim_plain", nothing)
        patch.setattr(SqliteTransaction, "settle_and_claim_plain", nothing)
        patch.setattr(SqliteTransaction, "finish_held", none_finished)
        yield


def compare(history: list[tuple[Any, ...]]) -> None:
    """Run a history on both stores and compare them after each step."""
    with tempfile.TemporaryDirectory(dir=MEMORY_FOLDER) as folder, PairOfFiles(Path(folder)) as pair:
        pair.compare(history)


@pytest.mark.slow("dozens of random histories run on two stores")
@settings(max_examples=12, deadline=None, derandomize=True, phases=[Phase.generate])
@given(plain_forms.histories)
def test_plain_and_full_forms_write_the_same_rows(history: list[tuple[Any, ...]]) -> None:
    compare(history)


@pytest.mark.slow("dozens of random histories run on two stores")
@settings(max_examples=6, deadline=None, derandomize=True, phases=[Phase.generate])
@given(plain_forms.bulk_histories)
def test_plain_and_full_forms_of_many_jobs_write_the_same_rows(history: list[tuple[Any, ...]]) -> None:
    compare(history)


@pytest.mark.long
@pytest.mark.parametrize("drawn", [plain_forms.histories, plain_forms.bulk_histories], ids=["few", "many"])
def test_plain_and_full_forms_write_the_same_rows_for_long_and_at_random(drawn: SearchStrategy[Any]) -> None:
    @settings(max_examples=100, deadline=None)
    @given(drawn)
    def compare_drawn(history: list[tuple[Any, ...]]) -> None:
        compare(history)

    compare_drawn()


@pytest.mark.parametrize("outcome", [Done(), plain_forms.DIFFERENT], ids=["same results", "different results"])
@pytest.mark.parametrize("change", ["priority", "phase", "percent", "cancel", "settle"])
def test_many_jobs_of_which_one_has_changed_are_settled_alike(change: str, outcome: Outcome) -> None:
    jobs: list[tuple[str, dict[str, Any]]] = [("send", {})] * 12
    claims: list[tuple[Any, ...]] = [("claim", 12, {}), ("claim_unread", 12)]
    for claim in claims:
        compare([("enqueue_many", jobs), claim, ("change", change), ("settle", 12, outcome)])


@pytest.mark.parametrize("change", [None, "priority", "phase", "percent", "cancel", "settle"])
def test_a_job_is_settled_and_the_next_one_claimed_alike(change: str | None) -> None:
    jobs = [("send", options) for options in ({}, {}, {"tenant": "b"}, {}, {"tags": {"a": "b"}}, {"tenant": "c"}, {})]
    steps: list[tuple[Any, ...]] = [("enqueue_many", jobs), ("claim_unread", 1)]
    for _ in range(len(jobs) + 1):
        steps += [("change", change)] if change else []
        steps.append(("settle_and_claim", 1, Done()))
    compare(steps)


def test_a_usual_job_is_settled_and_the_next_one_claimed_by_four_statements(tmp_path: Path) -> None:
    seen: list[str] = []
    with queue_on(SqliteStore(str(tmp_path / "jobs.db"), relaxed=True, observe=seen.append)) as queue:

        def exchange(claims: list[Claim]) -> list[Claim]:
            seen.clear()
            return queue.settle_and_claim([(claim, Done()) for claim in claims], limit=1, worker="w").claims

        queue.enqueue_many([NewJob("a")] * 2)
        claims = exchange(exchange([]))
        assert seen == ["begin", "job_done_unchanged", *FUSED, "commit", "committed"]

        # No other job is ready: the claim has to look whether one becomes ready by maintenance.
        assert exchange(claims) == []
        assert seen[:4] == ["begin", "job_done_unchanged", *FUSED[:2]]
        assert queue.get(claims[0].job.id).state == "done"


def test_a_settlement_and_the_claim_after_it_are_written_both_or_not_at_all(tmp_path: Path) -> None:
    def fail(name: str) -> None:
        if name == failing:
            raise RuntimeError(name)

    failing = ""
    with queue_on(SqliteStore(str(tmp_path / "jobs.db"), relaxed=True, observe=fail)) as queue:
        queue.enqueue_many([NewJob("a")] * 3)
        claims: list[Claim] = []
        for _ in range(2):
            claims = queue.settle_and_claim([(claim, Done()) for claim in claims], limit=1, worker="w").claims
        for failing in ("job_done_unchanged", *FUSED, "commit"):
            with pytest.raises(RuntimeError, match=failing):
                queue.settle_and_claim([(claims[0], Done())], limit=1, worker="w")
            assert [queue.get(number).state for number in (1, 2, 3)] == ["done", "running", "ready"]
        failing = ""
        assert queue.settle_and_claim([(claims[0], Done())], limit=1, worker="w").settlements[0].ok


@pytest.mark.parametrize("count", [12, 9], ids=["all jobs of a claim", "a part of them"])
@pytest.mark.parametrize("options", [{}, {"tags": {"a": "b"}}, {"priority": 1}], ids=["usual", "tagged", "first"])
def test_jobs_of_one_claim_are_settled_alike_in_one_update(options: dict[str, Any], count: int) -> None:
    jobs: list[tuple[str, dict[str, Any]]] = [("send", options if number == 5 else {}) for number in range(12)]
    compare([("enqueue_many", jobs), ("claim", 12, {}), ("settle", count, Done()), ("settle", 12, Done())])


def test_usual_jobs_with_consecutive_numbers_are_settled_by_an_update_of_the_range(tmp_path: Path) -> None:
    seen: list[str] = []
    with queue_on(SqliteStore(str(tmp_path / "jobs.db"), relaxed=True, observe=seen.append)) as queue:

        def statements(*jobs: NewJob) -> list[str]:
            """Enqueue and claim jobs, settle all but the first in the opposite order, return the updates of that."""
            queue.enqueue_many(jobs)
            first, *claims = queue.claim_many(limit=len(jobs), worker="w")
            seen.clear()
            queue.settle_many([(claim, Done()) for claim in reversed(claims)])
            updates = [name for name in seen if name.startswith("job_done")]
            queue.settle(first, Done())
            return updates

        usual, tagged = NewJob("a"), NewJob("a", tags={"a": "b"})
        statements(usual)  # The first claim of an opened queue has no plain form.
        assert statements(*[usual] * 10) == ["job_done_range_plain"]
        assert statements(*[usual] * 5, tagged, *[usual] * 4) == ["job_done_same"]
        # In the order of the tenants.
        assert statements(*[NewJob("a", tenant=f"{number % 2}") for number in range(12)]) == ["job_done_range_plain"]


@pytest.mark.parametrize("backwards", [False, True], ids=["as claimed", "backwards"])
def test_events_of_jobs_that_are_settled_together_are_in_the_order_of_the_call(
    tmp_path: Path, *, backwards: bool
) -> None:
    seen: list[str] = []
    with queue_on(SqliteStore(str(tmp_path / "jobs.db"), relaxed=True, observe=seen.append)) as queue:
        queue.enqueue_many([NewJob("a")] * 10)
        claims = queue.claim_many(limit=10, worker="w")
        if backwards:
            claims.reverse()
        queue.settle_many([(claim, Done()) for claim in claims])

        assert [event.job_id for event in queue.events().events] == [claim.job.id for claim in claims]
        statement = "events_append_done" if backwards else "events_append_done_range"
        assert [name for name in seen if name.startswith("events_append")] == [statement]


def test_usual_jobs_of_several_tenants_are_claimed_and_settled_by_lists(tmp_path: Path) -> None:
    seen: list[str] = []
    with queue_on(SqliteStore(str(tmp_path / "jobs.db"), relaxed=True, observe=seen.append)) as queue:
        queue.enqueue("a")
        queue.settle_many([(claim, Done()) for claim in queue.claim_many(worker="w")])
        queue.enqueue_many([NewJob("a", tenant="first" if number < 15 else "second") for number in range(20)])
        seen.clear()
        claims = queue.claim_many(limit=10, worker="w")
        settled = queue.settle_many([(claim, Done()) for claim in claims])
        updates = [name for name in seen if name.startswith(("job_claim", "job_done"))]
        assert updates == ["job_claim_list_plain", "job_done_list_plain"]
        assert [claim.job.number for claim in claims] == [2, 17, 3, 18, 4, 19, 5, 20, 6, 21]
        assert {one.job.state for one in settled if one.job is not None} == {"done"}


@pytest.mark.parametrize("change", [(), *[("change", name) for name in ("priority", "phase", "cancel", "settle")]])
@pytest.mark.parametrize("options", [{}, {"tags": {"a": "b"}}], ids=["usual", "tagged"])
def test_jobs_of_several_tenants_are_claimed_and_settled_alike(
    options: dict[str, Any], change: tuple[str, ...]
) -> None:
    tenants = ["first"] * 15 + ["second"] * 5
    jobs: list[tuple[str, dict[str, Any]]] = [("send", {"tenant": tenant}) for tenant in tenants]
    jobs[3] = "send", {"tenant": "first", **options}
    first: list[tuple[Any, ...]] = [("enqueue_many", [("send", {})]), ("claim", 1, {}), ("settle", 1, Done())]
    claim: list[tuple[Any, ...]] = [("enqueue_many", jobs), ("claim_unread", 10)]
    compare([*first, *claim, *([change] if change else []), ("settle", 10, Done())])


@pytest.mark.parametrize("options", [{}, {"priority": 1, "tags": {"a": "b"}}], ids=["alike", "different"])
def test_more_jobs_than_one_statement_stores_are_stored_alike(options: dict[str, Any]) -> None:
    jobs: list[tuple[str, dict[str, Any]]] = [("send", options if number % 2 else {}) for number in range(45)]
    compare([("enqueue_many", jobs), ("claim", 45, {}), ("settle", 45, Done())])


LANES = ["default", "other", "third"]
KINDS = [f"kind-{number}" for number in range(20)]


def test_claims_tell_whether_all_of_their_jobs_are_usual(tmp_path: Path) -> None:
    with queue_on(SqliteStore(str(tmp_path / "jobs.db"), relaxed=True)) as queue:
        queue.enqueue_many([NewJob("kind")] * 4)
        usual = [*queue.claim_many(limit=2), *queue.claim_many(limit=2)]
        queue.enqueue_many([NewJob("kind"), NewJob("kind", tags={"a": "b"})])
        varied = queue.claim_many(limit=2)

    assert are_usual(usual)
    assert not are_usual([*usual, *varied])
    assert not are_usual([Claim(usual[0].job, 1_000)])


def varied_jobs(count: int) -> list[NewJob]:
    return [
        NewJob(KINDS[number % 20], lane=LANES[number % 20 % 3], tenant=f"tenant-{number % 100}")
        for number in range(count)
    ]


@pytest.mark.parametrize("limit", [1, 8])
def test_most_claims_of_a_worker_with_many_kinds_lanes_and_tenants_are_plain(tmp_path: Path, limit: int) -> None:
    store = SqliteStore(str(tmp_path / "jobs.db"), relaxed=True)
    with queue_on(store) as queue:
        queue.enqueue_many(varied_jobs(300))
        settled: list[int] = []
        while claims := queue.claim_many(limit=limit, lanes=LANES, kinds=KINDS, worker="w"):
            queue.settle_many([(claim, Done()) for claim in claims])
            settled += [claim.job.number for claim in claims]

    assert sorted(settled) == list(range(1, 301))
    assert store.forms["enqueue plain"] == store.forms["settle plain"] == 300
    assert store.forms["claim plain"] >= 0.9 * (store.forms["claim plain"] + store.forms["claim full"])
    assert store.forms["claim full"] <= 2  # the first claim of this opened queue, and the last


def test_a_claim_looks_for_other_tenants_only_if_there_were_some(tmp_path: Path) -> None:
    seen: list[str] = []
    with queue_on(SqliteStore(str(tmp_path / "jobs.db"), relaxed=True, observe=seen.append)) as queue:

        def tenants(*expected: str) -> list[str]:
            """Claim two jobs, and return the queries that looked for them."""
            seen.clear()
            found = queue.claim_many(limit=2, worker="w")
            assert [claim.job.tenant for claim in found] == list(expected)
            return [name for name in seen if name.startswith("ready_plain")]

        queue.enqueue_many([NewJob("a", tenant=tenant) for tenant in ("x", "x", "x", "x", "x", "x", "x", "y", "y")])
        assert tenants("x", "y") == ["ready_plain_lone", "ready_plain_stream"]
        assert tenants("x", "y") == ["ready_plain_stream"]
        assert tenants("x", "x") == ["ready_plain_stream"]
        assert tenants("x", "x") == ["ready_plain_lone"]


@pytest.mark.parametrize("limit", [1, 8])
def test_claims_of_jobs_whose_limits_are_not_reached_are_plain_until_one_is(tmp_path: Path, limit: int) -> None:
    store = SqliteStore(str(tmp_path / "jobs.db"), relaxed=True)
    with queue_on(store) as queue:
        queue.limits.set("all", kinds=["send"], concurrency=limit + 1)
        queue.limits.set("rate", kinds=["send"], key="tenant", rate=1_000, per=1)
        queue.enqueue_many([NewJob("send", tenant=f"tenant-{number % 5}") for number in range(80)])
        claims = queue.claim_many(limit=limit, worker="w")
        for _ in range(5):
            queue.settle_many([(claim, Done()) for claim in claims])
            claims = queue.claim_many(limit=limit, worker="w")
        assert store.forms["claim full"] <= 1
        assert store.forms["settle full"] == 0
        # With one more running, a whole batch has no room.
        assert len(queue.claim_many(limit=limit, worker="w")) == 1
        assert queue.claim_many(limit=limit, worker="w") == []
        assert queue.counts()["running"] == limit + 1


def test_most_claims_of_a_worker_that_runs_them_are_plain(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "jobs.db"), relaxed=True)
    with queue_on(store) as queue:
        for kind in KINDS:
            queue.task(kind)(_handler())
        queue.enqueue_many(varied_jobs(600))
        with Worker(queue, lanes=LANES, concurrency=8).running():
            deadline = time.monotonic() + 60
            while queue.counts().get("done", 0) < 600 and time.monotonic() < deadline:
                time.sleep(0.01)

    assert store.forms["settle plain"] >= 540
    assert store.forms["claim plain"] >= 0.9 * (store.forms["claim plain"] + store.forms["claim full"])


def _handler() -> Callable[[], None]:
    def handler() -> None:
        time.sleep(0.002)

    return handler


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
