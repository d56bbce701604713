"""Deliveries of webhooks over HTTP: what receivers get, and what hostile ones can do. The guard is on."""

from __future__ import annotations

import email.utils
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Done, NewJob, Queue, json_view
from holdfast.domain import limits, webhook_signatures, webhook_urls
from holdfast.domain.webhooks import StoredWebhook
from holdfast.webhooks import sender as webhook_sender
from holdfast.webhooks.sender import SendingEndpoint
from tests.support.filesystems import quick_folder
from tests.support.job_states import start
from tests.support.receivers import Received, Receiver, certificate, receiver, sender, status, until
from tests.support.stores import DURABLE_ENGINES, Harness


@pytest.fixture(params=DURABLE_ENGINES)
def each_queue(request: pytest.FixtureRequest) -> Iterator[Queue]:
    """A queue on each engine, with the real clock."""
    with quick_folder() as folder:
        harness = Harness(request.param, folder)
        harness.clock = None  # type: ignore[assignment]
        try:
            yield harness.open()
        finally:
            harness.close()


@pytest.fixture
def one_queue(tmp_path: Path) -> Iterator[Queue]:
    """A queue on one engine, for behaviour that does not depend on the store."""
    with holdfast.connect(str(tmp_path / "jobs.db")) as queue:
        yield queue


def finish(queue: Queue, kind: str = "mail", **options: Any) -> str:
    job = queue.enqueue(kind, **options).job
    queue.settle(start(queue, job), Done())
    return job.id


def deliver(queue: Queue, target: Receiver, **options: Any) -> str:
    """Add a webhook and send it a test; return the id of the webhook."""
    webhook_id = queue.webhooks.add(target.url, **options).webhook.id
    queue.webhooks.test(webhook_id)
    return webhook_id


def one_state(queue: Queue, webhook_id: str) -> str:
    return queue.webhooks.deliveries(webhook_id)[0].state


def test_a_subscriber_gets_signed_events_and_a_job_its_own(each_queue: Queue) -> None:
    with receiver() as target:
        added = each_queue.webhooks.add(target.url, types=["job.done"])
        with sender(each_queue):
            job_id = finish(each_queue, tags={"a": "1"})
            [received] = target.wait(1)
            own = each_queue.enqueue("sms", webhook_url=f"{target.url}?own=1").job
            until(lambda: len(target.requests) == 2)
            until(lambda: one_state(each_queue, added.webhook.id) == "done")

    body = json.loads(received.body)
    assert (body["type"], body["data"]["job_id"], body["data"]["tags"]) == ("job.done", job_id, {"a": "1"})
    assert received.headers["content-type"] == "application/json"
    assert received.headers["host"] == f"127.0.0.1:{target.port}"
    timestamp = int(received.headers["webhook-timestamp"])
    assert abs(time.time() - timestamp) < 30
    header = received.headers["webhook-signature"]
    assert webhook_signatures.verify(added.secret, received.id, timestamp, received.body, header)
    second = target.requests[1]
    assert (second.path, json.loads(second.body)["data"]["job_id"]) == ("/hook?own=1", own.id)


def test_a_rotated_secret_signs_beside_the_new_one(one_queue: Queue) -> None:
    with receiver() as target, sender(one_queue):
        added = one_queue.webhooks.add(target.url)
        rotated = one_queue.webhooks.rotate(added.webhook.id)
        one_queue.webhooks.test(added.webhook.id)
        [received] = target.wait(1)

    proof = (received.id, int(received.headers["webhook-timestamp"]), received.body)
    header = received.headers["webhook-signature"]
    assert len(header.split(" ")) == 2
    assert webhook_signatures.verify(added.secret, *proof, header)
    assert webhook_signatures.verify(rotated.secret, *proof, header)


@pytest.mark.parametrize(
    ("code", "reason", "closes"),
    [(302, "http_302", False), (500, "http_500", False), (404, "http_404", False), (503, "http_503", True)],
)
def test_what_is_not_a_success_is_tried_again_later(one_queue: Queue, code: int, reason: str, closes: bool) -> None:
    with receiver(status(code, b"details", Location="http://127.0.0.1:1/other")) as target, sender(one_queue):
        webhook_id = deliver(one_queue, target)
        until(lambda: one_queue.webhooks.deliveries(webhook_id)[0].problem is not None)
        one = one_queue.webhooks.deliveries(webhook_id)[0]
        until(lambda: one_queue.webhooks.get(webhook_id).failing_since is not None)
        webhook = one_queue.webhooks.get(webhook_id)

    assert (one.state, one.tries, one.problem) == ("scheduled", 1, f"{reason}: HTTP {code}: details")
    assert len(target.requests) == 1
    assert (webhook.closed_until is not None, webhook.last_answer) == (closes, f"HTTP {code}: details")


