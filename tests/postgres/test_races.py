"""Races of two transactions, each decided one way: the first stops before its commit, then the second begins."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

import holdfast
from holdfast import Conflict, Done, Failed, JobNotFound, LeaseLost, NewJob
from holdfast.client.connect import queue_on
from holdfast.domain.clock import Now
from holdfast.domain.outcomes import CheckedOutcome
from holdfast.operations import gates
from holdfast.storage.postgres import plain_forms, sql
from holdfast.storage.postgres.store import PostgresStore
from holdfast.storage.postgres.transaction import PostgresTransaction
from tests.support.claims import claim_ids, claim_one
from tests.support.clock import ManualClock
from tests.support.slow_client import Slow

# A job with a dedupe key is settled by several statements, so that another call can begin between them.
KEY = "key"


class Racers:
    """Two clients with one clock, of which the first is slow."""

    def __init__(self, url: str, schema: str) -> None:
        self.clock = ManualClock()
        self.slow = Slow(url, schema, self.clock)
        self.queue = queue_on(PostgresStore(url, schema=schema, clock=self.clock))

    def failed(self) -> str:
        """Return the id of a job that has failed."""
        made = self.queue.enqueue("mail", max_attempts=1)
        self.queue.settle(claim_one(self.queue), Failed("no"))
        return made.id


@pytest.fixture
def racers(url: str, schema: str, queue: holdfast.Queue) -> Iterator[Racers]:
    queue.migrate()
    made = Racers(url, schema)
    yield made
    made.slow.queue.close()
    made.queue.close()


class TestSettleAgainstExpiry:
    def test_a_settlement_waits_for_a_claim_that_takes_the_job_back_and_is_refused(self, racers: Racers) -> None:
        made = racers.queue.enqueue("mail")
        claim = claim_one(racers.queue, lease=10)
        racers.clock.advance(11)
        taken: list[str] = []

        def settle() -> object:
            with pytest.raises(LeaseLost):
                racers.queue.settle(claim, Done())
            return "refused"

        assert racers.slow.during(lambda slow: taken.extend(claim_ids(slow)), settle) == "refused"
        assert (taken, racers.queue.get(made.id).state, racers.queue.get(made.id).epoch) == ([made.id], "running", 2)

    def test_a_claim_passes_a_job_that_is_being_settled_before_its_lease_ends(self, racers: Racers) -> None:
        made = racers.queue.enqueue("mail", dedupe_key=KEY)
        claim = claim_one(racers.queue, lease=10)
        settling = racers.slow.begin(lambda slow: slow.settle(claim, Done()))
        racers.clock.advance(11)

        assert claim_ids(racers.queue) == []
        racers.slow.go_on()
        assert settling.result().state == "done"
        assert claim_ids(racers.queue) == []
        assert (racers.queue.get(made.id).state, racers.queue.get(made.id).attempt) == ("done", 1)


def test_of_two_claims_the_second_takes_what_the_first_has_not(racers: Racers) -> None:
    racers.failed()  # the first claim of all stores which tenant is served, and others wait for that once
    first, second = racers.queue.enqueue("mail"), racers.queue.enqueue("mail")
    claiming = racers.slow.begin(claim_one)

    assert claim_ids(racers.queue, 2) == [second.id]
    racers.slow.go_on()
    assert claiming.result().job.id == first.id


def test_a_claim_at_a_gate_that_another_has_locked_starts_no_job_too_many_and_none_is_left_behind(
    racers: Racers,
) -> None:
    racers.queue.limits.set("one", kinds=["mail"], concurrency=1)
    racers.failed()
    first, second = racers.queue.enqueue("mail"), racers.queue.enqueue("mail")
    claiming = racers.slow.begin(claim_one)

    # It waits for the gate a little, and then parks the job.
    assert claim_ids(racers.queue, 2) == []
    assert racers.queue.get(second.id).state == "parked"
    racers.slow.go_on()
    assert claiming.result().job.id == first.id
    racers.clock.advance(1)
    assert claim_ids(racers.queue, 2) == []
    racers.queue.settle(claiming.result(), Done())
    assert claim_ids(racers.queue, 2) == [second.id]


def test_a_job_that_was_parked_at_a_locked_gate_is_found_again_although_nothing_ends_there(
    racers: Racers, url: str, schema: str
) -> None:
    racers.queue.limits.set("one", kinds=["mail"], concurrency=1)
    racers.failed()
    # It folds the wake row of that end.
    assert claim_ids(racers.queue, 1) == []
    made = racers.queue.enqueue("mail")
    with psycopg.connect(url) as connection:
        connection.execute(f"select 1 from {schema}.gate for update".encode())
        assert claim_ids(racers.queue, 1) == []
        connection.rollback()
    assert racers.queue.get(made.id).state == "parked"
    racers.clock.advance(1)
    assert claim_ids(racers.queue, 1) == [made.id]


def test_an_end_at_a_gate_that_is_locked_when_a_claim_looks_is_not_forgotten(
    racers: Racers, url: str, schema: str
) -> None:
    racers.queue.limits.set("one", kinds=["mail"], concurrency=1)
    racers.queue.enqueue("mail")
    running = claim_one(racers.queue)
    made = racers.queue.enqueue("mail")
    assert claim_ids(racers.queue, 1) == []
    assert racers.queue.get(made.id).state == "parked"
    racers.queue.settle(running, Done())
    with psycopg.connect(url) as connection:
        connection.execute(f"select 1 from {schema}.gate for update".encode())
        assert claim_ids(racers.queue, 1) == []
        connection.rollback()
    racers.clock.advance(1)
    assert claim_ids(racers.queue, 1) == [made.id]


def test_a_gate_that_was_idle_until_a_claim_counted_a_job_there_is_not_deleted(
    racers: Racers, url: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = racers.queue
    queue.limits.set("one", kinds=["mail"], concurrency=1)
    racers.failed()
    assert claim_ids(queue, 1) == []  # it folds the wake row of that end
    queue.enqueue_many([NewJob("mail", job_id=name) for name in "ab"])
    started: list[str] = []

    async def idle_gates(tx: PostgresTransaction, now: Now, limit: int) -> list[int]:
        # The statement reads what was committed before it, and locks what it has found later.
        found = [gate.number for gate in await tx.gates_of_key("all")]
        started.extend(claim_ids(queue, 1))
        return list(await tx.lock_gates(found, 0))

    monkeypatch.setattr(PostgresTransaction, "idle_gates", idle_gates)
    with queue_on(PostgresStore(url, schema=schema, clock=racers.clock)) as other:
        other.admin.prune(older_than=3_600)
    monkeypatch.undo()
    assert started == ["a"]
    assert claim_ids(queue, 1) == []


def test_a_new_limit_counts_a_job_that_reports_its_progress_at_that_moment(
    racers: Racers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gates, "_WAIT_MS", 60_000)
    racers.queue.enqueue("mail")
    claim = claim_one(racers.queue)

    racers.slow.during(
        lambda slow: slow.progress(claim, percent=50),
        lambda: racers.queue.limits.set("one", kinds=["mail"], concurrency=1),
    )
    racers.queue.enqueue("mail")
    assert claim_ids(racers.queue) == []


def test_a_new_limit_does_not_wait_for_a_job_that_is_locked_for_long(racers: Racers) -> None:
    racers.queue.enqueue("mail")
    claim = claim_one(racers.queue)
    reporting = racers.slow.begin(lambda slow: slow.progress(claim, percent=50))

    racers.queue.limits.set("one", kinds=["mail"], concurrency=1)
    racers.slow.go_on()
    reporting.result()
    assert racers.queue.limits.get("one").concurrency == 1


def test_a_claim_finds_a_job_of_a_transaction_that_was_open_during_earlier_claims(racers: Racers) -> None:
    racers.failed()
    with racers.slow.queue.transaction() as tx:
        late = tx.enqueue("mail")
        for _ in range(4):
            # Claims of later jobs, and claims that find nothing, remember where the route begins.
            racers.clock.advance(0.3)
            racers.queue.enqueue("mail")
            assert len(claim_ids(racers.queue, 5)) == 1
            assert claim_ids(racers.queue, 5) == []
        racers.slow.go_on()
    assert claim_ids(racers.queue, 5) == [late.id]
    assert claim_ids(racers.queue, 5) == []


class TestCancelAgainstSettle:
    def test_a_settlement_waits_for_a_forced_cancel_and_is_refused(self, racers: Racers) -> None:
        made = racers.queue.enqueue("mail")
        claim = claim_one(racers.queue)

        def settle() -> object:
            with pytest.raises(LeaseLost):
                racers.queue.settle(claim, Done())
            return "refused"

        assert racers.slow.during(lambda slow: slow.cancel(made.id, force=True), settle) == "refused"
        assert racers.queue.get(made.id).state == "cancelled"

    def test_a_forced_cancel_waits_for_a_settlement_and_is_refused(self, racers: Racers) -> None:
        made = racers.queue.enqueue("mail", dedupe_key=KEY)
        claim = claim_one(racers.queue)

        def cancel() -> object:
            with pytest.raises(Conflict):
                racers.queue.cancel(made.id, force=True)
            return "refused"

        assert racers.slow.during(lambda slow: slow.settle(claim, Done()), cancel) == "refused"
        assert racers.queue.get(made.id).state == "done"


def test_of_two_requeues_of_one_job_the_second_is_refused(racers: Racers) -> None:
    failed = racers.failed()

    def requeue() -> object:
        with pytest.raises(Conflict):
            racers.queue.requeue(failed)
        return "refused"

    assert racers.slow.during(lambda slow: slow.requeue(failed), requeue) == "refused"
    assert claim_ids(racers.queue, 5) == [failed]


class TestRetentionAgainstRequeue:
    def test_a_job_that_is_being_requeued_is_not_deleted(self, racers: Racers) -> None:
        failed = racers.failed()
        racers.clock.advance(100)
        requeuing = racers.slow.begin(lambda slow: slow.requeue(failed))

        racers.slow.go_on()
        pruned = racers.queue.admin.prune(older_than=50)
        assert requeuing.result().state == "ready"
        assert racers.queue.admin.prune(older_than=50).jobs + pruned.jobs == 0
        assert claim_ids(racers.queue) == [failed]

    def test_a_requeue_waits_for_a_deletion_and_finds_nothing(self, racers: Racers) -> None:
        failed = racers.failed()
        racers.clock.advance(100)

        def requeue() -> object:
            with pytest.raises(JobNotFound):
                racers.queue.requeue(failed)
            return "not found"

        assert (
            racers.slow.during(lambda slow: slow.admin.prune(older_than=50, states=["failed"]), requeue)
            == "not found"
        )


def test_a_reader_sees_all_events_or_learns_that_some_were_deleted(racers: Racers) -> None:
    for _ in range(3):
        racers.failed()
    before = racers.queue.events(limit=1)
    racers.clock.advance(100)
    racers.failed()
    pruning = racers.slow.begin(lambda slow: slow.admin.prune(older_than=50))

    assert len(racers.queue.events(after=before.cursor).events) == 3
    racers.slow.go_on()
    assert pruning.result().events == 3
    with pytest.raises(holdfast.errors.HoldfastError):
        racers.queue.events(after=before.cursor)


def test_of_a_claim_that_two_calls_settle_in_parts_nothing_is_left_after_its_lease(
    racers: Racers, url: str, schema: str
) -> None:
    racers.queue.enqueue("mail", dedupe_key=KEY)
    racers.queue.enqueue("mail")
    first, second = racers.queue.claim_many(limit=2, lease=10)
    settling = racers.slow.begin(lambda slow: slow.settle(first, Done()))
    racers.queue.settle(second, Done())
    racers.slow.go_on()
    assert settling.result().state == "done"
    racers.clock.advance(11)

    assert claim_ids(racers.queue) == []
    with psycopg.connect(url) as connection:
        assert connection.execute(f"select count(*) from {schema}.lease".encode()).fetchall() == [(0,)]


def test_a_lease_that_was_extended_is_not_taken_back_when_its_claim_is_looked_at(racers: Racers) -> None:
    made = racers.queue.enqueue("mail")
    claim = claim_one(racers.queue, lease=10)
    racers.queue.heartbeat(claim, lease=20)
    racers.clock.advance(11)
    looking = racers.slow.begin(claim_ids)
    assert claim_ids(racers.queue) == []
    racers.slow.go_on()
    assert looking.result() == []
    racers.clock.advance(10)
    assert claim_ids(racers.queue) == [made.id]


@pytest.mark.parametrize("claims_next", [False, True], ids=["settle", "settle and claim"])
def test_of_a_claim_that_expired_in_part_the_rest_is_settled(racers: Racers, claims_next: bool) -> None:
    racers.queue.enqueue_many([NewJob("mail", job_id=name) for name in "abc"])
    claims = racers.queue.claim_many(limit=3, lease=10)
    racers.queue.heartbeat(claims[1], lease=60)
    racers.clock.advance(11)
    taking = racers.slow.begin(lambda slow: slow.claim_many(limit=1))
    racers.slow.go_on()
    assert [claim.job.id for claim in taking.result()] == ["a"]

    pairs = [(claim, Done()) for claim in claims]
    if claims_next:
        settlements = racers.queue.settle_and_claim(pairs, limit=1).settlements
    else:
        settlements = racers.queue.settle_many(pairs)
    assert [type(one.error) for one in settlements] == [LeaseLost, type(None), LeaseLost]
    assert [racers.queue.get(name).state for name in "ab"] == ["running", "done"]
    assert racers.queue.get("c").state == ("running" if claims_next else "ready")


class TestEndsAgainstParking:
    """One job may run at once; another is parked while the first one ends."""

    @pytest.fixture
    def claim(self, racers: Racers) -> holdfast.Claim:
        racers.queue.limits.set("one", kinds=["mail"], concurrency=1)
        racers.queue.enqueue_many([NewJob("mail", job_id=name) for name in "ab"])
        return claim_one(racers.queue)

    def test_a_job_that_is_parked_while_another_ends_starts_after_it(
        self, racers: Racers, claim: holdfast.Claim, url: str, schema: str
    ) -> None:
        text, values = plain_forms.settling([(claim, CheckedOutcome(Done(), "", None))], ())
        clock = {"clock_ms": racers.clock.now().wall_ms, "lease_clock_ms": racers.clock.now().lease_ms}
        with psycopg.connect(url) as connection:
            # A plain form is one message: only another client can stop before its commit.
            connection.execute(sql.texts(schema).writing[text].encode(), {**values, **clock})
            assert claim_ids(racers.queue) == []
            assert racers.queue.get("b").state == "parked"
        racers.clock.advance(1)
        assert claim_ids(racers.queue) == ["b"]

    def test_an_end_waits_for_a_claim_that_parks_a_job_and_wakes_it(
        self, racers: Racers, claim: holdfast.Claim
    ) -> None:
        racers.slow.during(claim_ids, lambda: racers.queue.settle(claim, Done()))
        assert racers.queue.get("b").state == "parked"
        assert claim_ids(racers.queue) == ["b"]

    def test_a_job_that_is_parked_during_a_callers_long_transaction_starts_after_it(
        self, racers: Racers, claim: holdfast.Claim, url: str
    ) -> None:
        with psycopg.connect(url) as connection:
            racers.queue.within(connection).settle(claim, Done())
            assert claim_ids(racers.queue) == []
            assert racers.queue.get("b").state == "parked"
        assert claim_ids(racers.queue) == ["b"]


@pytest.mark.parametrize("waiting", ["a job", "a job that comes later", "a group"])
def test_two_parents_that_end_together_in_long_transactions_are_both_counted(
    racers: Racers, url: str, waiting: str
) -> None:
    queue = racers.queue
    queue.enqueue_many([NewJob("mail", job_id=name, dedupe_key=name) for name in "ab"])
    claims = queue.claim_many(limit=2)
    if waiting == "a job":
        queue.enqueue("child", after=["a", "b"])
    elif waiting == "a group":
        with queue.group("both", on_success={"kind": "child"}) as group:
            for name in "ab":
                group.enqueue("mail", dedupe_key=name)
    assert claim_ids(queue) == []
    with psycopg.connect(url) as first, psycopg.connect(url) as second:
        queue.within(first).settle(claims[0], Done())
        if waiting == "a job that comes later":
            queue.enqueue("child", after=["a", "b"])
        queue.within(second).settle(claims[1], Done())
        assert claim_ids(queue) == []
        first.commit()
        racers.clock.advance(1)
        assert claim_ids(queue) == []
        second.commit()
    racers.clock.advance(1)
    assert [claim.job.kind for claim in queue.claim_many(limit=2)] == ["child"]
