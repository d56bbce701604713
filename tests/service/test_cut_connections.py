"""Every changing call is sent twice, with its first connection cut: one effect, and the same answer."""

from __future__ import annotations

import hashlib
import re
import socket
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from holdfast import Queue
from holdfast.domain.job import row_of
from holdfast.operations import artifacts as artifact_operations
from holdfast.service.routes import ROUTES
from tests.support.service import Client, Server, wait_until


class Cut(NamedTuple):
    """A changing call, and how often its effect has happened."""

    path: str
    body: Any
    effects: Callable[[Queue], int]
    headers: dict[str, str] = {}  # noqa: RUF012
    prepare: Callable[[Queue], object] = lambda queue: None
    method: str = "POST"


KEY = {"Idempotency-Key": "k"}
LINES = {"Idempotency-Key": "k", "Content-Type": "application/x-ndjson"}
BYTES = {"Content-Type": "application/octet-stream"}
X = hashlib.sha256(b"x").hexdigest()
PROOF = {"epoch": 1, "lease_token": "t"}
TURN = {"lease_token": "t", "entries": [{"id": "one", "epoch": 1}]}
OWNER = {"generation": 1, "lease_token": "t"}


def jobs(queue: Queue) -> int:
    """Return the number of jobs."""
    return len(queue.jobs())


def enqueue(queue: Queue) -> None:
    """Store one ready job."""
    queue.enqueue("a", job_id="one", events="all")


def claimed(queue: Queue) -> None:
    """Store one running job whose claim is not acknowledged."""
    enqueue(queue)
    assert queue.claim(worker="w", lease_token="t", acknowledged=0)


def cancelled(queue: Queue) -> None:
    """Store one cancelled job."""
    enqueue(queue)
    queue.cancel("one")


def events(name: str) -> Callable[[Queue], int]:
    """Return a function that counts events of one name."""
    return lambda queue: sum(event.name == name for event in queue.events())


def job_is(**values: Any) -> Callable[[Queue], int]:
    """Return a function that tests the values of the job."""
    return lambda queue: int(all(getattr(row_of(queue.get("one")), name) == value for name, value in values.items()))


def uploading(queue: Queue) -> None:
    """Store an empty upload whose id is known."""
    queue._runner.write(artifact_operations.begin_upload, "up", "default", 60_000)


def uploaded(queue: Queue) -> None:
    """Store an upload with one chunk."""
    uploading(queue)
    queue.uploads.append("up", 0, b"x")


def upload_is(**values: Any) -> Callable[[Queue], int]:
    """Return a function that tests the values of the upload."""

    def test(queue: Queue) -> int:
        row = queue._runner.read(artifact_operations.live_upload, "up", None)
        return int(all(getattr(row, name) == value for name, value in values.items()))

    return test


def say(queue: Queue) -> None:
    """Store one ready entry of a session."""
    queue.enqueue("a", session="chat", job_id="one", events="all", join=True)


def turn(queue: Queue) -> None:
    """Store a running turn that is not acknowledged, and an entry that may join it."""
    say(queue)
    assert queue.sessions.claim("chat", worker="w", lease_token="t", acknowledged=False)
    queue.enqueue("a", session="chat", job_id="two", join=True)


def owned(queue: Queue) -> None:
    """Store a session with an owner."""
    queue.sessions.open("chat", worker="w", lease_token="t")


def session_is(**values: Any) -> Callable[[Queue], int]:
    """Return a function that tests the values of the session."""

    def test(queue: Queue) -> int:
        found = [info for info in queue.sessions.list() if info.session == "chat"]
        return sum(all(getattr(info, name) == value for name, value in values.items()) for info in found)

    return test