def test_410_disables_the_webhook(one_queue: Queue) -> None:
    with receiver(status(410, b"gone")) as target, sender(one_queue):
        webhook_id = deliver(one_queue, target)
        until(lambda: one_queue.webhooks.get(webhook_id).state == "disabled")
        until(lambda: one_state(one_queue, webhook_id) == "failed")


def test_deliveries_of_a_removed_webhook_fail_although_no_other_exists(one_queue: Queue) -> None:
    webhook_id = one_queue.webhooks.add("https://example.org/").webhook.id
    one_queue.webhooks.test(webhook_id)
    one_queue.webhooks.remove(webhook_id)

    with sender(one_queue):
        until(lambda: [job.state for job in one_queue.jobs(lane="holdfast.webhooks")] == ["failed"])
    [job] = one_queue.jobs(lane="holdfast.webhooks")
    assert job.failure is not None
    assert job.failure.reason == "no_webhook"


@pytest.mark.parametrize("header", [lambda: "600", lambda: email.utils.formatdate(time.time() + 600, usegmt=True)])
def test_retry_after_closes_the_endpoint_for_all_deliveries(one_queue: Queue, header: Callable[[], str]) -> None:
    with receiver(status(429, Retry_After=header())) as target, sender(one_queue):
        webhook_id = deliver(one_queue, target, concurrency=1)
        until(lambda: one_queue.webhooks.get(webhook_id).closed_until is not None)
        one_queue.webhooks.test(webhook_id)
        until(lambda: {one.state for one in one_queue.webhooks.deliveries(webhook_id)} == {"scheduled"})
        closed = one_queue.webhooks.get(webhook_id).closed_until
        second, first = one_queue.webhooks.deliveries(webhook_id)

    assert closed is not None
    # Much longer than without the header.
    assert 300 < closed.timestamp() - time.time() <= 600
    assert len(target.requests) == 1
    assert first.next_try_at is not None
    assert second.next_try_at is not None
    assert (first.tries, second.tries) == (1, 0)
    assert min(first.next_try_at, second.next_try_at).timestamp() - time.time() > 300


def hang(handler: BaseHTTPRequestHandler, _received: Received) -> None:
    """Never answer."""
    handler.rfile.read(1)


def trickle(handler: BaseHTTPRequestHandler, _received: Received) -> None:
    """Send a byte of the answer at a time, without an end."""
    handler.send_response(200)
    handler.send_header("Content-Length", "1000000")
    handler.end_headers()
    while True:
        handler.wfile.write(b"x")
        time.sleep(0.05)


@pytest.mark.parametrize("answering", [hang, trickle])
def test_a_receiver_that_hangs_or_trickles_ends_at_the_timeout(one_queue: Queue, answering: Any) -> None:
    with receiver(answering) as target, sender(one_queue, timeout=0.5):
        webhook_id = deliver(one_queue, target)
        until(lambda: one_queue.webhooks.deliveries(webhook_id)[0].problem is not None)

        assert one_queue.webhooks.deliveries(webhook_id)[0].problem == "no_answer: no answer within 0.5 seconds"


def test_of_a_huge_answer_only_a_part_is_read(one_queue: Queue) -> None:
    written = [0]

    def huge(handler: BaseHTTPRequestHandler, _received: Received) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(300 << 20))
        handler.end_headers()
        for _ in range(300 << 4):
            handler.wfile.write(b"x" * (1 << 16))
            written[0] += 1 << 16

    with receiver(huge) as target, sender(one_queue):
        webhook_id = deliver(one_queue, target)
        until(lambda: one_state(one_queue, webhook_id) == "done")
        [job] = one_queue.jobs(lane="holdfast.webhooks")

    assert len(job.result["answer"]) == limits.WEBHOOK_ANSWER_CHARS_KEPT
    assert written[0] < 32 << 20


@pytest.mark.slow("it makes a key and a certificate")
def test_a_certificate_for_another_name_is_refused_and_the_right_one_accepted(
    one_queue: Queue, tmp_path: Path
) -> None:
    server_context, client_context = certificate(tmp_path, "receiver")

    async def resolve(_host: str, _port: int) -> Sequence[str]:
        return ["127.0.0.1"]

    with (
        receiver(status(204), server_context) as target,
        sender(one_queue, resolve=resolve, ssl_context=client_context),
    ):
        wrong = one_queue.webhooks.add(f"https://other:{target.port}/").webhook.id
        one_queue.webhooks.test(wrong)
        until(lambda: one_queue.webhooks.deliveries(wrong)[0].problem is not None)
        problem = one_queue.webhooks.deliveries(wrong)[0].problem
        assert target.requests == []
        right = one_queue.webhooks.add(f"https://receiver:{target.port}/").webhook.id
        one_queue.webhooks.test(right)
        target.wait(1)

    assert problem is not None
    assert "certificate verify failed" in problem


