"""Connections fail at every message of every call: the error is typed, and repeating the call is harmless.

Each test makes one call after another. During the first it injects a fault at the first message to the server, during
the second at the second, and so on until a call has fewer messages.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

import psycopg
import pytest

import holdfast
from holdfast import Done, Failed, NewJob, OutcomeUnknown, Unavailable
from holdfast.types import ClaimOptions
from tests.postgres.conftest import drop_schema
from tests.postgres.insisting import Insisting
from tests.support.job_states import all_events, claimed, nonzero
from tests.support.postgres_schemas import make_empty
from tests.support.postgres_server import Server
from tests.support.wire import Fault, Wire

SCHEMA = "holdfast_faults"
MANY = 600
# As many as a queue opens for threads.
CONNECTIONS = 20

Strike: TypeAlias = Callable[[int], Fault]


@pytest.fixture
def queue(server: Server, wire: Wire) -> Iterator[holdfast.Queue]:
    make_empty(server.url, SCHEMA)
    made = holdfast.connect(wire.url, schema=SCHEMA)
    made.enqueue("warm.up", lane="warm.up")
    yield made
    wire.calm()
    made.close()


@pytest.fixture(params=["not_sent", "not_answered", "terminated"])
def strike(request: pytest.FixtureRequest, server: Server, wire: Wire) -> Strike:
    """The connection is cut before the message, or after its reply; or the server terminates all connections."""
    if request.param == "terminated":
        return lambda nth: wire.at(server.terminate_backends, nth=nth)
    return lambda nth: wire.cut(nth=nth, answered=request.param == "not_answered")


def _struck(strike: Strike, wire: Wire, call: Callable[[int], object], *, plain: bool = False) -> int:
    """Make calls 1, 2, 3 … and inject a fault at message 1, 2, 3 … of them; return how many calls were made.

    The plain form of a call has one message.
    """
    for nth in itertools.count(1):
        fault = strike(nth)
        call(nth)
        wire.calm()
        if not fault.struck.is_set():
            assert (nth == 2) if plain else (nth > 2), "no call was struck in its middle"
            return nth
    raise AssertionError


def _ends(queue: holdfast.Queue) -> Counter[str]:
    return Counter(event.job_id for event in all_events(queue) if event.name == "done")


def test_an_enqueue_sent_again_makes_exactly_one_job(queue: holdfast.Queue, wire: Wire, strike: Strike) -> None:
    insist = Insisting()
    calls = _struck(
        strike, wire, lambda nth: insist(lambda: queue.enqueue("mail", {"nth": nth}, job_id=f"job-{nth}"))
    )
    assert {job.id: job.payload for job in queue.jobs(kind="mail", limit=1000)} == {
        f"job-{nth}": {"nth": nth} for nth in range(1, calls + 1)
    }
    assert insist.errors


def test_a_plain_enqueue_whose_connection_dies_is_found_out_about_and_stored_once(
    queue: holdfast.Queue, wire: Wire, strike: Strike
) -> None:
    """Its transaction is one message; the generated id shows whether it was committed."""
    queue.enqueue("plain", {"nth": 0})
    fault = strike(1)
    made = queue.enqueue("plain", {"nth": 1})
    assert fault.struck.is_set()
    assert made.created
    assert [job.payload for job in queue.jobs(kind="plain")] == [{"nth": 1}, {"nth": 0}]
    assert queue.get(made.id).payload == {"nth": 1}


def test_many_plain_jobs_whose_connection_dies_are_found_out_about_and_stored_once(
    queue: holdfast.Queue, wire: Wire, strike: Strike
) -> None:
    queue.enqueue("plain", {"nth": 0})
    fault = strike(1)
    made = queue.enqueue_many([{"kind": "plain", "payload": {"nth": nth}} for nth in (1, 2)])
    assert fault.struck.is_set()
    assert [one.created for one in made] == [True, True]
    assert [job.payload for job in queue.jobs(kind="plain")] == [{"nth": nth} for nth in (2, 1, 0)]
    assert [queue.get(one.id).payload for one in made] == [{"nth": 1}, {"nth": 2}]


def test_a_plain_enqueue_of_unknown_outcome_says_so(queue: holdfast.Queue, wire: Wire) -> None:
    queue.enqueue("plain", {"nth": 0})
    wire.at(lambda: wire.drop_all(refuse=True), contains=b"job_store")
    with pytest.raises(OutcomeUnknown):
        queue.enqueue("plain", {"nth": 1})
    wire.calm()
    assert queue.enqueue("plain", {"nth": 2}).created


def test_a_call_is_sent_again_once_if_every_answer_is_lost(queue: holdfast.Queue, wire: Wire) -> None:
    queue.enqueue("plain", {"nth": 0})
    sent = []

    def lose() -> None:
        sent.append(1)
        wire.at(lose, contains=b"commit")
        wire.drop_all()

    wire.at(lose, contains=b"job_store")
    with pytest.raises(OutcomeUnknown):
        queue.enqueue("plain", {"nth": 1})
    assert len(sent) == 2


def test_an_awaited_call_is_sent_again_once_if_every_answer_is_lost(queue: holdfast.Queue, wire: Wire) -> None:
    sent = []

    def lose() -> None:
        sent.append(1)
        wire.at(lose, contains=b"commit")
        wire.drop_all()

    async def enqueue() -> None:
        async with holdfast.connect_async(wire.url, schema=SCHEMA) as awaited:
            await awaited.enqueue("plain", {"nth": 0})
            wire.at(lose, contains=b"job_store")
            with pytest.raises(OutcomeUnknown):
                await awaited.enqueue("plain", {"nth": 1})

    asyncio.run(enqueue())
    assert len(sent) == 2


def test_an_awaited_plain_enqueue_is_found_out_about_too(queue: holdfast.Queue, wire: Wire, strike: Strike) -> None:
    queue.enqueue("plain", {"nth": 0})

    async def enqueue() -> None:
        async with holdfast.connect_async(wire.url, schema=SCHEMA) as awaited:
            await awaited.enqueue("plain", {"nth": 1})
            fault = strike(1)
            await awaited.enqueue("plain", {"nth": 2})
            assert fault.struck.is_set()

    asyncio.run(enqueue())
    assert [job.payload for job in queue.jobs(kind="plain")] == [{"nth": nth} for nth in (2, 1, 0)]


def test_a_bulk_enqueue_is_there_whole_or_not_at_all(queue: holdfast.Queue, wire: Wire, strike: Strike) -> None:
    """Jobs without chosen ids are not recognized when repeated, so the caller may store them twice."""
    answered = unanswered = 0

    def enqueue_many(nth: int) -> None:
        nonlocal answered, unanswered
        try:
            queue.enqueue_many([{"kind": f"bulk-{nth}"} for _ in range(MANY)])
            answered += 1
        except OutcomeUnknown:
            unanswered += 1
        except Unavailable:
            assert queue.counts(by="kind").get(f"bulk-{nth}", 0) == 0

    _struck(strike, wire, enqueue_many)
    counts = {kind: count for kind, count in queue.counts(by="kind").items() if kind.startswith("bulk")}
    assert set(counts.values()) == {MANY}
    assert answered <= len(counts) <= answered + unanswered


@pytest.mark.parametrize("plain", [True, False])
def test_a_claim_sent_again_with_its_token_takes_nothing_more(
    queue: holdfast.Queue, wire: Wire, strike: Strike, *, plain: bool
) -> None:
    insist = Insisting()
    queue.enqueue_many([{"kind": "mail"}] * 400)
    taken: dict[str, int] = {}

    def claim(nth: int) -> None:
        # A preferred affinity has no plain form.
        affinity = None if plain else "model"
        options: ClaimOptions = {"lease": 600, "lease_token": f"token-{nth}", "affinity": affinity}
        claims = insist(lambda: queue.claim_many(limit=3, **options))
        assert len(claims) == 3
        taken.update((claim.job.id, claim.epoch) for claim in claims)

    calls = _struck(strike, wire, claim, plain=plain)
    running = {job.id: job.epoch for job in queue.jobs(state="running", limit=1000)}
    assert running == taken == dict.fromkeys(taken, 1)
    assert len(taken) == 3 * calls
    # The plain form finds out by its token whether it was committed.
    assert bool(insist.errors) is not plain


def test_a_settle_sent_again_settles_once(queue: holdfast.Queue, wire: Wire, strike: Strike) -> None:
    insist = Insisting()
    queue.enqueue_many([{"kind": "mail"}] * 400)
    claims = queue.claim_many(limit=400, lease=600)

    def settle(nth: int) -> None:
        done = Done({"nth": nth}, follow_ups=[NewJob("after", job_id=f"after-{nth}")])
        assert insist(lambda: queue.settle(claims[nth], done)).result == {"nth": nth}

    calls = _struck(strike, wire, settle)
    settled = {claims[nth].job.id for nth in range(1, calls + 1)}
    assert {job.id for job in queue.jobs(state="done", limit=1000)} == settled
    assert _ends(queue) == dict.fromkeys(settled, 1)
    assert queue.counts(by="kind")["after"] == calls
    assert insist.errors


def test_a_failure_sent_again_spends_one_attempt(queue: holdfast.Queue, wire: Wire, strike: Strike) -> None:
    insist = Insisting()
    queue.enqueue_many([{"kind": "mail"}] * 400)
    claims = queue.claim_many(limit=400, lease=600)
    failed = Failed("it broke", retry_after=3600)
    calls = _struck(strike, wire, lambda nth: insist(lambda: queue.settle(claims[nth], failed)))
    waiting = queue.jobs(state="scheduled", limit=1000)
    assert len(waiting.jobs) == calls
    assert {(job.attempt, job.epoch) for job in waiting} == {(1, 1)}
    assert {len(queue.attempts(job.id)) for job in waiting} == {1}


def test_a_settle_fused_with_a_claim_sent_again_does_both_once(
    queue: holdfast.Queue, wire: Wire, strike: Strike
) -> None:
    insist = Insisting()
    queue.enqueue_many([{"kind": "mail"}] * 400)
    held = [claimed(queue, lease=600)]

    def settle_and_claim(nth: int) -> None:
        both = insist(
            lambda: queue.settle_and_claim([(held[-1], Done())], limit=1, lease=600, lease_token=f"token-{nth}")
        )
        assert both.settlements[0].error is None
        held.extend(both.claims)

    calls = _struck(strike, wire, settle_and_claim)
    assert len({claim.job.id for claim in held}) == calls + 1
    assert _ends(queue) == {claim.job.id: 1 for claim in held[:-1]}
    assert [job.id for job in queue.jobs(state="running")] == [held[-1].job.id]


def test_a_heartbeat_survives(queue: holdfast.Queue, wire: Wire, strike: Strike) -> None:
    insist = Insisting()
    queue.enqueue("mail")
    claim = claimed(queue, lease=600)
    _struck(strike, wire, lambda nth: insist(lambda: queue.heartbeat(claim, lease=600 + nth)), plain=True)
    assert queue.settle(claim, Done()).state == "done"


def test_a_transaction_keeps_the_callers_rows_and_the_jobs_together(
    queue: holdfast.Queue, wire: Wire, server: Server, strike: Strike
) -> None:
    with server.superuser() as connection:
        connection.execute("drop table if exists orders")
        connection.execute("create table orders (id int primary key)")
    sure = set[int]()

    def order(nth: int) -> None:
        try:
            with queue.transaction() as transaction:
                transaction.execute("insert into orders values (?)", [nth])
                transaction.enqueue("mail", job_id=f"job-{nth}")
        except Unavailable:
            return
        sure.add(nth)

    _struck(strike, wire, order)
    with server.superuser() as connection:
        orders = {row[0] for row in connection.execute("select id from orders")}
    assert {job.id for job in queue.jobs(kind="mail", limit=1000)} == {f"job-{order}" for order in orders}
    assert sure <= orders


def test_the_async_api_survives_the_same(server: Server, wire: Wire, strike: Strike) -> None:
    drop_schema(server.url, SCHEMA)
    insist = Insisting()

    async def live(queue: holdfast.AsyncQueue, nth: int) -> None:
        await insist.awaited(lambda: queue.enqueue("mail", job_id=f"job-{nth}"))
        # The server may not have noticed yet that the previous connection is gone, and claims skip locked jobs.
        options: ClaimOptions = {"kinds": ["mail"], "lease": 600, "lease_token": f"token-{nth}", "wait": 30}
        [claim] = await insist.awaited(lambda: queue.claim_many(**options))
        assert claim.job.id == f"job-{nth}"
        await insist.awaited(lambda: queue.settle(claim, Done()))

    async def main() -> int:
        queue = holdfast.connect_async(wire.url, schema=SCHEMA)
        await queue.enqueue("warm.up")
        for nth in itertools.count(1):
            fault = strike(nth)
            await live(queue, nth)
            wire.calm()
            if not fault.struck.is_set():
                break
        assert nonzero(await queue.counts()) == {"done": nth, "ready": 1}
        await queue.close()
        return nth

    # At least one message of each of the three calls was struck; how many they send depends on what is remembered.
    assert asyncio.run(main()) > 4
    assert insist.errors


class TestAnAnswerLostAfterCommit:
    """The commit reached the server, and the connection was cut before its reply."""

    def test_an_enqueue_says_that_it_does_not_know(self, queue: holdfast.Queue, wire: Wire) -> None:
        fault = wire.cut(contains=b"commit", answered=True)
        with pytest.raises(OutcomeUnknown):
            queue.enqueue("mail", {"to": "ada"}, job_id="one")
        assert fault.struck.is_set()
        assert queue.get("one").state == "ready"
        again = queue.enqueue("mail", {"to": "ada"}, job_id="one")
        assert (again.created, queue.counts(by="kind")["mail"]) == (False, 1)

    def test_a_settle_of_several_statements_says_that_it_does_not_know(
        self, queue: holdfast.Queue, wire: Wire
    ) -> None:
        queue.enqueue("mail", job_id="one", dedupe_key="key")
        claim = claimed(queue)
        wire.cut(contains=b"commit", answered=True)
        with pytest.raises(OutcomeUnknown):
            queue.settle(claim, Done({"ok": True}))
        assert queue.get("one").state == "done"
        assert queue.settle(claim, Done({"ok": True})).state == "done"
        assert _ends(queue) == {"one": 1}

    def test_a_plain_settle_finds_out_that_it_was_stored(self, queue: holdfast.Queue, wire: Wire) -> None:
        queue.enqueue("mail", job_id="one")
        claim = claimed(queue)
        fault = wire.cut(answered=True)
        assert queue.settle(claim, Done({"ok": True})).state == "done"
        assert fault.struck.is_set()
        assert _ends(queue) == {"one": 1}

    def test_a_plain_claim_that_cannot_find_out_says_so(self, queue: holdfast.Queue, wire: Wire) -> None:
        queue.enqueue("mail", job_id="one")
        wire.at(lambda: wire.drop_all(refuse=True), contains=b"claim_1")
        with pytest.raises(OutcomeUnknown):
            queue.claim()
        wire.calm()
        assert claimed(queue).job.id == "one"

    def test_a_plain_enqueue_finds_out_while_other_threads_have_all_other_connections(
        self, queue: holdfast.Queue, wire: Wire
    ) -> None:
        """The lost connection was the last of those that the queue may open."""
        queue.enqueue("plain")
        begun, ended = threading.Semaphore(0), threading.Event()

        def hold() -> None:
            with queue.transaction():
                begun.release()
                ended.wait()

        with ThreadPoolExecutor(CONNECTIONS - 1) as threads:
            try:
                for _ in range(CONNECTIONS - 1):
                    threads.submit(hold)
                assert all(begun.acquire(timeout=30) for _ in range(CONNECTIONS - 1))
                fault = wire.cut(contains=b"job_store", answered=True)
                made = queue.enqueue("plain", {"nth": 1})
            finally:
                ended.set()
        assert fault.struck.is_set()
        assert made.created
        assert queue.get(made.id).payload == {"nth": 1}

    def test_a_plain_enqueue_that_a_read_only_standby_cannot_look_for_says_so(
        self, queue: holdfast.Queue, wire: Wire, server: Server
    ) -> None:
        """The server that has taken over does not know the commit, or not yet; it takes no writes."""
        queue.enqueue("plain")
        with psycopg.connect(server.url, autocommit=True) as operator:
            name = operator.info.dbname

            def take_over() -> None:
                operator.execute(f'alter database "{name}" set default_transaction_read_only = on')
                wire.drop_all()

            fault = wire.at(take_over, contains=b"job_store")
            try:
                with pytest.raises(OutcomeUnknown):
                    queue.enqueue("plain", {"nth": 1})
            finally:
                operator.execute(f'alter database "{name}" reset default_transaction_read_only')
        assert fault.struck.is_set()
        wire.drop_all()

    def test_a_transaction_says_that_it_does_not_know(self, queue: holdfast.Queue, wire: Wire) -> None:
        wire.cut(contains=b"commit", answered=True)
        with pytest.raises(OutcomeUnknown), queue.transaction() as transaction:
            transaction.enqueue("mail", job_id="one")
        assert queue.get("one").state == "ready"

    def test_a_commit_that_never_arrived_is_just_as_unknown(self, queue: holdfast.Queue, wire: Wire) -> None:
        wire.cut(contains=b"commit")
        with pytest.raises(OutcomeUnknown):
            queue.enqueue("mail", job_id="one")
        assert queue.enqueue("mail", job_id="one").created


@pytest.mark.slow("a server or processes of its own are started")
def test_nothing_but_typed_errors_while_the_server_is_gone_and_work_goes_on_when_it_is_back(server: Server) -> None:
    drop_schema(server.url, SCHEMA)
    queue = holdfast.connect(server.url, schema=SCHEMA)
    queue.enqueue("mail", job_id="one")
    server.stop(immediate=True)
    try:
        with pytest.raises(Unavailable):
            queue.enqueue("mail", job_id="two")
        with pytest.raises(Unavailable):
            queue.get("one")
    finally:
        server.start()
    insist = Insisting()
    assert insist(lambda: queue.enqueue("mail", job_id="two")).created
    assert {job.id for job in queue.jobs()} == {"one", "two"}
    queue.close()


def test_a_statement_of_the_callers_own_that_fails_is_his_own_error(queue: holdfast.Queue) -> None:
    """Only lost connections are translated."""

    def fail() -> None:
        with queue.transaction() as transaction:
            transaction.enqueue("mail", job_id="one")
            transaction.execute("select * from missing")

    with pytest.raises(psycopg.errors.UndefinedTable):
        fail()
    assert not queue.jobs(kind="mail")
