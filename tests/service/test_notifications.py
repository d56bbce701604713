"""Notifications over HTTP: a worker hears of jobs, turns, cancellations and requests without asking for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import Context, Worker
from holdfast.client.queue_state import state_of
from holdfast.remote import notify
from holdfast.service import maintenance
from holdfast.storage import notifications
from holdfast.storage.contract import StoreTransaction
from holdfast.storage.runners import SyncRunner
from tests.support.service import Server, wait_until
from tests.support.tls import tls_proxy, write_certificate
from tests.worker.chats import Chat


@pytest.fixture
def without_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make workers claim only when they are notified."""
    monkeypatch.setattr(notifications, "POLL_SECONDS", 3_600.0)
    monkeypatch.setattr(notify, "_CONNECTED_POLL_SECONDS", 3_600.0)


@pytest.fixture
def queue(served: Server) -> Iterator[holdfast.Queue]:
    """A client of the server."""
    token = served.client("admin").token
    with holdfast.connect(f"http://127.0.0.1:{served.port}", token=token) as connected:
        yield connected


def listens(queue: holdfast.Queue) -> None:
    """Wait until the server tells the workers of *queue* about everything."""
    wait_until(lambda: notifier_of(queue)._connected)


def notifier_of(queue: holdfast.Queue) -> notify.HttpNotifier:
    notifier = state_of(queue).store.notifier
    assert isinstance(notifier, notify.HttpNotifier)
    return notifier


# --- the worker ----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("without_polls")
def test_an_idle_worker_starts_new_and_due_jobs(served: Server, queue: holdfast.Queue) -> None:
    @queue.task("double")
    def double(number: int) -> int:
        return 2 * number

    with Worker(queue).running():
        listens(queue)
        for number in range(3):
            # All but the first find a worker that would look again in half an hour.
            assert double.enqueue(number).result(timeout=20) == 2 * number
        due = queue.enqueue("double", {"number": 7}, delay=60)
        served.clock.advance(61)
        assert due.result(timeout=20) == 14


@pytest.mark.usefixtures("without_polls")
def test_a_worker_learns_of_a_cancellation_long_before_its_next_heartbeat(queue: holdfast.Queue) -> None:
    started = threading.Event()

    @queue.task("endless")
    def endless(context: Context) -> None:
        started.set()
        while not context.cancelled:
            time.sleep(0.01)
        context.raise_if_cancelled()

    with Worker(queue, lease=3_000).running():
        listens(queue)
        enqueued = endless.enqueue()
        assert started.wait(20)
        queue.cancel(enqueued.id)
        assert queue.wait(enqueued.id, timeout=20).state == "cancelled"


@pytest.mark.usefixtures("without_polls")
def test_a_worker_is_told_to_stop(queue: holdfast.Queue) -> None:
    queue.task("note")(lambda: None)
    worker = Worker(queue, worker="remote")
    with worker.running():
        listens(queue)
        wait_until(queue.admin.workers)
        queue.admin.stop_worker("remote")
        wait_until(lambda: worker.status().stopping)


@pytest.mark.usefixtures("without_polls")
def test_an_idle_worker_handles_turns_of_sessions(queue: holdfast.Queue) -> None:
    chat = Chat(queue)
    with Worker(queue).running():
        listens(queue)
        for text in ("one", "two"):
            assert queue.wait(chat.say(text)[0], timeout=20).result == [text]


@pytest.mark.usefixtures("without_polls")
def test_a_worker_listens_again_after_the_server_was_away(server: Server) -> None:
    with holdfast.connect(f"http://127.0.0.1:{server.port}", token=server.client("admin").token) as queue:
        queue.task("note")(lambda: None)
        with Worker(queue).running():
            listens(queue)
            server.stop()
            wait_until(lambda: not notifier_of(queue)._connected)
            enqueued = server.queue.enqueue("note")
            server.start()
            assert queue.wait(enqueued.id, timeout=20).state == "done"
            assert queue.wait(queue.enqueue("note").id, timeout=20).state == "done"


@pytest.mark.usefixtures("without_polls")
def test_a_worker_is_notified_over_tls(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(write_certificate(tmp_path)))
    with (
        tls_proxy(server.port, tmp_path) as url,
        holdfast.connect(url, token=server.client("admin").token) as queue,
    ):
        queue.task("note")(lambda: None)
        with Worker(queue).running():
            listens(queue)
            for _ in range(2):
                assert queue.wait(queue.enqueue("note").id, timeout=20).state == "done"


