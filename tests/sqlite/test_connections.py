"""How the store shares its file: with the caller's own connections, with threads and tasks, and across a fork."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from pathlib import Path
from typing import Any

import aiosqlite
import pytest

import holdfast
from holdfast import Done, InvalidInput, JobNotFound, LeaseLost, Misconfigured


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "jobs.db")


@pytest.fixture
def queue(path: str) -> holdfast.Queue:
    queue = holdfast.connect(path)
    queue.migrate()
    return queue


class TestWithin:
    def test_commit_brings_the_job_and_rollback_does_not(self, queue: holdfast.Queue, path: str) -> None:
        own = sqlite3.connect(path, isolation_level=None)
        own.execute("create table orders (id integer)")
        for job_id, ending in (("kept", "commit"), ("lost", "rollback")):
            own.execute("begin immediate")
            own.execute("insert into orders values (1)")
            assert queue.within(own).enqueue("mail", job_id=job_id).created
            own.execute(ending)
        assert queue.get("kept").state == "ready"
        with pytest.raises(JobNotFound):
            queue.get("lost")
        assert own.execute("select count(*) from orders").fetchone() == (1,)

    def test_a_settle_joins_the_callers_transaction(self, queue: holdfast.Queue, path: str) -> None:
        made = queue.enqueue("mail")
        claim = queue.claim()
        assert claim is not None
        own = sqlite3.connect(path, isolation_level=None)
        own.execute("begin immediate")
        assert queue.within(own).settle(claim, Done()).state == "done"
        own.execute("rollback")
        assert queue.get(made.id).state == "running"
        assert len(queue.events()) == 0
        own.execute("begin immediate")
        queue.within(own).settle(claim, Done())
        own.execute("commit")
        assert [event.name for event in queue.events()] == ["done"]

    def test_a_refusal_leaves_the_callers_transaction_usable(self, queue: holdfast.Queue, path: str) -> None:
        queue.enqueue("mail", job_id="a")
        claim = queue.claim()
        assert claim is not None
        queue.cancel("a", force=True)
        own = sqlite3.connect(path, isolation_level=None)
        own.execute("begin immediate")
        joined = queue.within(own)
        joined.enqueue("mail", job_id="b")
        with pytest.raises(LeaseLost):
            joined.settle(claim, Done())
        own.execute("commit")
        assert queue.get("b").state == "ready"

    @pytest.mark.parametrize("factory", [sqlite3.Row, lambda _cursor, row: {"row": row}])
    def test_the_callers_row_factory_does_not_matter(self, queue: holdfast.Queue, path: str, factory: Any) -> None:
        own = sqlite3.connect(path, isolation_level=None)
        own.row_factory = factory
        own.execute("begin immediate")
        made = queue.within(own).enqueue("mail", {"n": 1}, job_id="a")
        own.execute("commit")
        assert made.job.payload == {"n": 1}
        assert queue.get("a").kind == "mail"

    def test_without_an_open_transaction_it_is_refused(self, queue: holdfast.Queue, path: str) -> None:
        with pytest.raises(InvalidInput, match="no open transaction"):
            queue.within(sqlite3.connect(path))

    def test_a_connection_to_another_file_is_refused(self, queue: holdfast.Queue, tmp_path: Path) -> None:
        other = sqlite3.connect(tmp_path / "other.db", isolation_level=None)
        other.execute("begin immediate")
        with pytest.raises(InvalidInput, match=r"other\.db"):
            queue.within(other)

    def test_something_that_is_no_connection_is_refused(self, queue: holdfast.Queue) -> None:
        class Odd:
            in_transaction = True

        with pytest.raises(InvalidInput, match="Odd"):
            queue.within(Odd())

    def test_aiosqlite_connections_are_joined_too(self, path: str) -> None:
        async def scenario() -> None:
            queue = holdfast.connect_async(path)
            await queue.migrate()
            async with aiosqlite.connect(path, isolation_level=None) as own:
                for job_id, ending in (("kept", "commit"), ("lost", "rollback")):
                    await own.execute("begin immediate")
                    joined = queue.within(own)
                    made = await joined.enqueue_many([{"kind": "mail", "job_id": job_id}, {"kind": "mail"}])
                    assert made[0].created
                    with pytest.raises(holdfast.Conflict):
                        await joined.enqueue("mail", {"other": 1}, job_id=job_id)
                    await own.execute(ending)
            assert (await queue.get("kept")).state == "ready"
            with pytest.raises(JobNotFound):
                await queue.get("lost")
            assert await queue.counts() == {"ready": 2}
            await queue.close()

        asyncio.run(scenario())

    def test_an_aiosqlite_connection_to_another_file_is_refused(self, path: str, tmp_path: Path) -> None:
        async def scenario() -> None:
            queue = holdfast.connect_async(path)
            await queue.migrate()
            async with aiosqlite.connect(tmp_path / "other.db", isolation_level=None) as own:
                await own.execute("begin immediate")
                with pytest.raises(InvalidInput, match=r"other\.db"):
                    await queue.within(own).enqueue("mail")
            await queue.close()

        asyncio.run(scenario())


class TestOpenTransactions:
    def test_a_queues_own_method_inside_its_transaction_is_refused_instead_of_hanging(
        self, queue: holdfast.Queue
    ) -> None:
        with queue.transaction():
            for method in (queue.enqueue, queue.requeue):
                with pytest.raises(Misconfigured, match="methods of the transaction"):
                    method("mail")
            with pytest.raises(Misconfigured, match="methods of the transaction"):
                queue.close()

    def test_reading_beside_an_open_transaction_sees_the_state_before_it(self, queue: holdfast.Queue) -> None:
        with queue.transaction() as tx:
            tx.enqueue("mail")
            assert queue.counts() == {}
        assert queue.counts() == {"ready": 1}

    def test_a_task_cancelled_in_its_transaction_leaves_the_queue_usable(self, path: str) -> None:
        async def scenario() -> None:
            queue = holdfast.connect_async(path)

            async def stuck() -> None:
                async with queue.transaction() as tx:
                    await tx.enqueue("mail", job_id="lost")
                    inside.set()
                    await asyncio.Event().wait()

            inside = asyncio.Event()
            task = asyncio.create_task(stuck())
            await inside.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await queue.enqueue("mail", job_id="kept")
            assert [job.id for job in await queue.jobs()] == ["kept"]
            await queue.close()

        asyncio.run(scenario())

    def test_one_async_queue_serves_several_event_loops(self, path: str) -> None:
        queue = holdfast.connect_async(path)

        async def enqueue() -> None:
            await asyncio.gather(*(queue.enqueue("mail") for _ in range(20)))

        threads = [threading.Thread(target=asyncio.run, args=(enqueue(),)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert holdfast.connect(path).counts() == {"ready": 60}
        asyncio.run(queue.close())


class TestFork:
    def test_a_forked_child_opens_the_file_for_itself(self, queue: holdfast.Queue) -> None:
        queue.enqueue("mail", job_id="parent")
        child = os.fork()
        if child == 0:
            try:
                queue.enqueue("mail", job_id="child")
                os._exit(0)
            except BaseException:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        queue.enqueue("mail", job_id="parent again")
        assert {job.id for job in queue.jobs()} == {"parent", "child", "parent again"}


class TestClosing:
    def test_a_closed_queue_opens_again_when_it_is_used(self, queue: holdfast.Queue) -> None:
        queue.enqueue("mail")
        queue.close()
        assert queue.counts() == {"ready": 1}

    def test_no_file_stays_open_after_closing(self, queue: holdfast.Queue, path: str) -> None:
        queue.enqueue("mail")
        assert queue.counts()
        queue.close()
        held = [str(number.readlink()) for number in Path("/proc/self/fd").iterdir() if number.is_symlink()]
        assert [name for name in held if name.startswith(path)] == []


class TestWithoutMigrating:
    def test_a_missing_file_is_not_made(self, tmp_path: Path) -> None:
        path = tmp_path / "missing.db"
        with pytest.raises(holdfast.StoreUnreachable, match="does not create"):
            holdfast.connect(str(path), migrate=False).counts()
        assert not path.exists()

    def test_somebody_elses_file_stays_as_it_is(self, tmp_path: Path) -> None:
        path = tmp_path / "app.db"
        own = sqlite3.connect(path)
        own.execute("create table orders (id integer)")
        own.close()
        before = path.read_bytes()
        queue = holdfast.connect(str(path), migrate=False)
        with pytest.raises(holdfast.SchemaMismatch, match="holdfast migrate"):
            queue.counts()
        with pytest.raises(holdfast.SchemaMismatch, match="holdfast migrate"):
            queue.enqueue("mail")
        assert path.read_bytes() == before

    def test_a_current_file_is_used(self, queue: holdfast.Queue, path: str) -> None:
        queue.enqueue("mail")
        assert holdfast.connect(path, migrate=False).counts() == {"ready": 1}


def test_ending_the_transaction_by_sql_is_told(queue: holdfast.Queue) -> None:
    with pytest.raises(Misconfigured, match="leave commit and rollback to the block"), queue.transaction() as tx:
        tx.execute("commit")
    assert queue.enqueue("mail").created
