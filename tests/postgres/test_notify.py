"""Waiting callers are woken by notifications from any process; a lost listener reconnects by itself."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

import holdfast
from holdfast import Done
from holdfast.client.async_api import queue as async_api
from holdfast.client.sync_api import queue as sync_api
from tests.chaos.processes import PATIENCE_SECONDS
from tests.chaos.threads import in_background, wait_until
from tests.support.job_states import claimed
from tests.support.postgres_schemas import make_empty
from tests.support.postgres_server import Server
from tests.support.wire import Wire

SCHEMA = "holdfast_waking"
LISTENS = "query ilike '%listen %' and query not ilike '%pg_stat_activity%'"


@pytest.fixture
def no_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable polling: only a notification can wake a caller."""
    for name in ("_POLL_SECONDS_FIRST", "_POLL_SECONDS_LAST", "_CLAIM_SECONDS"):
        monkeypatch.setattr(sync_api, name, PATIENCE_SECONDS)
        monkeypatch.setattr(async_api, name, PATIENCE_SECONDS)


@pytest.fixture
def other(server: Server) -> Iterator[holdfast.Queue]:
    """A queue with its own connections, like that of another process."""
    make_empty(server.url, SCHEMA)
    made = holdfast.connect(server.url, schema=SCHEMA)
    yield made
    made.close()


@pytest.fixture
def queue(other: holdfast.Queue, wire: Wire) -> Iterator[holdfast.Queue]:
    made = holdfast.connect(wire.url, schema=SCHEMA)
    yield made
    wire.calm()
    made.close()


def _listeners(server: Server) -> int:
    with server.superuser() as connection:
        counted = f"select count(*) from pg_stat_activity where {LISTENS} and pid <> pg_backend_pid()"
        row = connection.execute(counted.encode()).fetchone()
    assert row is not None
    return int(row[0])


def _wait(queue: holdfast.Queue, job_id: str) -> holdfast.Job:
    return queue.wait(job_id, timeout=PATIENCE_SECONDS)


@pytest.mark.usefixtures("no_poll")
def test_a_settle_elsewhere_wakes_a_waiter_that_never_polls(
    queue: holdfast.Queue, other: holdfast.Queue, server: Server
) -> None:
    for _ in range(10):
        job_id = other.enqueue("mail").id
        waiting = in_background(_wait, queue, job_id)
        wait_until(lambda: _listeners(server) > 0)
        other.settle(claimed(other), Done())
        assert waiting.result(PATIENCE_SECONDS / 2).state == "done"


@pytest.mark.usefixtures("no_poll")
def test_a_new_job_wakes_a_claim_that_waits_for_one(
    queue: holdfast.Queue, other: holdfast.Queue, server: Server
) -> None:
    waiting = in_background(lambda: queue.claim(wait=PATIENCE_SECONDS))
    wait_until(lambda: _listeners(server) > 0)
    made = other.enqueue("mail")
    claim = waiting.result(PATIENCE_SECONDS / 2)
    assert claim is not None
    assert claim.job.id == made.id


@pytest.mark.usefixtures("no_poll")
def test_a_listener_that_was_killed_listens_again_and_its_waiters_are_woken(
    queue: holdfast.Queue, other: holdfast.Queue, server: Server
) -> None:
    job_id = other.enqueue("mail").id
    waiting = in_background(_wait, queue, job_id)
    claim = claimed(other)
    for _ in range(3):
        wait_until(lambda: _listeners(server) > 0)
        assert server.terminate_backends(LISTENS) > 0
    wait_until(lambda: _listeners(server) > 0)
    other.settle(claim, Done())
    assert waiting.result(PATIENCE_SECONDS / 2).state == "done"


@pytest.mark.usefixtures("no_poll")
def test_a_job_that_finished_without_listeners_is_seen_by_the_next_one(
    other: holdfast.Queue, server: Server, wire: Wire
) -> None:
    queue = holdfast.connect(server.url, schema=SCHEMA, listen_url=wire.url)
    job_id = other.enqueue("mail").id
    waiting = in_background(_wait, queue, job_id)
    wait_until(lambda: _listeners(server) > 0)
    claim = claimed(other)
    assert wire.drop_all(refuse=True) == 1
    other.settle(claim, Done())  # its notification reaches no listener
    wire.calm()
    assert waiting.result(PATIENCE_SECONDS / 2).state == "done"
    queue.close()


@pytest.mark.usefixtures("no_poll")
def test_a_url_for_listening_alone_is_used_for_nothing_else(
    other: holdfast.Queue, server: Server, wire: Wire
) -> None:
    """LISTEN does not work, as with a transaction pooler."""
    queue = holdfast.connect(server.url, schema=SCHEMA, listen_url=wire.url)
    job_id = queue.enqueue("mail").id
    assert wire.connections == 0
    waiting = in_background(_wait, queue, job_id)
    wait_until(lambda: _listeners(server) > 0)
    assert wire.connections == 1
    other.settle(claimed(other), Done())
    assert waiting.result(PATIENCE_SECONDS / 2).state == "done"
    queue.close()


def test_waiting_outlives_a_restart_of_the_server(
    queue: holdfast.Queue, other: holdfast.Queue, server: Server
) -> None:
    job_id = other.enqueue("mail").id
    claim = claimed(other, lease=600)
    ready = threading.Event()

    def wait() -> holdfast.Job:
        while True:
            ready.set()
            try:
                return _wait(queue, job_id)
            except holdfast.errors.StoreUnreachable:
                continue  # it may say that the server is gone, and be asked again

    waiting = in_background(wait)
    ready.wait(PATIENCE_SECONDS)
    server.restart(immediate=True)
    while True:
        try:
            other.settle(claim, Done())
            break
        except holdfast.Unavailable:
            continue
    assert waiting.result(PATIENCE_SECONDS).state == "done"