def test_more_deliveries_wait_for_a_fast_receiver_than_for_a_slow_one(one_queue: Queue) -> None:
    webhook = one_queue.webhooks.add("https://example.org/", concurrency=8).webhook

    def waiting_max(seconds: float) -> int:
        endpoint = SendingEndpoint(StoredWebhook(webhook, ()))
        for _ in range(50):
            endpoint.answered(seconds)
        return endpoint.waiting_max

    assert [waiting_max(seconds) for seconds in (15.0, 0.25)] == [32, 32]
    assert waiting_max(0.01) > 400


def test_deliveries_one_after_the_other_use_one_connection(one_queue: Queue) -> None:
    ports: list[int] = []

    def answer(handler: BaseHTTPRequestHandler, received: Received) -> None:
        ports.append(handler.client_address[1])
        status(200, b"thanks")(handler, received)

    with receiver(answer) as target, sender(one_queue):
        webhook_id = deliver(one_queue, target, concurrency=1)
        for _ in range(4):
            one_queue.webhooks.test(webhook_id)
        target.wait(5)
        until(lambda: {one.state for one in one_queue.webhooks.deliveries(webhook_id)} == {"done"})

    assert len(ports) == 5
    assert len(set(ports)) == 1


@pytest.mark.slow("it makes a key and a certificate")
def test_an_unknown_issuer_is_refused_by_default(one_queue: Queue, tmp_path: Path) -> None:
    server_context, _ = certificate(tmp_path, "localhost")
    with receiver(status(204), server_context) as target, sender(one_queue):
        webhook_id = one_queue.webhooks.add(f"https://localhost:{target.port}/").webhook.id
        one_queue.webhooks.test(webhook_id)
        until(lambda: one_queue.webhooks.deliveries(webhook_id)[0].problem is not None)
        problem = one_queue.webhooks.deliveries(webhook_id)[0].problem

    assert "certificate verify failed" in str(problem)
    assert target.requests == []


def test_a_redirect_is_not_followed(one_queue: Queue) -> None:
    with receiver() as other, receiver(status(307, Location=other.url)) as target, sender(one_queue):
        webhook_id = deliver(one_queue, target)
        until(lambda: one_queue.webhooks.deliveries(webhook_id)[0].problem is not None)

    assert (len(target.requests), other.requests) == (1, [])


