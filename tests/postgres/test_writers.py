"""Many concurrent writers: no unnecessary waiting, no double counting, no lost updates."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import psycopg
import pytest

import holdfast
from holdfast import Conflict, Done, NewJob
from holdfast.errors import KindRetired, StoreBusy, StoreUnreachable
from holdfast.storage.postgres import commits
from tests.chaos.processes import PATIENCE_SECONDS
from tests.chaos.threads import in_background, wait_until
from tests.support.claims import claim_ids, claim_one
from tests.support.slow_client import Slow

T = TypeVar("T")
TOGETHER = 8


def together(*calls: Callable[[], T]) -> list[T | Exception]:
    """Make the calls at the same time, and return their results or errors in order."""
    start, answers = threading.Barrier(len(calls)), dict[int, Any]()

    def call(place: int, what: Callable[[], T]) -> None:
        start.wait()
        try:
            answers[place] = what()
        except Exception as error:
            answers[place] = error

    threads = [threading.Thread(target=call, args=pair) for pair in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    return [answers[place] for place in range(len(calls))]


@contextmanager
def in_hand(url: str, schema: str, *job_ids: str) -> Iterator[None]:
    """Lock jobs in another transaction that has not committed."""
    with psycopg.connect(url) as connection:
        connection.execute(f"select 1 from {schema}.job where id = any (%s) for update".encode(), [list(job_ids)])
        yield
        connection.rollback()


@pytest.fixture
def slow(url: str, schema: str, queue: holdfast.Queue) -> Iterator[Slow]:
    queue.migrate()
    made = Slow(url, schema)
    yield made
    made.queue.close()


# --- claiming ------------------------------------------------------------------------------------------------------


class TestClaiming:
    def test_no_job_is_given_to_two(self, queue: holdfast.Queue) -> None:
        queue.enqueue_many([NewJob(f"kind{number % 5}", tenant=f"t{number % 3}") for number in range(400)])

        def drain() -> list[str]:
            mine = []
            while claims := queue.claim_many(limit=7):
                mine += [claim.job.id for claim in claims]
                queue.settle_many([(claim, Done()) for claim in claims])
            return mine

        taken = together(*[drain] * TOGETHER)
        assert not [answer for answer in taken if isinstance(answer, Exception)]
        ids = [job_id for mine in taken if isinstance(mine, list) for job_id in mine]
        assert (len(ids), len(set(ids))) == (400, 400)
        assert queue.counts() == {"done": 400}

    def test_the_same_claim_sent_again_waits_for_the_first(self, slow: Slow, queue: holdfast.Queue) -> None:
        queue.enqueue_many([NewJob("mail") for _ in range(10)])
        taken: list[str] = []

        def claim(queue: holdfast.Queue) -> list[str]:
            return claim_ids(queue, 4, worker="w", lease_token="t1")

        again = slow.during(lambda first: taken.extend(claim(first)), lambda: claim(queue))
        assert again == taken
        assert queue.counts() == {"running": 4, "ready": 6}

    def test_so_does_the_same_claim_of_any_session(self, slow: Slow, queue: holdfast.Queue) -> None:
        for number in range(3):
            queue.enqueue("chat", session=f"s{number}")
        taken: list[object] = []

        def claim(queue: holdfast.Queue) -> object:
            return queue.sessions.claim_next(worker="w", lease_token="n1")

        again = slow.during(lambda first: taken.append(claim(first)), lambda: claim(queue))
        assert again is not None
        assert [again] == taken
        assert queue.counts() == {"running": 1, "ready": 2}

    def test_so_does_the_same_claim_of_one_session(self, slow: Slow, queue: holdfast.Queue) -> None:
        queue.enqueue("chat", session="s")
        taken: list[object] = []

        def claim(queue: holdfast.Queue) -> object:
            return queue.sessions.claim("s", worker="w", lease_token="n1")

        again = slow.during(lambda first: taken.append(claim(first)), lambda: claim(queue))
        assert again is not None
        assert [again] == taken

    def test_a_turn_that_is_settled_while_its_claim_is_sent_again_is_not_returned(
        self, slow: Slow, queue: holdfast.Queue
    ) -> None:
        queue.enqueue("chat", session="s")
        turn = queue.sessions.claim_next(worker="w", lease_token="n1")
        assert turn is not None

        def claim_again() -> object:
            return queue.sessions.claim_next(worker="w", lease_token="n1")

        assert slow.during(lambda first: first.sessions.settle(turn, Done()), claim_again) is None

    @pytest.mark.parametrize("kinds", [("mail", "mail"), ("mail", "post")], ids=["one stream", "two routes"])
    def test_it_looks_past_what_others_have_in_hand(
        self, queue: holdfast.Queue, url: str, schema: str, kinds: tuple[str, str]
    ) -> None:
        queue.enqueue_many([NewJob(kinds[0], job_id="a"), NewJob(kinds[1], job_id="b"), NewJob("mail", job_id="c")])
        with in_hand(url, schema, "a", "b"):
            assert claim_ids(queue) == ["c"]
        assert claim_ids(queue) == ["a", "b"]

    @pytest.mark.parametrize("options", [{}, {"tenant": "t1"}, {"affinity": "m"}], ids=str)
    def test_a_whole_level_in_hand_does_not_hide_the_next(
        self, queue: holdfast.Queue, url: str, schema: str, options: Any
    ) -> None:
        urgent = [f"urgent{number}" for number in range(40)]
        queue.enqueue_many([NewJob("mail", job_id=name, priority=5, tenant="t1", affinity="m") for name in urgent])
        queue.enqueue("mail", job_id="ordinary", tenant="t1")
        with in_hand(url, schema, *urgent):
            assert claim_ids(queue, **options) == ["ordinary"]

    def test_what_is_due_or_expired_in_other_hands_is_left_to_them(
        self, queue: holdfast.Queue, url: str, schema: str
    ) -> None:
        queue.enqueue_many([NewJob("mail", job_id="expired"), NewJob("mail", job_id="free")])
        assert claim_one(queue, lease=0.01).job.id == "expired"
        threading.Event().wait(0.05)
        with in_hand(url, schema, "expired"):
            assert claim_ids(queue) == ["free"]

    def test_a_round_that_another_worker_writes_is_not_waited_for(
        self, queue: holdfast.Queue, url: str, schema: str
    ) -> None:
        queue.enqueue_many([NewJob("mail", tenant=tenant) for tenant in "abab"])
        claim_one(queue)
        with psycopg.connect(url) as other:
            other.execute(f"select 1 from {schema}.fair_key for update".encode())
            assert claim_one(queue).job.tenant == "b"
            other.rollback()

    def test_of_two_starts_at_once_one_is_the_newest(self, queue: holdfast.Queue) -> None:
        queue.enqueue_many([NewJob("mail")] * TOGETHER)
        starts = [f"start{number}" for number in range(TOGETHER)]

        def claim(start: str) -> Callable[[], object]:
            return lambda: queue.claim(worker="gpu", incarnation=start, exclusive=True)

        answers = together(*map(claim, starts))
        assert {type(answer) for answer in answers} <= {holdfast.Claim, Conflict}
        holding = {job.incarnation for job in queue.jobs(state="running")}
        assert len(holding) == 1
        assert queue.counts() == {"ready": TOGETHER - 1, "running": 1}

    @pytest.mark.parametrize("known", [True, False], ids=["a known start", "a new start"])
    def test_a_later_start_waits_for_what_an_earlier_one_is_claiming_and_takes_it_back(
        self, queue: holdfast.Queue, slow: Slow, known: bool
    ) -> None:
        queue.enqueue_many([NewJob("mail", job_id="a"), NewJob("mail", job_id="b")])
        if known:
            claim_one(queue, worker="gpu", incarnation="first", exclusive=True)

        taken = slow.during(
            lambda client: client.claim(worker="gpu", incarnation="first", exclusive=True),
            lambda: claim_ids(queue, worker="gpu", incarnation="second", exclusive=True),
        )
        assert sorted(taken) == ["a", "b"]
        assert {job.incarnation for job in queue.jobs(state="running")} == {"second"}


# --- keys ----------------------------------------------------------------------------------------------------------


class TestKeys:
    def test_one_id_sent_by_many_is_one_job(self, queue: holdfast.Queue) -> None:
        answers = together(*[lambda: queue.enqueue("mail", 1, job_id="a").created] * TOGETHER)
        assert sorted(map(str, answers)) == ["False"] * (TOGETHER - 1) + ["True"]

    def test_one_dedupe_key_sent_by_many_is_one_job(self, queue: holdfast.Queue) -> None:
        answers = together(*[lambda: queue.enqueue("mail", dedupe_key="k").created] * TOGETHER)
        assert sorted(map(str, answers)) == ["False"] * (TOGETHER - 1) + ["True"]
        assert queue.counts() == {"ready": 1}

    def test_many_triggers_of_a_running_job_make_one_successor(self, queue: holdfast.Queue) -> None:
        queue.enqueue("mail", dedupe_key="k")
        claim = claim_one(queue)

        def trigger() -> object:
            return queue.enqueue("mail", dedupe_key="k", on_duplicate="run_again").created

        answers = together(*[trigger] * TOGETHER, lambda: queue.settle(claim, Done()))
        assert not [answer for answer in answers if isinstance(answer, Exception)]
        assert queue.get(claim.job.id).state == "done"
        assert queue.counts().get("blocked", 0) == 0
        assert sum(queue.counts().values()) <= 2

    def test_a_trigger_that_meets_the_end_of_the_holder_is_not_left_blocked(
        self, queue: holdfast.Queue, slow: Slow
    ) -> None:
        queue.enqueue("mail", dedupe_key="k")
        claim = claim_one(queue)
        made = slow.during(
            lambda client: client.settle(claim, Done()),
            lambda: queue.enqueue("mail", dedupe_key="k", on_duplicate="run_again"),
        )
        assert (made.created, queue.get(made.id).state) == (True, "ready")

    def test_two_requeues_of_one_key_let_one_through(self, queue: holdfast.Queue) -> None:
        for name in ("a", "b"):
            queue.enqueue("mail", job_id=name, dedupe_key="k")
            queue.cancel(name)
        answers = together(lambda: queue.requeue("a"), lambda: queue.requeue("b"))
        assert sorted(type(answer).__name__ for answer in answers) == ["Conflict", "Job"]

    def test_many_in_either_order_all_come_through(self, queue: holdfast.Queue) -> None:
        def enqueue(names: list[str]) -> Callable[[], list[holdfast.types.Enqueued[Any]]]:
            return lambda: queue.enqueue_many([NewJob("mail", job_id=name) for name in names])

        names = [f"job-{number}" for number in range(40)]
        answers = together(*[enqueue(names), enqueue(names[::-1])] * (TOGETHER // 2))
        assert not [answer for answer in answers if isinstance(answer, Exception)]
        assert queue.counts() == {"ready": 40}


# --- the routing table ----------------------------------------------------------------------------------------------


class TestCatalog:
    def test_new_kinds_come_in_by_many_at_once(self, queue: holdfast.Queue) -> None:
        def enqueue(first: int) -> Callable[[], object]:
            return lambda: [queue.enqueue(f"kind{number % 10}") for number in range(first, first + 10)]

        answers = together(*[enqueue(first) for first in range(TOGETHER)])
        assert not [answer for answer in answers if isinstance(answer, Exception)]
        assert set(queue.counts(by="kind").values()) == {TOGETHER}

    def test_no_job_slips_into_a_kind_that_is_being_retired(self, queue: holdfast.Queue) -> None:
        queue.enqueue("mail")

        def enqueue() -> object:
            for _ in range(20):
                queue.enqueue("mail")
            return None

        answers = together(*[enqueue] * (TOGETHER - 1), lambda: queue.kinds.retire("mail"))
        assert {type(answer) for answer in answers[:-1]} <= {type(None), KindRetired}
        assert set(queue.counts()) == {"retired"}

    def test_a_kind_is_retired_only_when_those_on_their_way_in_have_come(
        self, queue: holdfast.Queue, slow: Slow
    ) -> None:
        queue.enqueue("mail")
        assert slow.during(lambda client: client.enqueue("mail"), lambda: queue.kinds.retire("mail")) == 2
        assert queue.counts() == {"retired": 2}

    def test_a_job_on_its_way_into_a_kind_that_is_being_retired_is_refused(
        self, queue: holdfast.Queue, slow: Slow
    ) -> None:
        queue.enqueue("mail")

        def enqueue() -> type:
            try:
                return type(queue.enqueue("mail"))
            except KindRetired as refusal:
                return type(refusal)

        assert slow.during(lambda client: client.kinds.retire("mail"), enqueue) is KindRetired
        assert queue.counts() == {"retired": 1}

    def test_enqueues_do_not_wait_behind_a_change_that_an_open_transaction_holds_up(
        self, queue: holdfast.Queue, url: str
    ) -> None:
        queue.enqueue("mail")
        with psycopg.connect(url) as own:
            queue.within(own).enqueue("mail")
            changing = in_background(lambda: queue.lanes.set("slow", state="paused"))
            with psycopg.connect(url, autocommit=True) as other:
                waiting = (
                    b"select 1 from pg_stat_activity where query like '%lock_routing()%' and pid <> pg_backend_pid()"
                )
                wait_until(lambda: other.execute(waiting).fetchone() is not None)
            for _ in range(5):
                assert queue.enqueue("mail").created
            assert not changing.done()
            own.commit()
        assert changing.result(PATIENCE_SECONDS).state == "paused"

    def test_changes_of_lanes_by_many_all_come_through(self, queue: holdfast.Queue) -> None:
        def change(number: int) -> Callable[[], object]:
            return lambda: [queue.lanes.set(f"lane{number}", state=state) for state in ("paused", "active")]

        answers = together(*[change(number % 3) for number in range(TOGETHER)])
        assert not [answer for answer in answers if isinstance(answer, Exception)]
        assert [lane.state for lane in queue.lanes.list()] == ["active"] * 3

    def test_locking_jobs_locks_none_of_the_routes_they_share(
        self, queue: holdfast.Queue, url: str, schema: str
    ) -> None:
        queue.enqueue("mail", job_id="a")
        with ExitStack() as stack:
            tx = stack.enter_context(queue.transaction())
            tx.cancel("a")
            other = stack.enter_context(psycopg.connect(url))
            assert other.execute(f"select 1 from {schema}.route for update nowait".encode()).fetchall() == [(1,)]
            other.rollback()


# --- timeouts ------------------------------------------------------------------------------------------------------


def test_what_others_hold_for_too_long_is_a_busy_store(
    url: str, schema: str, queue: holdfast.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.enqueue("mail", job_id="a")
    # The server also ends transactions that are idle for as long, which must not happen to this client under load.
    monkeypatch.setattr(commits, "LOCK_MS", 500)
    impatient = holdfast.connect(url, schema=schema)
    with in_hand(url, schema, "a"):
        with pytest.raises(StoreBusy):
            impatient.cancel("a")
        assert impatient.get("a").state == "ready"
    # By the client with the long timeout: under load any lock may take longer than the short timeout.
    assert queue.cancel("a").state == "cancelled"
    impatient.close()


class TestSilence:
    """A client that is stopped or disconnected with an open transaction does not block its jobs permanently."""

    @pytest.fixture
    def silent(self, url: str, schema: str, queue: holdfast.Queue, monkeypatch: pytest.MonkeyPatch) -> Iterator[Slow]:
        queue.migrate()
        monkeypatch.setattr(commits, "LOCK_MS", 200)
        made = Slow(url, schema)
        yield made
        made.queue.close()

    def test_what_it_was_about_to_claim_goes_to_another(self, silent: Slow, queue: holdfast.Queue) -> None:
        made = queue.enqueue("mail")
        first = silent.begin(lambda queue: queue.claim())
        taken = queue.claim(wait=30)
        silent.go_on()
        with pytest.raises(StoreUnreachable, match="idle for so long"):
            first.result(PATIENCE_SECONDS)
        assert taken is not None
        assert queue.get(made.id) == taken.job
        assert taken.epoch == 1

    def test_what_it_was_about_to_settle_is_settled_by_sending_it_again(
        self, silent: Slow, queue: holdfast.Queue
    ) -> None:
        # A job with a dedupe key is settled by several statements.
        made, claim = queue.enqueue("mail", dedupe_key="key"), claim_one(queue)
        first = silent.begin(lambda queue: queue.settle(claim, Done({"sent": 1})))
        assert queue.settle(claim, Done({"sent": 2})).state == "done"
        silent.go_on()
        with pytest.raises(StoreUnreachable, match="idle for so long"):
            first.result(PATIENCE_SECONDS)
        assert queue.get(made.id).result == {"sent": 2}

    def test_a_transaction_of_the_callers_own_may_be_silent_for_a_minute(self, queue: holdfast.Queue) -> None:
        with queue.transaction() as transaction:
            [[silence]] = transaction.execute("show idle_in_transaction_session_timeout")
        assert silence == "1min"
