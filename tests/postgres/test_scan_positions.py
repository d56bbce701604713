"""Scan positions let claims skip index entries of claimed jobs, and hide no ready job."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import psycopg
import pytest

import holdfast
from holdfast import Claim, Done, Queue
from holdfast.storage.postgres import scan_positions
from holdfast.storage.postgres.scan_positions import DueWatermarks, ReadyFloors, ScanPositions
from tests.support.clock import ManualClock
from tests.support.index_reads import entries_read, wait_for_ends
from tests.support.job_states import claimed

BATCH = 10


@pytest.fixture
def marked(queue: holdfast.Queue) -> holdfast.Queue:
    """A queue whose client knows the scan position of its route: some jobs are claimed, and enough are ready."""
    queue.enqueue_many([{"kind": "mail", "payload": number} for number in range(5 * BATCH)])
    assert len(queue.claim_many(limit=BATCH)) == BATCH
    return queue


@pytest.fixture
def pinned(url: str, schema: str) -> Iterator[None]:
    """An open transaction that keeps the server from removing dead rows."""
    with psycopg.connect(url) as connection:
        connection.execute("set transaction isolation level repeatable read")
        connection.execute("select pg_current_xact_id()")
        yield


READY = ("ready_job_order",)
BY_NUMBER = (*READY, "ready_job_pkey", "ready_job_again")
JOBS = ("job_pkey",)
RUNNING = ("lease_until", "lease_pkey")


def read_by_second(url: str, schema: str, indexes: Sequence[str] = READY, clock: ManualClock | None = None) -> int:
    """Return how many entries a claim reads that follows another claim of its client."""
    counts = []
    for claims in (1, 2):
        wait_for_ends(url)
        before = entries_read(url, schema, indexes)
        # A client reports its statistics when it disconnects, and a new one has no scan positions.
        with holdfast.connect(url, schema=schema, clock=clock) as client:
            for _ in range(claims):
                client.claim_many(limit=BATCH)
        wait_for_ends(url)
        counts.append(entries_read(url, schema, indexes) - before)
    return counts[1] - counts[0]


def test_a_claim_does_not_walk_through_what_was_claimed_under_a_pinned_snapshot(
    pinned: None, url: str, schema: str, queue: holdfast.Queue
) -> None:
    queue.enqueue_many([{"kind": "mail", "payload": number} for number in range(3_000)])
    for _ in range(20):
        queue.settle_many([(claim, Done()) for claim in queue.claim_many(limit=100)])
    queue.close()
    # The first claim reads everything; the next one starts where it ended.
    assert read_by_second(url, schema) < 200


def test_without_marks_a_claim_would_walk_through_all_of_it(
    pinned: None, url: str, schema: str, queue: holdfast.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ScanPositions, "of", lambda _marks, _routes: {})
    queue.enqueue_many([{"kind": "mail", "payload": number} for number in range(3_000)])
    for _ in range(20):
        queue.settle_many([(claim, Done()) for claim in queue.claim_many(limit=100)])
    queue.close()
    assert read_by_second(url, schema) > 2_000


def test_a_claim_does_not_look_up_the_jobs_that_an_open_transaction_claims(
    url: str, schema: str, queue: holdfast.Queue
) -> None:
    # So many that the claim does not read them by number.
    made = queue.enqueue_many([{"kind": "mail", "payload": number} for number in range(1_000)])
    held = [one.job.number for one in made[1:101]]
    before = entries_read(url, schema, JOBS)
    queue.settle_many([(claim, Done()) for claim in queue.claim_many(limit=1)])
    with psycopg.connect(url) as claiming:
        claiming.execute(f"select from {schema}.job where seq = any (%s) for update".encode(), [held])
        claiming.execute(f"select {schema}.take_1('other', 'token', 1, %s)".encode(), [held])
        [claim] = queue.claim_many(limit=1)
        queue.close()
        wait_for_ends(url)
        assert entries_read(url, schema, JOBS) - before < 20
        claiming.rollback()
    assert claim.job.number == held[-1] + 1


@pytest.fixture
def expired(pinned: None, url: str, schema: str) -> ManualClock:
    """Create expired leases of settled jobs whose index entries the server must keep; return the time."""
    clock = ManualClock()
    with holdfast.connect(url, schema=schema, clock=clock) as queue:
        queue.enqueue_many([{"kind": "mail", "payload": number} for number in range(500)])
        done: list[tuple[holdfast.Claim, Done]] = []
        # One claim for each job.
        for _ in range(300):
            done = [(claim, Done()) for claim in queue.settle_and_claim(done, limit=1).claims]
        queue.settle_many(done)
    with psycopg.connect(url, autocommit=True) as connection:
        # The statistics now say that hardly any job runs; the planner must not choose a scan of running jobs.
        connection.execute(f"analyze {schema}.lease".encode())
        # The first claim would also read entries of earlier tests, and mark them so that later claims skip them.
        connection.execute(f"reindex table {schema}.lease".encode())
    clock.advance(3600)
    return clock


def test_a_claim_does_not_walk_through_the_leases_of_settled_jobs(
    expired: ManualClock, url: str, schema: str
) -> None:
    assert read_by_second(url, schema, RUNNING, expired) < 30


def test_without_a_memory_of_moments_a_claim_would_walk_through_all_of_them(
    expired: ManualClock, url: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DueWatermarks, "start_times", lambda _watermarks, thorough: {"wall_low": -1, "lease_low": -1})
    assert read_by_second(url, schema, RUNNING, expired) == 300


def test_a_lease_that_expired_before_it_was_seen_is_taken_back_by_a_claim_that_comes_up_short(
    url: str, schema: str
) -> None:
    clock = ManualClock()
    with holdfast.connect(url, schema=schema, clock=clock) as queue:
        queue.enqueue_many([{"kind": "mail", "payload": number} for number in range(3)])
        lost = claimed(queue, worker="slow", lease=600).job
        assert len(queue.claim_many(limit=1)) == 1
        with psycopg.connect(url, autocommit=True) as connection:
            # As if it was committed long after it was written.
            past = clock.now().lease_ms - 1000
            connection.execute(f"update {schema}.job set lease_until_ms = {past} where id = %s".encode(), [lost.id])
            connection.execute(f"update {schema}.lease set until_ms = {past} where worker = 'slow'".encode())
        found = queue.claim_many(limit=BATCH)
        assert lost.id in [claim.job.id for claim in found]
        assert len(found) == 2


def test_what_commits_late_before_the_mark_is_found_by_a_claim_that_comes_up_short(
    url: str, schema: str, queue: holdfast.Queue
) -> None:
    queue.cancel(queue.enqueue("mail").id)
    with holdfast.connect(url, schema=schema) as other, other.transaction() as late:
        first = late.enqueue("mail", "late")
        queue.enqueue_many([{"kind": "mail", "payload": number} for number in range(BATCH + 3)])
        assert len(queue.claim_many(limit=BATCH)) == BATCH
    found = [claim.job.id for claim in queue.claim_many(limit=BATCH)]
    assert found[0] == first.id
    assert len(found) == 4


def test_what_was_given_back_before_the_mark_is_found_by_a_claim_that_comes_up_short(
    url: str, schema: str, queue: holdfast.Queue
) -> None:
    queue.enqueue_many([{"kind": "mail", "payload": number} for number in range(3 * BATCH)])
    with holdfast.connect(url, schema=schema) as other, psycopg.connect(url) as hand:
        # Another transaction locks the first jobs, and finally does not take them.
        hand.execute(f"select seq from {schema}.job order by seq limit {BATCH} for update".encode())
        assert len(queue.claim_many(limit=BATCH)) == BATCH
        hand.rollback()
        assert len(queue.claim_many(limit=3 * BATCH)) == 2 * BATCH
        assert other.claim() is None


def test_a_more_urgent_job_is_never_behind_the_mark(marked: holdfast.Queue) -> None:
    urgent = marked.enqueue("mail", "urgent", priority=1)
    assert claimed(marked).job.id == urgent.id


def test_a_less_urgent_job_comes_after_all_behind_the_mark(marked: holdfast.Queue) -> None:
    later = marked.enqueue("mail", "later", priority=-1)
    claims = marked.claim_many(limit=5 * BATCH)
    assert [claim.job.id for claim in claims][-1:] == [later.id]
    assert len(claims) == 4 * BATCH + 1


def test_what_becomes_ready_again_is_claimed_though_the_mark_has_passed_it(queue: holdfast.Queue) -> None:
    made = queue.enqueue_many([{"kind": "mail", "payload": number} for number in range(3 * BATCH)])
    first = queue.claim_many(limit=BATCH)
    queue.claim_many(limit=BATCH)
    queue.settle_many([(claim, holdfast.Released()) for claim in first])
    rest = queue.claim_many(limit=5 * BATCH)
    assert {claim.job.id for claim in first} <= {claim.job.id for claim in rest}
    assert len(rest) == len(made) - BATCH


def test_another_tenant_of_a_fair_lane_is_reached_by_a_claim_that_comes_up_short(marked: holdfast.Queue) -> None:
    other = marked.enqueue("mail", "of another", tenant="a")
    found = [claim.job.id for claim in marked.claim_many(limit=5 * BATCH)]
    assert other.id in found


def test_several_routes_are_each_marked(queue: holdfast.Queue) -> None:
    kinds = [f"kind{number}" for number in range(4)]
    queue.enqueue_many([{"kind": kinds[number % 4], "payload": number} for number in range(80)])
    taken = [claim.job.payload for _ in range(8) for claim in queue.claim_many(limit=BATCH)]
    assert taken == list(range(80))
    assert queue.claim() is None


# --- claims that get fewer jobs than requested ---------------------------------------------------------------------


@pytest.fixture(params=["reads", "has a number"])
def held_open(request: pytest.FixtureRequest, url: str, schema: str) -> Iterator[None]:
    """An open transaction that has only read, or that has written too, though no jobs."""
    with psycopg.connect(url) as connection:
        connection.execute("set transaction isolation level repeatable read")
        connection.execute("select 1" if request.param == "reads" else "select pg_current_xact_id()")
        yield


def _claim_short(client: holdfast.Queue, clock: ManualClock) -> list[str]:
    """Enqueue one job and claim more than that; the jobs of the next call are due later."""
    client.enqueue("mail")
    clock.advance(10)
    return [claim.job.id for claim in client.claim_many(limit=BATCH, lease=3600)]


def test_a_claim_that_comes_up_short_does_not_walk_through_what_was_claimed(
    held_open: None, url: str, schema: str
) -> None:
    clock = ManualClock()
    with holdfast.connect(url, schema=schema, clock=clock) as queue:
        queue.enqueue_many([{"kind": "mail", "payload": number} for number in range(3_000)])
        for _ in range(30):
            queue.settle_many([(claim, Done()) for claim in queue.claim_many(limit=100)])
    clock.advance(10)
    counts = []
    # The first ones until it has seen that all transactions before one of them have ended.
    for claims in (6, 7):
        wait_for_ends(url)
        before = entries_read(url, schema, BY_NUMBER)
        with holdfast.connect(url, schema=schema, clock=clock) as client:
            for _ in range(claims):
                assert len(_claim_short(client, clock)) == 1
        wait_for_ends(url)
        counts.append(entries_read(url, schema, BY_NUMBER) - before)
    assert counts[0] > 2_000, "a new client reads everything once"
    assert counts[1] - counts[0] < 200


@pytest.fixture
def with_floor(url: str, schema: str) -> Iterator[tuple[holdfast.Queue, ManualClock]]:
    """A client that knows before which time its route has no jobs, and its clock."""
    clock = ManualClock()
    with holdfast.connect(url, schema=schema, clock=clock) as client:
        for _ in range(6):
            _claim_short(client, clock)
        yield client, clock


def test_a_job_of_a_transaction_open_for_long_is_found_when_it_commits(
    url: str, schema: str, with_floor: tuple[holdfast.Queue, ManualClock]
) -> None:
    client, clock = with_floor
    with holdfast.connect(url, schema=schema, clock=clock) as other, other.transaction() as late:
        made = late.enqueue("mail")
        clock.advance(60)
        for _ in range(4):
            assert made.id not in _claim_short(client, clock)
    assert made.id in [claim.job.id for claim in client.claim_many(limit=BATCH)]


def test_a_job_that_was_due_long_ago_and_becomes_claimable_is_found(
    url: str, schema: str, with_floor: tuple[holdfast.Queue, ManualClock]
) -> None:
    client, clock = with_floor
    made = client.enqueue("mail", priority=-1)
    with holdfast.connect(url, schema=schema, clock=clock) as other:
        with psycopg.connect(url) as hand:
            hand.execute(f"select seq from {schema}.job where id = %s for update".encode(), [made.id])
            for _ in range(4):
                assert made.id not in _claim_short(client, clock)
        other.reprioritize(made.id, 0)
        assert made.id in [claim.job.id for claim in client.claim_many(limit=BATCH)]


def test_a_released_job_that_was_due_long_ago_is_found(
    url: str, schema: str, with_floor: tuple[holdfast.Queue, ManualClock]
) -> None:
    client, clock = with_floor
    client.enqueue("mail")
    held = claimed(client, lease=3600)
    for _ in range(4):
        _claim_short(client, clock)
    with holdfast.connect(url, schema=schema, clock=clock) as other:
        other.settle(held, holdfast.Released())
    assert held.job.id in [claim.job.id for claim in client.claim_many(limit=BATCH)]


def _analyze(url: str, schema: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for table in ("ready_job", "open_job", "job", "lease"):
            connection.execute(f"analyze {schema}.{table}".encode())


@pytest.mark.parametrize("limit", [None, 1_000], ids=["no limit", "a limit by key"])
def test_a_claim_reads_no_more_if_the_statistics_say_that_no_job_is_unfinished(
    url: str, schema: str, limit: int | None
) -> None:
    with holdfast.connect(url, schema=schema) as queue:
        if limit is not None:
            queue.limits.set("all", kinds=["mail"], concurrency=limit)
        queue.enqueue_many([{"kind": "mail"} for _ in range(BATCH)])
        queue.settle_many([(claim, Done()) for claim in queue.claim_many(limit=BATCH)])
        _analyze(url, schema)
        queue.enqueue_many([{"kind": "mail", "payload": number} for number in range(2_000)])
    wait_for_ends(url)
    indexes = (*BY_NUMBER, "job_pkey")
    before = entries_read(url, schema, indexes)
    with holdfast.connect(url, schema=schema) as client:
        for _ in range(5):
            assert len(client.claim_many(limit=BATCH)) == BATCH
    wait_for_ends(url)
    # Now and then a claim looks whether few jobs are ready, at 520 entries; all five would read 10,000 and more.
    assert entries_read(url, schema, indexes) - before < 4_000


@pytest.mark.parametrize("limit", [None, 1_000], ids=["no limit", "a limit by key"])
def test_a_call_reads_no_more_if_the_statistics_say_that_there_is_no_job(
    url: str, schema: str, limit: int | None
) -> None:
    clock = ManualClock()
    with holdfast.connect(url, schema=schema, clock=clock) as queue:
        if limit is not None:
            queue.limits.set("all", kinds=["mail"], concurrency=limit)
        queue.enqueue_many([{"kind": "mail"} for _ in range(500)])
        queue.settle_many([(claim, Done()) for claim in queue.claim_many(limit=500)])
        clock.advance(1)
        assert queue.admin.prune(older_than=0).jobs == 500
        _analyze(url, schema)
        queue.enqueue_many([{"kind": "mail", "payload": number} for number in range(2_000)])
    claims: list[Claim] = []
    calls: dict[str, Callable[[Queue], object]] = {
        "claim": lambda client: claims.extend(client.claim_many(limit=5 * BATCH)),
        "heartbeat": lambda client: client.heartbeat_many(claims),
        "settle": lambda client: client.settle_many([(claim, Done()) for claim in claims]),
    }
    wait_for_ends(url)
    for name, call in calls.items():
        before = entries_read(url, schema, ["job_pkey"])
        with holdfast.connect(url, schema=schema, clock=clock) as client:
            call(client)
        wait_for_ends(url)
        assert entries_read(url, schema, ["job_pkey"]) - before < 1_000, name
    assert len(claims) == 5 * BATCH


# --- many tenants, priorities and kinds ----------------------------------------------------------------------------

TENANTS = [f"tenant{number:03}" for number in range(100)]


def _enqueue_for_all(client: holdfast.Queue) -> None:
    client.enqueue_many(
        [
            {"kind": f"mail{number % 3}", "tenant": tenant, "priority": number % 2}
            for number, tenant in enumerate(TENANTS)
        ]
    )


@pytest.fixture(params=["with floors", "without"])
def uses_floors(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether claims start at floors."""
    # Look each time at the transactions that are open for long.
    monkeypatch.setattr(scan_positions, "_EXAMINE_SECONDS", 0.0)
    if request.param == "without":
        monkeypatch.setattr(ReadyFloors, "raise_to", lambda *_args, **_options: None)
    return bool(request.param == "with floors")