def test_the_url_of_a_job_and_secrets_are_not_shown(one_queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with receiver(status(500)) as target, sender(one_queue):
        added = one_queue.webhooks.add(f"http://127.0.0.1:{target.port}", per_job=True, tenant="default")
        webhook_id = added.webhook.id
        rotated = one_queue.webhooks.rotate(webhook_id)
        one_queue.enqueue("mail", webhook_url=f"{target.url}/hunter2?key=hunter2")
        # The answers: an error, no connection, an address that is not allowed.
        one_queue.enqueue("mail", webhook_url="http://127.0.0.1:1/hunter2")
        one_queue.enqueue("mail", webhook_url="http://10.0.0.1:1/hunter2")
        until(lambda: len(one_queue.webhooks.list()) == 3)
        ids = [one.id for one in one_queue.webhooks.list()]
        until(lambda: all(one_queue.webhooks.deliveries(one)[0].problem is not None for one in ids))

    assert target.requests[0].path == "/hook/hunter2?key=hunter2"
    deliveries = [*one_queue.jobs(lane="holdfast.webhooks")]
    shown: list[object] = [json_view.job(job) for job in (*one_queue.jobs(), *deliveries)]
    shown += [*one_queue.jobs(), *one_queue.events(), *one_queue.webhooks.list(), *one_queue.admin.audit_log()]
    shown += [one_queue.webhooks.deliveries(one) for one in ids] + [one_queue.admin.report(), added, rotated]
    texts = [*map(repr, shown), *map(str, shown), caplog.text]
    for secret in ("hunter2", added.secret, rotated.secret):
        assert [text for text in texts if secret in text] == []


class TestGuard:
    """Nothing is sent to addresses that are not public, unless they are allowed."""

    def refused(self, queue: Queue, url: str, **options: Any) -> str:
        with sender(queue, allowed=(), **options):
            webhook_id = queue.webhooks.add(url).webhook.id
            queue.webhooks.test(webhook_id)
            until(lambda: queue.webhooks.deliveries(webhook_id)[0].problem is not None)
            problem = queue.webhooks.deliveries(webhook_id)[0].problem
        assert problem is not None
        return problem

    def test_a_private_receiver_gets_nothing_without_the_allow_list(self, one_queue: Queue) -> None:
        with receiver() as target:
            problem = self.refused(one_queue, target.url)

        assert problem.startswith("address_refused: 127.0.0.1 is not a public address")
        assert target.requests == []

    def test_one_private_address_among_public_ones_is_enough(self, one_queue: Queue) -> None:
        async def resolve(_host: str, _port: int) -> Sequence[str]:
            return ["93.184.216.34", "127.0.0.1"]

        assert "127.0.0.1" in self.refused(one_queue, "https://example.org/", resolve=resolve)

    def test_a_name_that_turns_private_gets_nothing_more(self, one_queue: Queue) -> None:
        addresses = ["127.0.0.2", "127.0.0.1"]
        asked: list[str] = []

        async def resolve(host: str, _port: int) -> Sequence[str]:
            asked.append(host)
            return [addresses[min(len(asked), 2) - 1]]

        allowed = webhook_urls.parse_networks("127.0.0.2", "allow")
        with (
            receiver(status(204, Connection="close"), host="127.0.0.2") as public,
            receiver(port=public.port) as private,
            sender(one_queue, allowed=allowed, resolve=resolve),
        ):
            webhook_id = one_queue.webhooks.add(f"http://rebind:{public.port}/").webhook.id
            one_queue.webhooks.test(webhook_id)
            public.wait(1)
            one_queue.webhooks.test(webhook_id)
            until(lambda: one_queue.webhooks.deliveries(webhook_id)[0].problem is not None)
            problem = one_queue.webhooks.deliveries(webhook_id)[0].problem

        assert problem is not None
        assert problem.startswith("address_refused: 127.0.0.1")
        assert (len(public.requests), private.requests, len(asked)) == (1, [], 2)

    def test_the_checked_address_is_the_one_connected_to(self, one_queue: Queue, tmp_path: Path) -> None:
        asked: list[str] = []

        async def resolve(host: str, _port: int) -> Sequence[str]:
            asked.append(host)
            return ["127.0.0.1"] if len(asked) == 1 else ["10.255.255.1"]

        with receiver() as target, sender(one_queue, resolve=resolve):
            # No system look-up of the name can succeed.
            webhook_id = one_queue.webhooks.add(f"http://nowhere:{target.port}/").webhook.id
            one_queue.webhooks.test(webhook_id)
            [received] = target.wait(1)

        assert asked == ["nowhere"]
        assert received.headers["host"] == f"nowhere:{target.port}"


@pytest.mark.slow("a sender that stops waits for what it is sending")
def test_a_receiver_that_hangs_does_not_delay_others(one_queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook_sender, "_HELD_MAX", 64)
    ends = threading.Event()

    def wait(_handler: BaseHTTPRequestHandler, _received: Received) -> None:
        ends.wait()

    with receiver(wait) as slow, receiver() as fast:
        one_queue.webhooks.add(slow.url, types=["job.done"], kinds=["slow"])
        one_queue.webhooks.add(fast.url, types=["job.done"], kinds=["fast"])
        # More than a process holds at once.
        one_queue.enqueue_many([NewJob("slow") for _ in range(100)])
        one_queue.settle_many([(claim, Done()) for claim in one_queue.claim_many(limit=100)])
        # The tries of the slow one do not time out.
        with sender(one_queue, timeout=3_600):
            try:
                slow.wait(limits.WEBHOOK_CONCURRENCY_DEFAULT)
                for _ in range(20):
                    finish(one_queue, "fast")
                received = fast.wait(20)
                hanging = len(slow.requests)
            finally:
                ends.set()

    assert len({one.id for one in received}) == 20
    assert hanging <= limits.WEBHOOK_CONCURRENCY_DEFAULT


@pytest.mark.slow("an endpoint that refuses is closed for five seconds")
def test_a_receiver_that_comes_back_gets_everything(one_queue: Queue) -> None:
    with receiver(status(503)) as target, sender(one_queue):
        webhook_id = one_queue.webhooks.add(target.url, types=["job.done"]).webhook.id
        ids = {finish(one_queue) for _ in range(20)}
        until(lambda: one_queue.webhooks.get(webhook_id).closed_until is not None)
        # A refusal that is recorded after the endpoint was enabled would close it again.
        until(lambda: all(one.state != "running" for one in one_queue.webhooks.deliveries(webhook_id)))
        tried = len(target.requests)
        target.answering = status(204)
        one_queue.webhooks.enable(webhook_id)
        until(lambda: {one.state for one in one_queue.webhooks.deliveries(webhook_id)} == {"done"})

    assert tried <= limits.WEBHOOK_CONCURRENCY_DEFAULT * 2
    assert {json.loads(one.body)["data"]["job_id"] for one in target.requests} == ids


@pytest.mark.slow("deliveries that find no place are tried again after a second")
def test_all_sending_processes_together_keep_to_the_concurrency_of_an_endpoint(
    each_queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each sender holds two deliveries, so that all of them get some.
    monkeypatch.setattr(webhook_sender, "_HELD_MAX", 2)
    changed = threading.Condition()
    now, most = 0, 0

    def answer(handler: BaseHTTPRequestHandler, received: Received) -> None:
        nonlocal now, most
        with changed:
            now += 1
            most = max(most, now)
            changed.notify_all()
            # Until as many are here as may be, or one too many.
            changed.wait_for(lambda: most > 2, 0.2)
        status(204)(handler, received)
        with changed:
            now -= 1

    with receiver(answer) as target:
        webhook_id = each_queue.webhooks.add(target.url, concurrency=2).webhook.id
        for _ in range(12):
            each_queue.webhooks.test(webhook_id)
        # Each sender has its own name, as in a process of its own.
        with sender(each_queue), sender(each_queue), sender(each_queue):
            until(lambda: {one.state for one in each_queue.webhooks.deliveries(webhook_id)} == {"done"})

    assert len(target.requests) == 12
    assert most == 2


def raw(answer: bytes) -> Callable[[BaseHTTPRequestHandler, Received], None]:
    """Return a function that sends these bytes and closes the connection."""

    def send(handler: BaseHTTPRequestHandler, _received: Received) -> None:
        handler.wfile.write(answer)
        handler.close_connection = True

    return send


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        (b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n", {"status": 204}),
        (b"HTTP/1.0 200 OK\r\n\r\nuntil the end", {"status": 200, "answer": "until the end"}),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n",
            {"status": 200, "answer": "abcde"},
        ),
    ],
)
def test_every_form_of_an_answer_is_read(one_queue: Queue, answer: bytes, result: dict[str, Any]) -> None:
    with receiver(raw(answer)) as target, sender(one_queue):
        webhook_id = deliver(one_queue, target)
        until(lambda: one_state(one_queue, webhook_id) == "done")
    [job] = one_queue.jobs(lane="holdfast.webhooks")
    assert job.result == result


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b"hello\r\n\r\n", "not HTTP/1.1"),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", "not HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc", "before the end"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\na", "not HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * (200 << 10) + b"\r\n\r\n", "too large"),
        (b"", "before the end"),
    ],
)
def test_an_answer_that_is_not_complete_http_is_a_failed_try(one_queue: Queue, answer: bytes, problem: str) -> None:
    with receiver(raw(answer)) as target, sender(one_queue):
        webhook_id = deliver(one_queue, target)
        until(lambda: one_queue.webhooks.deliveries(webhook_id)[0].problem is not None)
        found = one_queue.webhooks.deliveries(webhook_id)[0].problem
    assert found is not None
    assert problem in found


def test_a_kept_connection_that_closes_under_a_request_costs_no_try(one_queue: Queue) -> None:
    seen: dict[int, int] = {}

    def answer(handler: BaseHTTPRequestHandler, received: Received) -> None:
        port = handler.client_address[1]
        seen[port] = seen.get(port, 0) + 1
        if seen[port] == 1:
            status(204)(handler, received)
        else:
            # As if it had closed the connection before the request arrived.
            handler.close_connection = True

    with receiver(answer) as target, sender(one_queue):
        webhook_id = deliver(one_queue, target)
        until(lambda: one_state(one_queue, webhook_id) == "done")
        one_queue.webhooks.test(webhook_id)
        until(lambda: {one.state for one in one_queue.webhooks.deliveries(webhook_id)} == {"done"})
        tries = [one.tries for one in one_queue.webhooks.deliveries(webhook_id)]

    assert tries == [1, 1]
    assert sorted(seen.values()) == [1, 2]
    first, second, third = target.requests
    assert first.headers["webhook-id"] != second.headers["webhook-id"] == third.headers["webhook-id"]