def test_a_worker_looks_often_only_while_it_is_not_notified(server: Server) -> None:
    with holdfast.connect(f"http://127.0.0.1:{server.port}", token=server.client("admin").token) as queue:
        queue.task("note")(lambda: None)
        with Worker(queue).running():
            listens(queue)
            assert notifier_of(queue).poll_seconds == 10
            server.stop()
            wait_until(lambda: notifier_of(queue).poll_seconds == 1)
            server.start()
            listens(queue)
        wait_until(lambda: notifier_of(queue)._thread is None)


def test_a_worker_that_may_not_listen_looks_for_jobs_itself(server: Server) -> None:
    lanes = [f"lane-{number}" for number in range(101)]
    with holdfast.connect(f"http://127.0.0.1:{server.port}", token=server.client("admin").token) as queue:
        done = [queue.task(f"note-{lane}", lane=lane)(lambda: None) for lane in lanes]
        with Worker(queue, lanes=lanes[:100]).running():
            enqueued = done[5].enqueue()
            assert queue.wait(enqueued.id, timeout=20).state == "done"
            # Not after its end: with fewer topics, it may listen.
            assert not notifier_of(queue)._connected


# --- the wire ------------------------------------------------------------------------------------------------------


def test_a_stream_names_what_was_notified(served: Server) -> None:
    client = served.client("work")
    with client.stream("/v1/notifications?lane=a&lane=b&session_lane=a&worker=w") as stream:
        assert stream.next() == ("listening", {})
        served.queue.enqueue("x", lane="other")
        served.queue.enqueue("x", lane="b")
        # PostgreSQL may wake listeners when it begins to listen.
        name, data = next((name, data) for name, data in stream if "b" in data["lanes"])
        assert (name, set(data["lanes"]) - {"a"}, data["cancellations"] in ([], ["w"])) == ("notified", {"b"}, True)
        claim = served.queue.claim(lanes=["b"], worker="w")
        assert claim is not None
        served.queue.cancel(claim.job.id)
        assert next(data for _, data in stream if data["cancellations"])["cancellations"] == ["w"]


def test_a_long_poll_returns_with_the_first_notification(server: Server) -> None:
    client = server.client("work")
    nothing: dict[str, list[str]] = {"lanes": [], "session_lanes": [], "cancellations": [], "requests": []}
    assert client.get("/v1/notifications?lane=a").json == nothing
    answers = []
    waiting = threading.Thread(target=lambda: answers.append(client.get("/v1/notifications?lane=a&wait=30").json))
    waiting.start()
    while waiting.is_alive():
        # It may not listen yet.
        server.queue.enqueue("x", lane="a")
        waiting.join(0.05)
    assert answers == [{**nothing, "lanes": ["a"]}]


def test_a_token_listens_to_its_own_lanes(server: Server) -> None:
    client = server.client("work", lanes=["a"])
    assert client.get("/v1/notifications?lane=a").status == 200
    for query in ("lane=b", "session_lane=b"):
        refused = client.get(f"/v1/notifications?{query}")
        assert (refused.status, refused.json["field"]) == (403, "lane")


@pytest.mark.service_settings(ping_seconds=0.05)
def test_an_idle_stream_gets_comments_and_ends_with_its_token(server: Server) -> None:
    client = server.client("work")
    with client.stream("/v1/notifications?worker=w") as stream:
        assert stream.next() == ("listening", {})
        server.queue.admin.tokens.revoke(str(client.token).split("_")[1])
        assert list(stream) == []
        assert stream.comments[0] == "ping"
        assert stream.comments[-1] == "the token was revoked or has expired"


# --- maintenance ---------------------------------------------------------------------------------------------------


def test_the_service_takes_back_expired_leases_and_fails_late_jobs(
    served: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "_WHOLE_LOOK_SECONDS", 0.05)
    lost = served.queue.enqueue("x", max_attempts=2).id
    assert served.queue.claim(lease=10) is not None
    late = served.queue.enqueue("y", deadline=10).id
    served.clock.advance(11)
    wait_until(lambda: served.queue.get(lost).state != "running")
    wait_until(lambda: served.queue.get(late).state == "failed")


async def expired_uploads(tx: StoreTransaction) -> int:
    return len(await tx.expired_uploads(await tx.now(), 10))


def test_the_service_deletes_expired_uploads(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.stop()
    monkeypatch.setattr(maintenance, "_DELETION_SECONDS", 0.05)
    server.queue.uploads.send(b"x" * 1_000, expires=60)
    server.clock.advance(61)
    assert SyncRunner(state_of(server.queue).store).read(expired_uploads) == 1
    server.start()
    wait_until(lambda: SyncRunner(state_of(server.queue).store).read(expired_uploads) == 0)