@pytest.mark.parametrize(
    ("left", "limits"), [(0, (60, 60, 60)), (1, (len(TENANTS),))], ids=["gets fewer than requested", "leaves jobs"]
)
def test_a_claim_that_keeps_up_does_not_walk_through_what_was_claimed_of_many_tenants(
    held_open: None, uses_floors: bool, left: int, limits: tuple[int, ...], url: str, schema: str
) -> None:
    clock = ManualClock()
    with holdfast.connect(url, schema=schema, clock=clock) as queue:
        for _ in range(20):
            _enqueue_for_all(queue)
        while claims := queue.claim_many(limit=500):
            queue.settle_many([(claim, Done()) for claim in claims])
        # As autovacuum may at any time: the statistics say that no job is ready.
        _analyze(url, schema)
        for _ in range(left):
            _enqueue_for_all(queue)
    counts = []
    for rounds in (3, 12):
        clock.advance(10)
        wait_for_ends(url)
        before = entries_read(url, schema, BY_NUMBER)
        with holdfast.connect(url, schema=schema, clock=clock) as client:
            for _ in range(rounds):
                _enqueue_for_all(client)
                clock.advance(10)
                # As many as arrive.
                assert sum(len(client.claim_many(limit=limit, lease=3600)) for limit in limits) == len(TENANTS)
        wait_for_ends(url)
        counts.append(entries_read(url, schema, BY_NUMBER) - before)
    assert counts[0] > 2_000, "a new client reads everything once"
    # With floors, each further round reads what is new; the start reads what the rounds before have left.
    assert (counts[1] < (2 + left) * counts[0]) is uses_floors, counts


