"""A notification that waits or fails after its commit changes nothing: the call returns the committed result."""

from __future__ import annotations

import asyncio
import logging
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

import holdfast
from holdfast import Done, NewJob
from holdfast.storage.postgres import commits
from tests.chaos.processes import PATIENCE_SECONDS
from tests.chaos.threads import wait_until
from tests.support.claims import claim_one
from tests.support.postgres_server import Server

WAITS_TO_NOTIFY = "wait_event_type = 'Lock' and query like '%pg_notify%'"


@contextmanager
def notifications_held(server: Server) -> Iterator[None]:
    """Hold the lock that notifications need: a notifying transaction waits for a standby that does not exist."""
    released = threading.Event()

    def hold() -> None:
        with psycopg.connect(server.url) as holder:
            holder.execute("create table if not exists held (x int)")
            while not released.is_set():  # the server takes a moment to apply the setting
                holder.execute("insert into held values (1)")
                holder.execute("notify held")
                holder.commit()

    holding = threading.Thread(target=hold)
    with server.superuser() as connection:
        connection.execute("alter system set synchronous_standby_names = 'missing'")
        connection.execute("select pg_reload_conf()")
        holding.start()
        waiting = b"select 1 from pg_stat_activity where wait_event = 'SyncRep'"
        wait_until(lambda: connection.execute(waiting).fetchone() is not None)
        try:
            yield
        finally:
            released.set()
            connection.execute("alter system reset synchronous_standby_names")
            connection.execute("select pg_reload_conf()")
            holding.join(PATIENCE_SECONDS)


@pytest.fixture(params=["lock_timeout", "terminated"])
def url(request: pytest.FixtureRequest, server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a role whose notifications fail while another transaction holds their lock."""
    url = f"{server.url}?options=-csynchronous_commit%3Dlocal"
    ended = threading.Event()

    def terminate() -> None:
        while not ended.wait(0.01):
            server.terminate_backends(WAITS_TO_NOTIFY)

    terminator = threading.Thread(target=terminate)
    if request.param == "lock_timeout":
        monkeypatch.setattr(commits, "_NOTIFY_LOCK_MS", 20)
    if request.param == "terminated":
        terminator.start()
    yield url
    ended.set()
    if request.param == "terminated":
        terminator.join(PATIENCE_SECONDS)


@pytest.fixture(scope="module")
def schema(server: Server) -> str:
    holdfast.connect(server.url, schema="notifications").migrate()
    return "notifications"


def test_calls_return_what_they_have_committed(
    server: Server, url: str, schema: str, caplog: pytest.LogCaptureFixture
) -> None:
    with holdfast.connect(url, schema=schema) as queue, caplog.at_level(logging.WARNING, "holdfast"):
        first = queue.enqueue("mail")
        with notifications_held(server):
            made = [queue.enqueue("mail"), *queue.enqueue_many([NewJob("mail", dedupe_key=uuid.uuid4().hex)])]
            with queue.transaction() as transaction:
                made.append(transaction.enqueue("mail"))
            claim = claim_one(queue)
            assert queue.settle(claim, Done()).state == "done"
        assert claim.job.id == first.id
        assert [queue.get(one.id).state for one in made] == ["ready"] * 3
        queue.settle_many([(claim, Done()) for claim in queue.claim_many(limit=3)])
    logged = [record.getMessage() for record in caplog.records]
    assert len(logged) == 1, "one warning for all failed notifications"
    assert "polling" in logged[0]


def test_async_calls_return_what_they_have_committed(server: Server, url: str, schema: str) -> None:
    async def scenario() -> None:
        async with holdfast.connect_async(url, schema=schema) as queue:
            await queue.enqueue("mail")
            with notifications_held(server):
                made = [await queue.enqueue("mail"), await queue.enqueue("mail", dedupe_key=uuid.uuid4().hex)]
                async with queue.transaction() as transaction:
                    made.append(await transaction.enqueue("mail"))
            assert [(await queue.get(one.id)).state for one in made] == ["ready"] * 3
            await queue.settle_many([(claim, Done()) for claim in await queue.claim_many(limit=4)])

    asyncio.run(scenario())


def test_a_call_does_not_wait_until_its_notification_is_sent(
    server: Server, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{server.url}?options=-csynchronous_commit%3Dlocal"
    monkeypatch.setattr(commits, "_NOTIFY", commits._NOTIFY.replace(b"1000", b"120000"))
    with holdfast.connect(url, schema=schema) as queue, server.superuser() as connection:
        for _ in range(2):  # the first reads the routing table, the second prepares the statements
            queue.enqueue("mail")
        with notifications_held(server):
            queue.enqueue("mail")
            waiting = f"select count(*) from pg_stat_activity where {WAITS_TO_NOTIFY}".encode()
            wait_until(lambda: connection.execute(waiting).fetchone() == (1,))
        # The next call on the connection reads the reply to the notification before its own.
        queue.settle_many([(claim, Done()) for claim in queue.claim_many(limit=3)])
        assert connection.execute(waiting).fetchone() == (0,)
