"""A pooler that assigns another server connection to every transaction changes nothing.

Each test runs through a real pgbouncer in transaction mode, if it is installed, and without one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import psycopg
import pytest

import holdfast
from holdfast import Done, Failed
from tests.chaos.processes import PATIENCE_SECONDS
from tests.chaos.threads import in_background
from tests.postgres.conftest import drop_schema
from tests.support import pgbouncer
from tests.support.job_states import all_events, claimed
from tests.support.postgres_server import Server

SCHEMAS = ("holdfast_one", "holdfast_two")


@pytest.fixture(params=["pgbouncer", "plain"])
def pooled_url(request: pytest.FixtureRequest, server: Server) -> Iterator[str]:
    for schema in SCHEMAS:
        drop_schema(server.url, schema)
    if request.param == "plain":
        yield server.url
        return
    if pgbouncer.program() is None:
        pytest.skip(pgbouncer.MISSING)
    pooler = pgbouncer.Pooler(server.url)
    yield pooler.url
    pooler.close()


@pytest.fixture
def queue(pooled_url: str) -> Iterator[holdfast.Queue]:
    made = holdfast.connect(pooled_url, schema=SCHEMAS[0])
    yield made
    made.close()


def _live(queue: holdfast.Queue, number: int) -> None:
    """Run every operation on jobs."""
    made = queue.enqueue("mail", {"number": number}, job_id=f"job-{number}", events="all")
    assert made.created
    claim = claimed(queue, lease=600)
    queue.heartbeat(claim)
    queue.progress(claim, percent=50)
    queue.settle(claim, Failed("it broke", retry_after=0))
    again = claimed(queue, lease=600)
    assert again.job.id == made.id
    assert queue.settle(again, Done({"number": number})).result == {"number": number}
    assert queue.wait(made.id, timeout=PATIENCE_SECONDS).state == "done"
    assert [event.number for event in all_events(queue) if event.job_id == made.id] == [1, 2, 3, 4, 5]


@pytest.mark.slow("a server or processes of its own are started")
def test_a_job_lives_its_whole_life(queue: holdfast.Queue) -> None:
    # Often enough for the driver to prepare every statement, and to miss it on another server connection.
    for number in range(15):
        _live(queue, number)


def test_many_threads_share_few_connections(queue: holdfast.Queue) -> None:
    made = [in_background(lambda n=n: queue.enqueue("mail", job_id=f"job-{n}").created) for n in range(60)]
    assert all(one.result(PATIENCE_SECONDS) for one in made)
    claims = [in_background(lambda: queue.claim_many(limit=10, lease=600)) for _ in range(12)]
    taken = [claim for one in claims for claim in one.result(PATIENCE_SECONDS)]
    taken += queue.claim_many(lease=600)  # those that met at the same heads may have left some
    assert sorted(claim.job.id for claim in taken) == sorted(f"job-{n}" for n in range(60))
    assert {settled.error for settled in queue.settle_many([(claim, Done()) for claim in taken])} == {None}


def test_jobs_whose_insert_and_notification_are_one_message_are_each_stored_once(queue: holdfast.Queue) -> None:
    queue.enqueue("mail")

    def enqueue() -> list[str]:
        return [queue.enqueue("mail").id for _ in range(10)]

    made = [in_background(enqueue) for _ in range(12)]
    stored = [job_id for one in made for job_id in one.result(PATIENCE_SECONDS)]
    assert len(set(stored)) == 120
    assert queue.counts() == {"ready": 121}


def test_a_bulk_arrives(queue: holdfast.Queue) -> None:
    for _ in range(3):
        queue.enqueue_many([{"kind": "mail", "payload": n} for n in range(1500)])
    assert queue.counts() == {"ready": 4500}


def test_a_transaction_and_a_connection_of_the_callers_own_are_joined(queue: holdfast.Queue, pooled_url: str) -> None:
    queue.migrate()
    with queue.transaction() as transaction:
        transaction.enqueue("mail", job_id="one")
        transaction.execute("select 1")
    with psycopg.connect(pooled_url, prepare_threshold=None) as connection:
        queue.within(connection).enqueue("mail", job_id="two")
    with psycopg.connect(pooled_url, prepare_threshold=None) as connection:
        queue.within(connection).enqueue("mail", job_id="three")
        connection.rollback()
    assert {job.id for job in queue.jobs()} == {"one", "two"}


def test_no_two_connections_give_a_prepared_statement_the_same_name(server: Server) -> None:
    """A pooler may run one client's transaction where another has prepared statements: it would run the other's."""
    drop_schema(server.url, SCHEMAS[0])

    def names(queue: holdfast.Queue) -> set[str]:
        with queue.transaction() as transaction:
            for _ in range(10):
                transaction.enqueue("mail")
            return {name for (name,) in transaction.execute("select name from pg_prepared_statements")}

    async def names_async() -> set[str]:
        queue = holdfast.connect_async(server.url, schema=SCHEMAS[0])
        async with queue, queue.transaction() as transaction:
            for _ in range(10):
                await transaction.enqueue("mail")
            return {name for (name,) in await transaction.execute("select name from pg_prepared_statements")}

    with (
        holdfast.connect(server.url, schema=SCHEMAS[0]) as one,
        holdfast.connect(server.url, schema=SCHEMAS[0]) as two,
    ):
        found = [names(one), names(two), asyncio.run(names_async())]

    assert all(found), "the driver prepares statements that run often"
    assert len(set.union(*found)) == sum(map(len, found))


def test_waiting_works_without_listen(queue: holdfast.Queue, pooled_url: str) -> None:
    other = holdfast.connect(pooled_url, schema=SCHEMAS[0])
    made = queue.enqueue("mail")
    waiting = in_background(lambda: queue.wait(made.id, timeout=PATIENCE_SECONDS))
    other.settle(claimed(other), Done())
    assert waiting.result(PATIENCE_SECONDS).state == "done"
    other.close()


def test_the_server_itself_may_be_listened_to_beside_the_pooler(pooled_url: str, server: Server) -> None:
    queue = holdfast.connect(pooled_url, schema=SCHEMAS[0], listen_url=server.url)
    made = queue.enqueue("mail")
    waiting = in_background(lambda: queue.wait(made.id, timeout=PATIENCE_SECONDS))
    queue.settle(claimed(queue), Done())
    assert waiting.result(PATIENCE_SECONDS).state == "done"
    queue.close()


def test_two_schemas_through_the_same_connections_stay_apart(pooled_url: str) -> None:
    one, two = (holdfast.connect(pooled_url, schema=schema) for schema in SCHEMAS)
    for number in range(10):
        one.enqueue("mail", {"of": "one"}, job_id=f"job-{number}")
        two.enqueue("mail", {"of": "two"}, job_id=f"job-{number}")
        assert claimed(one, lease=600).job.payload == {"of": "one"}
        assert claimed(two, lease=600).job.payload == {"of": "two"}
    one.close()
    two.close()


def test_the_async_api_works_through_it_too(pooled_url: str) -> None:
    async def main() -> None:
        queue = holdfast.connect_async(pooled_url, schema=SCHEMAS[0])
        await asyncio.gather(*(queue.enqueue("mail", job_id=f"job-{n}") for n in range(30)))
        for _ in range(30):
            claim = await queue.claim(lease=600)
            assert claim is not None
            await queue.settle(claim, Done())
        assert await queue.counts() == {"done": 30}
        await queue.close()

    asyncio.run(main())
