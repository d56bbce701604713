"""How the store is opened and shared: its options, connections, threads, event loops and forks."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from typing import Any

import psycopg
import pytest

import holdfast
from holdfast import InvalidInput, Misconfigured
from holdfast.client.connect import async_queue_on, queue_on
from holdfast.errors import StoreBusy
from holdfast.storage import runners
from holdfast.storage.cancellation import finish_despite_cancellation
from holdfast.storage.postgres import commits, pool
from holdfast.storage.postgres.io import Statement, SyncIO, is_idle
from holdfast.storage.postgres.store import PostgresStore
from tests.chaos.processes import PATIENCE_SECONDS
from tests.chaos.threads import in_background, wait_until
from tests.support.postgres_server import database_url


class TestOptions:
    @pytest.mark.parametrize(
        ("url", "options", "field"),
        [
            ("postgresql://host/db", {"durability": "relaxed"}, "durability"),
            ("postgresql://host/db", {"network_files": True}, "network_files"),
            ("postgresql://host/db", {"schema": "Robert'); drop"}, "schema"),
            ("postgresql://host/db", {"schema": "x" * 49}, "schema"),
            ("postgresql://host/db", {"schema": ""}, "schema"),
            ("postgresql://host/db", {"listen_url": ""}, "listen_url"),
            ("postgresql://host/db?no_such_word=1", {}, "url"),
            ("mysql://host/db", {}, "url"),
            ("jobs.db", {"schema": "other"}, "schema"),
            ("jobs.db", {"listen_url": "postgresql://host/db"}, "listen_url"),
        ],
    )
    def test_an_invalid_option_is_refused_by_name(self, url: str, options: Any, field: str) -> None:
        for connect in (holdfast.connect, holdfast.connect_async):
            with pytest.raises(InvalidInput) as caught:
                connect(url, **options)
            assert caught.value.field == field

    def test_both_spellings_of_the_scheme_are_known(self, url: str, schema: str) -> None:
        with holdfast.connect(url.replace("postgresql://", "postgres://"), schema=schema) as queue:
            assert queue.enqueue("mail").created

    def test_nothing_is_opened_until_it_is_used(self) -> None:
        holdfast.connect("postgresql://nobody@127.0.0.1:1/nothing")

    def test_without_the_driver_it_says_what_to_install(self) -> None:
        program = """
import sys
sys.modules["psycopg"] = None
import holdfast
try:
    holdfast.connect("postgresql://host/db")
except holdfast.Misconfigured as error:
    print(error)
"""
        result = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
        )
        assert ".[postgres]" in result.stdout


CHANGES = [
    "set synchronous_commit = off",
    "set client_encoding = latin1",
    "set search_path = pg_catalog",
    "set session authorization pg_monitor",
    "set role pg_monitor",
    "create temporary table kept (x int)",
    "select pg_advisory_lock(4711)",
]
SESSION_STATE = """
    select pg_backend_pid(), current_setting('synchronous_commit'), current_setting('client_encoding'),
           current_setting('search_path'), session_user, current_user, to_regclass('pg_temp.kept'),
           (select count(*) from pg_locks where locktype = 'advisory' and objid = 4711)"""


class TestSessionState:
    """The caller's own SQL in a transaction does not affect later users of the connection."""

    @pytest.mark.parametrize("change", CHANGES)
    def test_a_change_of_the_session_ends_with_its_transaction(self, queue: holdfast.Queue, change: str) -> None:
        with queue.transaction() as tx:
            before = tx.execute(SESSION_STATE)
        with queue.transaction() as tx:
            tx.enqueue("mail")
            tx.execute(change)
        with queue.transaction() as tx:
            assert tx.execute(SESSION_STATE) == before, "the same connection, as it was"
        assert queue.enqueue("mail").created

    def test_so_does_one_in_a_transaction_that_fails(self, queue: holdfast.Queue) -> None:
        with queue.transaction() as tx:
            before = tx.execute(SESSION_STATE)

        def fail() -> None:
            with queue.transaction() as tx:
                tx.execute("select pg_advisory_lock(4711)")
                raise LookupError

        with pytest.raises(LookupError):
            fail()
        with queue.transaction() as tx:
            assert tx.execute(SESSION_STATE) == before

    def test_a_session_that_the_caller_has_left_in_an_unknown_state_is_closed(self, queue: holdfast.Queue) -> None:
        with queue.transaction() as tx:
            [[first, *before]] = tx.execute(SESSION_STATE)

        def commit_by_hand() -> None:
            with queue.transaction() as tx:
                tx.execute("set synchronous_commit = off")
                tx.execute("commit")

        with pytest.raises(Misconfigured, match="ended"):
            commit_by_hand()
        with queue.transaction() as tx:
            [[second, *after]] = tx.execute(SESSION_STATE)
        assert first != second
        assert after == before

    def test_so_does_one_of_an_async_transaction(self, url: str, schema: str) -> None:
        async def scenario() -> None:
            async with holdfast.connect_async(url, schema=schema) as queue:
                async with queue.transaction() as tx:
                    before = await tx.execute(SESSION_STATE)
                async with queue.transaction() as tx:
                    await tx.execute("set synchronous_commit = off")
                async with queue.transaction() as tx:
                    assert await tx.execute(SESSION_STATE) == before

        asyncio.run(scenario())