def test_jobs_of_many_tenants_are_claimed_in_the_same_order_from_a_floor(
    url: str, schema: str, with_floor: tuple[holdfast.Queue, ManualClock]
) -> None:
    client, clock = with_floor
    options = [
        {"kind": "mail", "tenant": tenant, "priority": priority, "payload": number}
        for number in range(3)
        for tenant, priority in (("b", 0), ("a", 0), ("c", 1), ("a", 1))
    ]
    orders = []
    for queue in (client, holdfast.connect(url, schema=schema, clock=clock)):
        queue.enqueue_many(options)
        taken = [claim.job for limit in (5, 5, 5) for claim in queue.claim_many(limit=limit)]
        orders.append([(job.priority, job.tenant, job.payload) for job in taken])
        assert queue.claim() is None
    queue.close()
    assert len(orders[0]) == len(options)
    assert orders[0] == orders[1]


def test_jobs_whose_numbers_were_drawn_before_the_floor_are_found_when_they_commit(
    url: str, schema: str, with_floor: tuple[holdfast.Queue, ManualClock]
) -> None:
    client, clock = with_floor
    with holdfast.connect(url, schema=schema, clock=clock) as other, other.transaction() as late:
        made = [late.enqueue("mail", tenant=tenant, priority=priority).id for tenant in "ab" for priority in (0, -1)]
        for _ in range(4):
            client.enqueue("mail", tenant="c")
            clock.advance(10)
            assert len(client.claim_many(limit=BATCH, lease=3600)) == 1
    assert {claim.job.id for claim in client.claim_many(limit=BATCH)} == set(made)


