"""The caller's own transaction: joined operations commit with it, regardless of row factories and waiting."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row, namedtuple_row

import holdfast
from holdfast import Conflict, Done, InvalidInput, JobNotFound, LeaseLost, Misconfigured
from holdfast.client.connect import queue_on
from holdfast.storage.notifications import SyncListener, lane_topic
from holdfast.storage.postgres.store import PostgresStore
from tests.chaos.processes import PATIENCE_SECONDS
from tests.support.claims import claim_one


@pytest.fixture
def own(url: str, queue: holdfast.Queue) -> Iterator[psycopg.Connection[Any]]:
    queue.migrate()
    with psycopg.connect(url) as connection:
        yield connection


def test_a_commit_brings_the_job_and_a_rollback_does_not(queue: holdfast.Queue, own: Any) -> None:
    own.execute("create temporary table orders (id integer)")
    for job_id, end in (("kept", own.commit), ("lost", own.rollback)):
        own.execute("insert into orders values (1)")
        assert queue.within(own).enqueue("mail", job_id=job_id).created
        end()
    assert queue.get("kept").state == "ready"
    with pytest.raises(JobNotFound):
        queue.get("lost")
    assert own.execute("select count(*) from orders").fetchone() == (1,)


def test_a_transaction_that_begins_by_itself_need_not_have_begun(queue: holdfast.Queue, own: Any) -> None:
    queue.within(own).enqueue("mail", job_id="a")
    own.rollback()
    assert queue.counts() == {}


def test_a_settle_joins_and_a_refusal_leaves_the_transaction_usable(queue: holdfast.Queue, own: Any) -> None:
    queue.enqueue("mail", job_id="a")
    claim = claim_one(queue)
    queue.cancel("a", force=True)
    joined = queue.within(own)
    joined.enqueue("mail", job_id="b")
    with pytest.raises(LeaseLost):
        joined.settle(claim, Done())
    with pytest.raises(Conflict):
        joined.enqueue("mail", "other", job_id="b")
    own.commit()
    assert queue.get("b").state == "ready"
    assert queue.get("a").state == "cancelled"


@pytest.mark.parametrize("factory", [dict_row, namedtuple_row])
def test_the_callers_row_factory_does_not_matter(queue: holdfast.Queue, own: Any, factory: Any) -> None:
    own.row_factory = factory
    made = queue.within(own).enqueue("mail", {"n": 1}, job_id="a")
    own.commit()
    assert made.job.payload == {"n": 1}
    assert queue.get("a") == made.job


def test_without_an_open_transaction_it_is_refused(queue: holdfast.Queue, own: Any) -> None:
    own.autocommit = True
    with pytest.raises(InvalidInput, match="no open transaction"):
        queue.within(own)


def test_a_transaction_that_has_ended_takes_nothing_more(queue: holdfast.Queue, own: Any) -> None:
    joined = queue.within(own)
    joined.enqueue("mail")
    own.commit()
    with pytest.raises(Misconfigured, match="has ended"):
        joined.enqueue("mail")
    assert queue.counts() == {"ready": 1}


def test_a_transaction_in_which_a_statement_failed_takes_nothing_more(queue: holdfast.Queue, own: Any) -> None:
    joined = queue.within(own)
    joined.enqueue("mail")
    with pytest.raises(psycopg.errors.UndefinedTable):
        own.execute("select * from missing")
    with pytest.raises(Misconfigured, match="statement failed"):
        joined.enqueue("mail")


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_a_transaction_that_sees_only_the_past_is_refused(queue: holdfast.Queue, own: Any, level: str) -> None:
    own.execute(f"set transaction isolation level {level}")
    with pytest.raises(InvalidInput, match=level):
        queue.within(own).enqueue("mail")


def test_a_store_of_the_same_name_in_another_database_is_refused(
    queue: holdfast.Queue, schema: str, own: Any
) -> None:
    own.execute(f"update {schema}.meta set value = 'somebody else' where name = 'identity'")
    with pytest.raises(InvalidInput, match="this queue's database"):
        queue.within(own).enqueue("mail")


def test_a_connection_whose_answers_come_later_is_refused(queue: holdfast.Queue, own: Any) -> None:
    with own.pipeline(), pytest.raises(InvalidInput, match="pipeline"):
        queue.within(own)


def test_a_two_phase_transaction_is_refused(queue: holdfast.Queue, own: Any) -> None:
    own.tpc_begin("order-1")
    with pytest.raises(InvalidInput, match="two-phase"):
        queue.within(own)
    own.tpc_rollback()
    assert queue.within(own).enqueue("mail").created


def test_something_that_is_no_connection_is_refused(queue: holdfast.Queue) -> None:
    with pytest.raises(InvalidInput, match="object"):
        queue.within(object())


def test_who_waits_is_woken_by_the_callers_commit(queue: holdfast.Queue, own: Any) -> None:
    queue.enqueue("mail", job_id="a")
    claim, seen = claim_one(queue), list[str]()
    waiter = threading.Thread(target=lambda: seen.append(queue.wait("a", timeout=30).state))
    waiter.start()
    queue.within(own).settle(claim, Done())
    seen.append("not yet committed")
    own.commit()
    waiter.join(PATIENCE_SECONDS)
    assert seen == ["not yet committed", "done"]


def test_the_callers_commit_rings_and_a_rollback_does_not(url: str, new_schema: str) -> None:
    # The listening thread of a schema stays for a while: if it already listened, it would not wake the listener.
    store = PostgresStore(url, schema=new_schema)
    queue, listener = queue_on(store), SyncListener()
    queue.migrate()
    store.notifier.add(lane_topic("default"), listener)
    assert listener.wait(PATIENCE_SECONDS) < PATIENCE_SECONDS, "listening did not take effect"
    with psycopg.connect(url) as own:
        queue.within(own).enqueue("mail")
        own.rollback()
        assert listener.wait(0.3) >= 0.3
        queue.within(own).enqueue("mail")
        own.commit()
        assert listener.wait(PATIENCE_SECONDS) < PATIENCE_SECONDS, "the listener was not woken"
    store.notifier.remove(lane_topic("default"), listener)
    queue.close()


def test_two_callers_with_the_same_key_make_one_job(queue: holdfast.Queue, own: Any) -> None:
    queue.within(own).enqueue("mail", 1, job_id="first", dedupe_key="k")
    answers: list[holdfast.types.Enqueued[Any]] = []
    other = threading.Thread(target=lambda: answers.append(queue.enqueue("mail", 2, dedupe_key="k")))
    other.start()
    own.commit()
    other.join(PATIENCE_SECONDS)
    assert [(answer.id, answer.created) for answer in answers] == [("first", False)]


def test_calls_of_several_tasks_on_one_connection_do_not_overlap(url: str, schema: str) -> None:
    async def scenario() -> None:
        async with (
            holdfast.connect_async(url, schema=schema) as queue,
            await psycopg.AsyncConnection.connect(url) as own,
        ):
            await queue.migrate()
            calls = [queue.within(own).enqueue("mail", number % 2, job_id=str(number // 2)) for number in range(40)]
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            await own.commit()
            assert sum(isinstance(one, Conflict) for one in outcomes) == 20
            assert await queue.counts() == {"ready": 20}

    asyncio.run(scenario())


def test_awaited_connections_are_joined_too(url: str, schema: str) -> None:
    async def scenario() -> None:
        async with (
            holdfast.connect_async(url, schema=schema) as queue,
            await psycopg.AsyncConnection.connect(url, row_factory=dict_row) as own,
        ):
            await queue.migrate()
            for job_id, end in (("kept", own.commit), ("lost", own.rollback)):
                joined = queue.within(own)
                assert (await joined.enqueue("mail", job_id=job_id)).created
                with pytest.raises(Conflict):
                    await joined.enqueue("mail", "other", job_id=job_id)
                await end()
            assert [job.id for job in await queue.jobs()] == ["kept"]

    asyncio.run(scenario())
