"""How the store shares its file: with the caller's own connections, with threads and tasks, and across a fork."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiosqlite
import pytest

import holdfast
from holdfast import Done, InvalidInput, JobNotFound, LeaseLost, Misconfigured
from holdfast.client.queue_state import state_of
from holdfast.errors import StoreBusy
from holdfast.storage.sqlite import connection, writer
from tests.chaos.processes import PATIENCE_SECONDS
from tests.chaos.threads import in_background


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

    @pytest.mark.parametrize(
        "change",
        [
            lambda own: setattr(own, "text_factory", bytes),
            lambda own: setattr(own, "text_factory", lambda raw: raw.decode().split()),
            lambda own: own.execute("pragma count_changes = 1"),
        ],
        ids=["bytes", "lists", "count_changes"],
    )
    def test_a_connection_that_changes_what_statements_return_is_refused(
        self, queue: holdfast.Queue, path: str, change: Callable[[sqlite3.Connection], object]
    ) -> None:
        own = sqlite3.connect(path, isolation_level=None)
        change(own)
        own.execute("begin immediate")
        with pytest.raises(InvalidInput, match=r"text_factory to str|count_changes = 0"):
            queue.within(own)

    @pytest.mark.parametrize("kind", ["integer", "text"])
    def test_a_connection_with_converters_is_refused(
        self, queue: holdfast.Queue, path: str, monkeypatch: pytest.MonkeyPatch, kind: str
    ) -> None:
        monkeypatch.setitem(sqlite3.converters, kind.upper(), lambda raw: [raw])
        own = sqlite3.connect(path, isolation_level=None, detect_types=sqlite3.PARSE_DECLTYPES)
        own.execute("begin immediate")
        with pytest.raises(InvalidInput, match="detect_types"):
            queue.within(own)

    def test_an_odd_aiosqlite_connection_is_refused(self, path: str) -> None:
        async def scenario() -> None:
            queue = holdfast.connect_async(path)
            await queue.migrate()
            async with aiosqlite.connect(path, isolation_level=None) as own:
                own.text_factory = bytes
                await own.execute("begin immediate")
                with pytest.raises(InvalidInput, match="text_factory to str"):
                    await queue.within(own).enqueue("mail")
            await queue.close()

        asyncio.run(scenario())

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

    def test_calls_of_several_tasks_on_an_aiosqlite_connection_do_not_overlap(self, path: str) -> None:
        async def scenario() -> None:
            queue = holdfast.connect_async(path)
            await queue.migrate()
            async with aiosqlite.connect(path, isolation_level=None) as own:
                await own.execute("begin immediate")
                calls = [queue.within(own).enqueue("mail", n % 2, job_id=str(n // 2)) for n in range(40)]
                outcomes = await asyncio.gather(*calls, return_exceptions=True)
                await own.execute("commit")
            assert sum(isinstance(one, holdfast.Conflict) for one in outcomes) == 20
            assert await queue.counts() == {"ready": 20}
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


class TestWaitingForTheWriter:
    """The timeout is short here: only its end can end these calls."""

    @pytest.fixture(autouse=True)
    def short_patience(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(connection, "BUSY_SECONDS", 0.1)

    def test_a_thread_that_waits_too_long_for_another_is_told(self, queue: holdfast.Queue) -> None:
        with queue.transaction() as transaction:
            transaction.enqueue("mail", job_id="held")
            for use in (queue.claim, lambda: queue.transaction().__enter__(), queue.close):
                with pytest.raises(StoreBusy, match="another caller of this queue"):
                    in_background(use).result(PATIENCE_SECONDS)
        assert queue.enqueue("mail").created
        assert queue.counts() == {"ready": 2}

    def test_a_task_that_waits_too_long_for_another_is_told(self, path: str) -> None:
        async def scenario() -> None:
            queue = holdfast.connect_async(path)
            others = [queue.enqueue("mail"), queue.claim(), queue.transaction().__aenter__()]
            held = asyncio.Event()
            waiting = [asyncio.create_task(waits(other, held)) for other in others]
            async with queue.transaction() as transaction:
                await transaction.enqueue("mail", job_id="held")
                held.set()
                results = await asyncio.gather(*waiting, return_exceptions=True)
            assert [type(error) for error in results] == [StoreBusy] * 3
            assert (await queue.enqueue("mail")).created
            assert await queue.counts() == {"ready": 2}
            await queue.close()

        async def waits(other: Any, held: asyncio.Event) -> None:
            await held.wait()
            await other

        asyncio.run(scenario())

    def test_a_task_in_its_own_transaction_is_told_at_once(self, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(connection, "BUSY_SECONDS", PATIENCE_SECONDS)

        async def scenario() -> None:
            queue = holdfast.connect_async(path)
            async with queue.transaction():
                for use in (queue.enqueue("mail"), queue.claim(), queue.claim_many(limit=2)):
                    with pytest.raises(Misconfigured, match="call the methods of the transaction"):
                        async with asyncio.timeout(PATIENCE_SECONDS / 2):
                            await use
            await queue.close()

        asyncio.run(scenario())

    def test_gathering_calls_of_the_queue_inside_its_transaction_is_told(self, path: str) -> None:
        async def scenario() -> None:
            queue = holdfast.connect_async(path)
            async with queue.transaction() as transaction:
                results = await asyncio.gather(
                    queue.enqueue("mail"),
                    queue.claim(),
                    queue.transaction().__aenter__(),
                    asyncio.to_thread(holdfast.Queue(state_of(queue)).enqueue, "mail"),
                    return_exceptions=True,
                )
                await transaction.enqueue("mail", job_id="kept")
            assert [type(error) for error in results] == [Misconfigured] * 4
            assert all("call the methods of the transaction" in str(error) for error in results)
            assert [job.id for job in await queue.jobs()] == ["kept"]
            await queue.close()

        asyncio.run(scenario())

    def test_a_task_started_in_a_transaction_runs_after_it(self, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(connection, "BUSY_SECONDS", PATIENCE_SECONDS)

        async def scenario() -> None:
            queue = holdfast.connect_async(path)
            async with queue.transaction():
                after = asyncio.create_task(queue.enqueue("mail"))
                await asyncio.sleep(0)
            assert (await after).created
            await queue.close()

        asyncio.run(scenario())

    def test_calls_of_the_transaction_may_be_gathered_and_one_be_refused(self, path: str) -> None:
        async def scenario() -> None:
            queue = holdfast.connect_async(path)
            await queue.enqueue("mail", {"n": 1}, job_id="taken")
            async with queue.transaction() as transaction:
                calls = [
                    transaction.enqueue("mail", {"n": n}, job_id="taken" if n % 3 == 0 else f"job-{n}")
                    for n in range(30)
                ]
                results = await asyncio.gather(*calls, return_exceptions=True)
            assert [isinstance(answer, holdfast.Conflict) for answer in results] == [n % 3 == 0 for n in range(30)]
            assert (await queue.counts())["ready"] == 21
            await queue.close()

        asyncio.run(scenario())


class TestLoopsThatEnd:
    @pytest.fixture(autouse=True)
    def quick_look(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(writer, "_POLL_SECONDS", 0.01)

    @staticmethod
    def leave_open(queue: holdfast.AsyncQueue) -> asyncio.Task[None]:
        """Close a loop while one of its tasks, which is still referenced, is inside a transaction."""
        inside = asyncio.Event()

        async def hold() -> None:
            async with queue.transaction() as transaction:
                await transaction.enqueue("mail", job_id="lost")
                inside.set()
                await asyncio.Event().wait()

        loop = asyncio.new_event_loop()
        task = loop.create_task(hold())
        loop.run_until_complete(inside.wait())
        loop.close()
        return task

    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    def test_a_transaction_left_open_by_a_closed_loop_holds_up_no_caller(self, path: str) -> None:
        queue = holdfast.connect_async(path)
        task = self.leave_open(queue)
        with holdfast.connect(path) as other:
            assert other.enqueue("mail", job_id="others").created
        blocking = holdfast.Queue(state_of(queue))
        assert blocking.enqueue("mail", job_id="ours").created
        assert {job.id for job in blocking.jobs()} == {"others", "ours"}
        assert not task.done()
        blocking.close()

    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    def test_a_transaction_that_queued_in_a_closed_loop_does_not_get_the_lead(self, path: str) -> None:
        queue = holdfast.connect_async(path)
        blocking = holdfast.Queue(state_of(queue))
        loop = asyncio.new_event_loop()
        with blocking.transaction() as transaction:
            transaction.enqueue("mail", job_id="first")
            entering = loop.create_task(queue.transaction().__aenter__())
            loop.run_until_complete(asyncio.sleep(0))
            loop.close()
        assert blocking.enqueue("mail", job_id="second").created
        assert not entering.done()
        blocking.close()

    def test_the_end_of_a_transaction_waits_for_no_lock_of_the_watch(self) -> None:
        # The garbage collector may end an abandoned one while its thread, or one that waits for it, holds the lock.
        async def ticket() -> writer.TransactionTicket:
            return writer.TransactionTicket()

        watch, held = writer._Watch(), asyncio.run(ticket())
        watch._abandoning[held] = lambda _: None
        with watch._mutex:
            in_background(watch.discard, held).result(PATIENCE_SECONDS)
        assert not watch._abandoning


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

    def test_a_closed_queue_in_memory_is_refused_because_its_jobs_are_gone(self) -> None:
        queue = holdfast.connect(":memory:")
        queue.enqueue("mail")
        queue.close()
        for use in (queue.counts, lambda: queue.enqueue("mail"), lambda: queue.transaction().__enter__()):
            with pytest.raises(Misconfigured, match="in memory and has been closed"):
                use()
        queue.close()

    def test_no_file_stays_open_after_closing(self, queue: holdfast.Queue, path: str) -> None:
        queue.enqueue("mail")
        assert queue.counts()
        queue.close()
        held = [str(number.readlink()) for number in Path("/proc/self/fd").iterdir() if number.is_symlink()]
        assert [name for name in held if name.startswith(path)] == []


class TestWithoutMigrating:
    def test_a_missing_file_is_not_made(self, tmp_path: Path) -> None:
        path = tmp_path / "missing.db"
        with pytest.raises(holdfast.errors.StoreUnreachable, match="does not create"):
            holdfast.connect(str(path), migrate=False).counts()
        assert not path.exists()

    def test_a_foreign_file_stays_unchanged(self, tmp_path: Path) -> None:
        path = tmp_path / "app.db"
        own = sqlite3.connect(path)
        own.execute("create table orders (id integer)")
        own.close()
        before = path.read_bytes()
        queue = holdfast.connect(str(path), migrate=False)
        with pytest.raises(
            holdfast.errors.SchemaMismatch, match="has no Holdfast schema; `holdfast migrate` creates it"
        ):
            queue.counts()
        with pytest.raises(holdfast.errors.SchemaMismatch, match="holdfast migrate"):
            queue.enqueue("mail")
        assert path.read_bytes() == before

    def test_a_current_file_is_used(self, queue: holdfast.Queue, path: str) -> None:
        queue.enqueue("mail")
        assert holdfast.connect(path, migrate=False).counts() == {"ready": 1}


def test_ending_the_transaction_by_sql_is_told(queue: holdfast.Queue) -> None:
    with pytest.raises(Misconfigured, match="leave commit and rollback to the block"), queue.transaction() as tx:
        tx.execute("commit")
    assert queue.enqueue("mail").created