def test_a_job_of_the_newest_transaction_is_found_when_it_commits(
    url: str, schema: str, with_floor: tuple[holdfast.Queue, ManualClock]
) -> None:
    """The server's snapshot does not list a transaction that is open and newer than all that have ended."""
    client, clock = with_floor
    for wins in (False, True):
        with holdfast.connect(url, schema=schema, clock=clock) as other, other.transaction() as late:
            made = late.enqueue("mail", tenant="a")
            clock.advance(10)
            for _ in range(4):
                assert not client.claim_many(limit=BATCH)
            if wins:
                _claim_short(client, clock)
        assert made.id in [claim.job.id for claim in client.claim_many(limit=BATCH, lease=3600)]


@pytest.mark.parametrize("way", ["released", "retried", "requeued", "expired", "succeeded"])
def test_a_job_with_an_old_number_that_becomes_ready_is_found(
    url: str, schema: str, with_floor: tuple[holdfast.Queue, ManualClock], way: str
) -> None:
    client, clock = with_floor
    made = client.enqueue("mail", dedupe_key="key", tenant="a")
    held = claimed(client, lease=3600)
    if way == "succeeded":
        made = client.enqueue("mail", dedupe_key="key", tenant="a", on_duplicate="run_again")
    for _ in range(4):
        client.enqueue("mail", tenant="b")
        clock.advance(10)
        assert len(client.claim_many(limit=BATCH, lease=7200)) == 1
    with holdfast.connect(url, schema=schema, clock=clock) as other:
        if way == "expired":
            clock.advance(3600)
        elif way == "requeued":
            other.settle(held, holdfast.Failed("no", permanent=True))
            other.requeue(made.id)
        else:
            outcomes: dict[str, holdfast.Outcome] = {
                "released": holdfast.Released(),
                "retried": holdfast.Failed("later", retry_after=5),
            }
            other.settle(held, outcomes.get(way, Done()))
            clock.advance(6)
    assert made.id in [claim.job.id for claim in client.claim_many(limit=BATCH)]