class TestReadsBesideTransactions:
    """Any number of callers that hold a transaction may read at the same time."""

    @pytest.fixture(autouse=True)
    def _few_connections(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pool, "_SIZE", 2)

    def test_threads(self, queue: holdfast.Queue) -> None:
        queue.enqueue("mail")
        together = threading.Barrier(2)

        def read() -> dict[str, int]:
            with queue.transaction() as tx:
                tx.enqueue("mail")
                together.wait(PATIENCE_SECONDS)
                counts = queue.counts()
                together.wait(PATIENCE_SECONDS)  # neither commits before both have read
                return counts

        answers = [in_background(read) for _ in range(2)]
        assert [answer.result(PATIENCE_SECONDS)["ready"] for answer in answers] == [1, 1]
        assert queue.counts()["ready"] == 3

    def test_tasks(self, url: str, schema: str) -> None:
        async def scenario() -> list[int]:
            async with holdfast.connect_async(url, schema=schema) as queue:
                await queue.enqueue("mail")
                all_hold_one, all_have_read = asyncio.Event(), asyncio.Event()
                held = have_read = 0

                async def read() -> int:
                    nonlocal held, have_read
                    async with queue.transaction() as tx:
                        await tx.enqueue("mail")
                        held += 1
                        if held == 2:
                            all_hold_one.set()
                        await all_hold_one.wait()
                        ready = (await queue.counts())["ready"]
                        have_read += 1
                        if have_read == 2:
                            all_have_read.set()
                        await all_have_read.wait()
                        return ready

                return list(await asyncio.gather(read(), read()))

        assert asyncio.run(scenario()) == [1, 1]

    def test_more_transactions_than_connections_are_refused_in_bounded_time(
        self, queue: holdfast.Queue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(pool, "_SIZE", 1)
        monkeypatch.setattr(pool, "_TIMEOUT_SECONDS", 0.05)
        with queue.transaction() as tx:
            tx.enqueue("mail")
            with pytest.raises(StoreBusy, match="all 1 connections"):
                in_background(lambda: queue.enqueue("mail")).result(PATIENCE_SECONDS)


class TestTransactions:
    def test_statements_of_the_callers_own_keep_their_errors(self, queue: holdfast.Queue, schema: str) -> None:
        def fail() -> None:
            with queue.transaction() as tx:
                tx.execute(f"create table {schema}.orders (id integer primary key)")
                tx.execute(f"insert into {schema}.orders values (?)", (1,))
                tx.execute(f"insert into {schema}.orders values (1)")

        with pytest.raises(psycopg.errors.UniqueViolation):
            fail()

    def test_one_in_which_a_statement_failed_does_not_pass_for_committed(self, queue: holdfast.Queue) -> None:
        def go_on_regardless() -> None:
            with queue.transaction() as tx:
                tx.enqueue("mail")
                with pytest.raises(psycopg.errors.UndefinedTable):
                    tx.execute("select * from missing")

        with pytest.raises(Misconfigured, match="statement failed"):
            go_on_regardless()
        assert queue.counts() == {}

    def test_the_callers_own_statements_are_planned_as_ever(self, queue: holdfast.Queue) -> None:
        with queue.transaction() as tx:
            tx.enqueue("mail")
            assert tx.execute("select current_setting('enable_seqscan'), current_setting('jit')") == [("on", "on")]

    def test_a_write_beside_it_is_refused_rather_than_waited_for(self, queue: holdfast.Queue) -> None:
        with queue.transaction() as tx:
            made = tx.enqueue("mail")
            with pytest.raises(Misconfigured, match="methods of the transaction"):
                queue.enqueue("mail")
            assert queue.counts() == {}
        assert queue.get(made.id).state == "ready"


class TestSharing:
    def test_more_threads_than_connections_all_come_through(self, queue: holdfast.Queue) -> None:
        threads = [threading.Thread(target=lambda: queue.enqueue("mail")) for _ in range(60)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
        assert queue.counts() == {"ready": 60}

    def test_more_tasks_than_connections_all_come_through(self, url: str, schema: str) -> None:
        async def scenario() -> dict[str, int]:
            async with holdfast.connect_async(url, schema=schema) as queue:
                await asyncio.gather(*(queue.enqueue("mail") for _ in range(60)))
                return await queue.counts()

        assert asyncio.run(scenario()) == {"ready": 60}

    def test_a_cancelled_call_is_brought_to_its_end(self, url: str, schema: str) -> None:
        async def scenario() -> None:
            reached = asyncio.Event()
            queue = async_queue_on(PostgresStore(url, schema=schema, observe=lambda _name: reached.set()))
            await queue.migrate()
            task = asyncio.create_task(queue.enqueue("mail", job_id="a"))
            await reached.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            with holdfast.connect(url, schema=schema) as other:
                await asyncio.to_thread(wait_until, lambda: other.counts() == {"ready": 1})
            assert not (await queue.enqueue("mail", job_id="a")).created
            await queue.close()

        asyncio.run(scenario())

    def test_a_garbage_collected_queue_leaves_no_connection(self, url: str, schema: str) -> None:
        store = PostgresStore(f"{url}?application_name=forgotten", schema=schema)
        queue = queue_on(store)
        queue.enqueue("mail")
        query = b"select count(*) from pg_stat_activity where application_name = 'forgotten'"
        with psycopg.connect(url, autocommit=True) as other:
            assert other.execute(query).fetchone() == (1,)
            del store, queue
            gc.collect()
            for _ in range(200):
                if other.execute(query).fetchone() == (0,):
                    return
                threading.Event().wait(0.02)
        pytest.fail("the connection is still there")

    def test_a_closed_queue_opens_again(self, queue: holdfast.Queue) -> None:
        queue.enqueue("mail")
        queue.close()
        assert queue.counts() == {"ready": 1}

    def test_parent_and_child_of_a_fork_both_go_on(self, url: str, schema: str) -> None:
        program = """
import os, sys
import holdfast, psycopg
queue = holdfast.connect(sys.argv[1] + "?application_name=family", schema=sys.argv[2])
queue.enqueue_many([{"kind": "mail"}] * 4)
claim = queue.claim()
child = os.fork()
if child == 0:
    sys.exit(0 if queue.claim() is not None else 1)
assert os.waitpid(child, 0)[1] == 0
with psycopg.connect(sys.argv[1]) as other:
    query = "select count(*) from pg_stat_activity where application_name = 'family'"
    print("still open:", *other.execute(query).fetchone())
print(queue.settle(claim, holdfast.Done()).state, queue.counts())
"""
        options = [sys.executable, "-c", program, url, schema]
        result = subprocess.run(options, capture_output=True, text=True, check=True, timeout=60)
        assert result.stdout.splitlines() == ["still open: 1", "done {'done': 1, 'ready': 2, 'running': 1}"]

    @pytest.mark.parametrize("opening", ["with queue.transaction()", "async with async_queue.transaction()"])
    def test_a_process_forked_within_a_transaction_leaves_its_connection_alone(
        self, url: str, schema: str, opening: str
    ) -> None:
        program = f"""
import asyncio, os, sys
import holdfast
options = {{"url": sys.argv[1], "schema": sys.argv[2]}}
queue, async_queue = holdfast.connect(**options), holdfast.connect_async(**options)
async def main():
    child = None
    try:
        {opening} as transaction:
            child = os.fork()
            if child:
                os.waitpid(child, 0)
                stored = transaction.enqueue("mail", job_id="stored")
                if asyncio.iscoroutine(stored):
                    await stored
    except holdfast.errors.Misconfigured as error:
        print(str(error)[:31], flush=True)
    if not child:
        os._exit(0)
asyncio.run(main())
print(queue.counts())
"""
        options = [sys.executable, "-c", program, url, schema]
        result = subprocess.run(options, capture_output=True, text=True, check=True, timeout=60)
        assert result.stdout.splitlines() == ["this process was forked while a", "{'ready': 1}"]


def test_work_that_fails_after_its_caller_was_cancelled_leaves_no_error_for_the_event_loop_to_log() -> None:
    logged: list[dict[str, Any]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, about: logged.append(about))
        failing = asyncio.Event()

        async def fail() -> None:
            await failing.wait()
            raise RuntimeError("the statement failed")

        task = asyncio.ensure_future(finish_despite_cancellation(fail()))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        failing.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        del task
        gc.collect()

    asyncio.run(main())
    assert logged == []


def test_a_commit_whose_last_statement_fails_leaves_no_transaction_open() -> None:
    settings = commits.PostgresSettings("holdfast", None, commits.unobserved)
    with psycopg.connect(database_url(), autocommit=True) as connection:
        server = SyncIO(connection)
        for statement in (b"select 1", b"select 1 / 0"):  # the first prepares the notification
            runners.run_sync(server.message("begin"))
            committing = commits.commit(settings, server, {"topic"}, [Statement(statement)])
            if statement == b"select 1":
                runners.run_sync(committing)
            else:
                with pytest.raises(psycopg.errors.DivisionByZero):
                    runners.run_sync(committing)
        assert not is_idle(connection)
        runners.run_sync(commits.roll_back(server))
        assert is_idle(connection)
        assert runners.run_sync(server.message("select 1")) == [(1,)]