CALLS = {
    "create_job": Cut("/v1/jobs", {"kind": "a"}, jobs, KEY),
    "create_jobs": Cut("/v1/jobs/batch", {"jobs": [{"kind": "a"}]}, jobs, KEY),
    "create_jobs_bulk": Cut("/v1/jobs/bulk", b'{"kind": "a"}\n', jobs, LINES),
    "cancel_job": Cut("/v1/jobs/one/cancel", None, events("cancelled"), prepare=enqueue),
    "requeue_job": Cut("/v1/jobs/one/requeue", None, events("requeued"), prepare=cancelled),
    "claim": Cut("/v1/claims", {"worker": "w", "lease_token": "t"}, events("claimed"), prepare=enqueue),
    "acknowledge": Cut("/v1/claims/one/acknowledge", PROOF, job_is(unacknowledged=0), prepare=claimed),
    "heartbeat": Cut("/v1/claims/one/heartbeat", {**PROOF, "lease": 99}, job_is(state="running"), prepare=claimed),
    "report_progress": Cut("/v1/claims/one/progress", {**PROOF, "phase": "x"}, job_is(phase="x"), prepare=claimed),
    "emit": Cut(
        "/v1/claims/one/output",
        {**PROOF, "text": "x", "part": 0},
        lambda queue: len(queue.output("one")),
        prepare=claimed,
    ),
    "attach": Cut(
        "/v1/claims/one/artifacts",
        {**PROOF, "artifacts": [{"name": "f", "data": "eA=="}]},
        lambda queue: len(queue.artifacts("one")),
        prepare=claimed,
    ),
    "upload_chunk": Cut("/v1/uploads/up/chunks/0", b"x", upload_is(chunks=1), BYTES, prepare=uploading, method="PUT"),
    "upload_content": Cut(
        "/v1/uploads/up/content", b"x", upload_is(digest=X), BYTES, prepare=uploading, method="PUT"
    ),
    "finish_upload": Cut("/v1/uploads/up/finish", None, upload_is(digest=X), prepare=uploaded),
    "settle": Cut("/v1/claims/one/settle", {**PROOF, "outcome": "done"}, events("done"), prepare=claimed),
    "claim_turn": Cut("/v1/turns", {"worker": "w", "lease_token": "t"}, events("claimed"), prepare=say),
    "heartbeat_turn": Cut("/v1/turns/chat/heartbeat", TURN, job_is(unacknowledged=0), prepare=turn),
    "checkpoint_turn": Cut(
        "/v1/turns/chat/checkpoint", TURN, lambda queue: int(queue.get("two").state == "running"), prepare=turn
    ),
    "settle_turn": Cut("/v1/turns/chat/settle", {**TURN, "outcome": "done"}, events("done"), prepare=turn),
    "cancel_session": Cut("/v1/sessions/chat/cancel", None, events("cancelled"), prepare=say),
    "open_session": Cut(
        "/v1/sessions/chat/open", {"worker": "w", "lease_token": "t"}, session_is(owner="w", generation=1)
    ),
    "renew_session": Cut("/v1/sessions/chat/renew", OWNER, session_is(owner="w", generation=1), prepare=owned),
    "close_session": Cut("/v1/sessions/chat/close", OWNER, session_is(owner=None, generation=1), prepare=owned),
    "set_lane": Cut(
        "/v1/lanes/mail",
        {"state": "paused"},
        lambda queue: sum(lane.state == "paused" for lane in queue.lanes.list()),
        method="PATCH",
    ),
    "settle_many": Cut(
        "/v1/settlements",
        {"settlements": [{"job_id": "one", **PROOF, "outcome": "done"}]},
        events("done"),
        prepare=claimed,
    ),
    "heartbeat_many": Cut(
        "/v1/heartbeats",
        {"leases": [{"job_id": "one", **PROOF, "acknowledge": True}], "output": []},
        job_is(unacknowledged=0),
        prepare=claimed,
    ),
    "reprioritize_job": Cut("/v1/jobs/one/reprioritize", {"priority": 5}, events("reprioritized"), prepare=enqueue),
    "cancel_jobs": Cut("/v1/admin/cancel", {"job_ids": ["one"]}, events("cancelled"), prepare=enqueue),
    "requeue_jobs": Cut("/v1/admin/requeue", {"job_ids": ["one"]}, events("requeued"), prepare=cancelled),
    "retire_kind": Cut("/v1/kinds/a/retire", None, lambda queue: sum(kind.retired for kind in queue.kinds.list())),
}
# Requests to workers and restore are set once by their nature; nothing of them is counted. An upload that is begun
# twice is another empty one, which expires.
NOT_COUNTED = {"restore_kind", "drain_worker", "stop_worker", "begin_upload"}
# What is pruned, published or registered twice is so once. An audit entry is repeated with its request.
NOT_COUNTED |= {"prune", "publish_kinds", "register_worker", "remove_worker", "record_action"}
# A second requeue is refused, because the job is no longer failed or cancelled; it has no effect.
REFUSED_AGAIN = {"requeue_job"}