def test_a_server_that_has_gone_back_in_time_ends_the_floor(
    url: str, schema: str, with_floor: tuple[holdfast.Queue, ManualClock]
) -> None:
    client, _ = with_floor
    with psycopg.connect(url, autocommit=True) as hand:
        hand.execute(
            f"truncate {schema}.job, {schema}.ready_job, {schema}.open_job, {schema}.lease, {schema}.ended".encode()
        )
        hand.execute(f"select setval('{schema}.job_seq', 1)".encode())
    made = client.enqueue("mail")
    assert client.claim() is None, "it is before the floor"
    assert claimed(client).job.id == made.id


@pytest.mark.slow("writers and claimers in several threads")
def test_no_job_is_overlooked_though_transactions_commit_late_and_in_any_order(url: str, schema: str) -> None:
    """Writers keep transactions open for a random time; each job must be claimed soon after it was committed."""
    stopping = threading.Event()
    committed: list[str] = []
    taken: list[str] = []

    def write(seed: int) -> None:
        chance = random.Random(seed)
        with holdfast.connect(url, schema=schema) as queue:
            for _ in range(25):
                with queue.transaction() as tx:
                    made = []
                    for _ in range(chance.randrange(1, 4)):
                        tenant, priority = chance.choice(TENANTS), chance.randrange(-1, 2)
                        delay = chance.choice((0, 0, 0.05))
                        made.append(tx.enqueue("mail", tenant=tenant, priority=priority, delay=delay).id)
                        stopping.wait(chance.choice((0.0, 0.0, 0.03)))
                committed.extend(made)

    def claim(seed: int) -> None:
        chance = random.Random(seed)
        with holdfast.connect(url, schema=schema) as queue:
            while not stopping.is_set():
                claims = queue.claim_many(limit=chance.choice((1, 5, 50)))
                back = [claim for claim in claims if chance.random() < 0.1]
                done = [claim for claim in claims if claim not in back]
                taken.extend(claim.job.id for claim in done)
                queue.settle_many([(claim, Done()) for claim in done])
                queue.settle_many([(claim, holdfast.Released()) for claim in back])
                if not claims:
                    stopping.wait(0.002)

    writers = [threading.Thread(target=write, args=(seed,)) for seed in range(3)]
    claimers = [threading.Thread(target=claim, args=(seed,)) for seed in range(2)]
    for thread in writers + claimers:
        thread.start()
    for thread in writers:
        thread.join()
    # Far less than the minute after which a floor is dropped.
    patience = time.monotonic() + 25
    while len(taken) < len(committed) and time.monotonic() < patience:
        stopping.wait(0.01)
    stopping.set()
    for thread in claimers:
        thread.join()
    assert sorted(taken) == sorted(committed)