def test_every_changing_route_is_cut() -> None:
    changing = {route.name for route in ROUTES if route.method != "GET"}
    assert changing - NOT_COUNTED == CALLS.keys()


def after_request(connection: socket.socket, happened: Callable[[], bool]) -> None:
    """Cut the connection as soon as the request has been sent."""


def after_commit(connection: socket.socket, happened: Callable[[], bool]) -> None:
    """Cut the connection once the effect is in the store."""
    wait_until(happened)


def within_answer(connection: socket.socket, happened: Callable[[], bool]) -> None:
    """Cut the connection after the first bytes of the answer."""
    assert connection.recv(5) == b"HTTP/"


@pytest.mark.parametrize("cut", [after_request, after_commit, within_answer])
@pytest.mark.parametrize("name", CALLS)
def test_a_call_whose_connection_is_cut_can_be_sent_again(
    served: Server, name: str, cut: Callable[[socket.socket, Callable[[], bool]], None]
) -> None:
    call = CALLS[name]
    call.prepare(served.queue)
    client = served.client("admin")
    connection = client.open(call.method, call.path, call.body, call.headers)
    cut(connection, lambda: call.effects(served.queue) == 1)
    # Reset, as if the machine of the client had gone.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    connection.close()

    answer = client.request(call.method, call.path, call.body, call.headers)
    again = client.request(call.method, call.path, call.body, call.headers)
    assert call.effects(served.queue) == 1
    if name in REFUSED_AGAIN:
        assert {answer.status, again.status} <= {200, 409}
        return
    assert (answer.status, again.status) in {(200, 200), (201, 200)}, (answer, again)
    assert _comparable(answer.content) == _comparable(again.content)


def _comparable(content: bytes) -> bytes:
    """Return an answer without what says whether this call was the first."""
    told = rb'"created":(true|false)|"jobs":\d+|"(cancelled|requeued|skipped)":\[[^]]*\]|"lease_until_ms":\d+'
    return re.sub(told, b"", content)


def test_a_claim_cut_before_its_answer_delays_the_job_by_the_time_to_acknowledge_only(served: Server) -> None:
    served.queue.enqueue("a", job_id="one", max_attempts=1)
    client = served.client("work")
    connection = client.open("POST", "/v1/claims", {"worker": "gone", "ack_ms": 2_000})
    wait_until(lambda: served.queue.get("one").state == "running")
    connection.close()
    served.clock.advance(2.1)

    [claim] = client.post("/v1/claims", {"worker": "here"}).json["claims"]
    assert (claim["job"]["attempt"], claim["job"]["suspect"]) == (1, False)


def test_a_request_that_is_cut_in_its_body_has_no_effect(server: Server) -> None:
    client = server.client("produce")
    for _ in range(3):
        connection = client.open("POST", "/v1/jobs", b'{"kind": "a"', {"Content-Length": "99"})
        connection.close()
    time.sleep(0.1)
    assert server.queue.counts() == {}
    assert Client(server.port, client.token).post("/v1/jobs", {"kind": "a"}).status == 201
