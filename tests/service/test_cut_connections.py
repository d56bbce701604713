"""Every changing call is sent twice, with its first connection cut: one effect, and the same answer."""

from __future__ import annotations

import hashlib
import re
import socket
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from holdfast import Artifact, Failed, Queue
from holdfast.client.queue_state import state_of
from holdfast.client.sync_api.worker_calls import WorkerCalls
from holdfast.domain import strict_json, webhooks
from holdfast.domain.access import Grants
from holdfast.domain.job import row_of
from holdfast.domain.results import WorkerInfo
from holdfast.operations import (
    access as access_operations,
    artifacts as artifact_operations,
    webhooks as webhook_operations,
)
from holdfast.service.routes import ROUTES
from holdfast.storage.contract import StoreTransaction
from tests.support.service import Client, Server, claim_waits, wait_until
from tests.support.stores import harnesses


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


def finished_with_artifact(queue: Queue) -> None:
    """Store one cancelled job with an artifact."""
    queue.enqueue("a", job_id="one", artifacts=[Artifact("f", b"x")])
    queue.cancel("one")


def grouped(queue: Queue) -> None:
    """Store a group with one job."""
    with queue.group("g") as group:
        group.enqueue("a", job_id="one", events="all")


def limited(queue: Queue) -> None:
    """Store a limit by key."""
    queue.limits.set("l", **LIMIT)


def events(name: str) -> Callable[[Queue], int]:
    """Return a function that counts events of one name."""
    return lambda queue: sum(event.name == name for event in queue.events())


def held(queue: Queue) -> int:
    """Count the claims that were not released: the server releases one if its claimer has gone."""
    return events("claimed")(queue) - events("released")(queue)


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


LIMIT: Any = {"kinds": ["a"], "key": "tenant", "concurrency": 2}


def uploads(queue: Queue) -> int:
    """Return the number of uploads that the client has begun; their id follows from its key."""
    key = ["default", "begin_upload", "k", ""]
    upload = f"idem-{hashlib.blake2b(strict_json.canonical(key), digest_size=16).hexdigest()}"
    return len(queue._runner.read(uploads_by_id, upload))


async def uploads_by_id(tx: StoreTransaction, upload: str) -> dict[str, Any]:
    """Return the upload with an id."""
    return dict(await tx.uploads([upload]))


OLD, NEW = "a" * 16, "b" * 16
SECRET = {"id": NEW, "secret_hash": "0" * 64}


def token(queue: Queue) -> None:
    """Store a token whose id is known."""
    queue._runner.write(access_operations.create_token, OLD, "1" * 64, "n", Grants(("read",)), None, "test")


def tokens(queue: Queue) -> int:
    """Return the number of tokens with the id that the client has chosen."""
    return sum(one.id == NEW for one in queue.admin.tokens.list())


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


HOOK, KEPT = "wh_" + OLD, "whsec_" + "c2VjcmV0" * 4
NEW_HOOK = {"url": "https://example.org/", "id": "wh_" + NEW, "secret": KEPT}


def webhook(queue: Queue) -> None:
    """Store a webhook whose id is known."""
    new = webhooks.check_webhook("https://example.org/", {})
    queue._runner.write(webhook_operations.add_webhook, HOOK, new, "whsec_" + "b2xkb2xk" * 4, "test")


def disabled_webhook(queue: Queue) -> None:
    """Store a disabled webhook."""
    webhook(queue)
    queue._runner.write(webhook_operations.record_answer, HOOK, webhooks.Answer(410))


def secrets(queue: Queue) -> list[bool]:
    """Return for each secret of the webhook whether it is the new one."""
    found, _ = queue._runner.read(webhook_operations.endpoints, [HOOK])
    return [one.text == KEPT for one in found[HOOK].secrets]


NIGHTLY = {"kind": "a", "cron": "0 3 * * *"}


def scheduled(queue: Queue) -> None:
    """Store a schedule."""
    queue.schedules.set("nightly", kind="a", cron="0 3 * * *")


def paused_schedule(queue: Queue) -> None:
    """Store a paused schedule."""
    scheduled(queue)
    queue.schedules.pause("nightly")


def example(name: str) -> Any:
    """Return the example of the body of a route."""
    return next(route.body_example for route in ROUTES if route.name == name)


def worker(queue: Queue) -> None:
    """Store the registry row of a worker."""
    info: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in WORKER.items()
    }
    lists: dict[str, Any] = {name: info.get(name, ()) for name in ("lanes", "kinds", "capabilities", "loaded")}
    WorkerCalls(state_of(queue).store).beat(WorkerInfo(worker="w", **{**info, **lists}))


def asked_of_worker(requested: str) -> Callable[[Queue], int]:
    """Return a function that counts the workers of which this was requested."""
    return lambda queue: sum(one.requested == requested for one in queue.admin.workers())


def unsent_webhook(queue: Queue) -> None:
    """Store a webhook to which nothing is sent yet."""
    queue.lanes.set("holdfast.webhooks", state="paused")
    webhook(queue)


def deliveries(queue: Queue) -> int:
    """Return the number of deliveries of the webhook."""
    return len(queue.webhooks.deliveries(HOOK))


def failed_delivery(queue: Queue) -> None:
    """Store a webhook with a failed delivery, to which nothing more is sent."""
    webhook(queue)
    queue.webhooks.test(HOOK)
    while not (claims := queue.claim_many(worker="w", lanes=[webhooks.LANE])):
        # The sender of the service was faster.
        queue.webhooks.test(HOOK)
    [claim] = claims
    queue.lanes.set(webhooks.LANE, state="paused")
    queue.settle(claim, Failed("HTTP 500", permanent=True))


def replayed(queue: Queue) -> int:
    """Return the number of deliveries that wait to be sent."""
    return sum(one.state == "ready" for one in queue.webhooks.deliveries(HOOK))


def recorded(queue: Queue) -> int:
    """Return the number of different actions in the audit log: each request has an entry of its own."""
    return len({(one.action, one.target, one.actor) for one in queue.admin.audit_log() if one.action == "mail.stop"})


def retired(queue: Queue) -> None:
    """Store a retired kind."""
    queue.kinds.retire("a")


def finished(queue: Queue) -> None:
    """Store a job that ended a minute ago."""
    cancelled(queue)
    harnesses[queue].clock.advance(60)


WORKER: dict[str, Any] = example("register_worker")
KINDS: dict[str, Any] = example("publish_kinds")


def schedules(*, paused: bool) -> Callable[[Queue], int]:
    """Return a function that counts the schedules that are paused, or those that are not."""
    return lambda queue: sum(one.paused == paused for one in queue.schedules.list())


CALLS = {
    "create_job": Cut("/v1/jobs", {"kind": "a"}, jobs, KEY),
    "create_jobs": Cut("/v1/jobs/batch", {"jobs": [{"kind": "a"}]}, jobs, KEY),
    "create_jobs_bulk": Cut("/v1/jobs/bulk", b'{"kind": "a"}\n', jobs, LINES),
    "cancel_job": Cut("/v1/jobs/one/cancel", None, events("cancelled"), prepare=enqueue),
    "cancel_tree": Cut("/v1/jobs/one/cancel-tree", None, events("cancelled"), prepare=enqueue),
    "requeue_job": Cut("/v1/jobs/one/requeue", None, events("requeued"), prepare=cancelled),
    "claim": Cut("/v1/claims", {"worker": "w", "lease_token": "t"}, held, prepare=enqueue),
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
    "claim_turn": Cut("/v1/turns", {"worker": "w", "lease_token": "t"}, held, prepare=say),
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
    "create_token": Cut("/v1/tokens", {"name": "n", "roles": ["read"], **SECRET}, tokens),
    "rotate_token": Cut(f"/v1/tokens/{OLD}/rotate", SECRET, tokens, prepare=token),
    "revoke_token": Cut(
        f"/v1/tokens/{OLD}/revoke",
        None,
        lambda queue: sum(one.revoked_at is not None for one in queue.admin.tokens.list()),
        prepare=token,
    ),
    "add_webhook": Cut("/v1/webhooks", NEW_HOOK, lambda queue: len(queue.webhooks.list())),
    "rotate_webhook": Cut(
        f"/v1/webhooks/{HOOK}/rotate",
        {"secret": KEPT},
        lambda queue: int(secrets(queue) == [True, False]),
        prepare=webhook,
    ),
    "enable_webhook": Cut(
        f"/v1/webhooks/{HOOK}/enable",
        None,
        lambda queue: int(queue.webhooks.get(HOOK).state == "active"),
        prepare=disabled_webhook,
    ),
    "remove_webhook": Cut(
        f"/v1/webhooks/{HOOK}/remove", None, lambda queue: int(queue.webhooks.list() == []), prepare=webhook
    ),
    "set_schedule": Cut("/v1/schedules/nightly", NIGHTLY, schedules(paused=False), method="PUT"),
    "declare_schedules": Cut(
        "/v1/schedules", {"schedules": [{"name": "nightly", "owner": "app", **NIGHTLY}]}, schedules(paused=False)
    ),
    "pause_schedule": Cut("/v1/schedules/nightly/pause", None, schedules(paused=True), prepare=scheduled),
    "resume_schedule": Cut("/v1/schedules/nightly/resume", None, schedules(paused=False), prepare=paused_schedule),
    "remove_schedule": Cut(
        "/v1/schedules/nightly/remove", None, lambda queue: int(queue.schedules.list() == []), prepare=scheduled
    ),
    "delete_artifacts": Cut(
        "/v1/jobs/one/delete-artifacts",
        None,
        lambda queue: int(queue.artifacts("one") == []),
        prepare=finished_with_artifact,
    ),
    "create_group": Cut(
        "/v1/groups/g",
        {"members": [{"kind": "a"}]},
        lambda queue: sum(group.members for group in queue.groups.list()),
        KEY,
    ),
    "cancel_group": Cut("/v1/groups/g/cancel", None, events("cancelled"), prepare=grouped),
    "set_limit": Cut("/v1/limits/l", LIMIT, lambda queue: len(queue.limits.list()), method="PUT"),
    "remove_limit": Cut("/v1/limits/l/remove", None, lambda queue: int(queue.limits.list() == []), prepare=limited),
    "run_schedule": Cut("/v1/schedules/nightly/run", None, jobs, KEY, prepare=scheduled),
    "begin_upload": Cut("/v1/uploads", {}, uploads, KEY),
    "test_webhook": Cut(f"/v1/webhooks/{HOOK}/test", None, deliveries, KEY, prepare=unsent_webhook),
    "replay_webhook": Cut(f"/v1/webhooks/{HOOK}/replay", None, replayed, prepare=failed_delivery),
    "record_action": Cut("/v1/audit", {"action": "mail.stop", "target": "newsletter"}, recorded),
    "publish_kinds": Cut("/v1/kinds", KINDS, lambda queue: len(queue.kinds.list())),
    "register_worker": Cut("/v1/workers/w", WORKER, lambda queue: len(queue.admin.workers()), method="PUT"),
    "remove_worker": Cut(
        "/v1/workers/w/leave",
        {"incarnation": WORKER["incarnation"]},
        lambda queue: int(queue.admin.workers() == []),
        prepare=worker,
    ),
    "drain_worker": Cut("/v1/workers/w/drain", None, asked_of_worker("drain"), prepare=worker),
    "stop_worker": Cut("/v1/workers/w/stop", None, asked_of_worker("stop"), prepare=worker),
    "prune": Cut(
        "/v1/admin/prune",
        {"what": "jobs", "state": "cancelled", "age_ms": 0},
        lambda queue: int(jobs(queue) == 0),
        prepare=finished,
    ),
    "restore_kind": Cut(
        "/v1/kinds/a/restore",
        None,
        lambda queue: int(not any(kind.retired for kind in queue.kinds.list())),
        prepare=retired,
    ),
    "retire_kind": Cut("/v1/kinds/a/retire", None, lambda queue: sum(kind.retired for kind in queue.kinds.list())),
}
# A second requeue is refused, because the job is no longer failed or cancelled; it has no effect. Nor is there a
# webhook, a schedule or a limit to remove, or a retired kind to restore.
REFUSED_AGAIN = {
    "requeue_job": 409,
    "remove_webhook": 404,
    "remove_schedule": 404,
    "remove_limit": 404,
    "restore_kind": 404,
}


# Answers that tell the time, or count requests.
CHANGING = {"metrics", "list_tokens", "overview"}


def test_every_changing_route_is_cut() -> None:
    changing = {route.name for route in ROUTES if route.method != "GET"}
    assert changing == CALLS.keys()


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
        assert {answer.status, again.status} <= {200, REFUSED_AGAIN[name]}
        return
    assert (answer.status, again.status) in {(200, 200), (201, 200), (201, 201)}, (answer, again)
    assert _comparable(answer.content) == _comparable(again.content)


def _comparable(content: bytes) -> bytes:
    """Return an answer without what says whether this call was the first."""
    told = rb'"created":(true|false)|"(jobs|deleted)":\d+|"(cancelled|requeued|skipped|after)":\[[^]]*\]'
    told += rb'|"lease_until_ms":\d+'
    # A group that is sent again is returned without its jobs.
    group, separator, _ = content.partition(b',"jobs":[')
    return re.sub(told, b"", group if separator else content)


@pytest.mark.parametrize("cut", [after_request, within_answer])
def test_a_read_whose_connection_is_cut_can_be_sent_again(served: Server, cut: Any) -> None:
    claimed(served.queue)
    client = served.client("admin")
    reads = [(route.name, route.path.replace("{job_id}", "one")) for route in ROUTES if route.method == "GET"]
    for name, template in reads:
        path = re.sub(r"\{\w+\}", "missing", template)
        connection = client.open("GET", path)
        cut(connection, lambda: True)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        connection.close()
        answer, again = client.get(path), client.get(path)
        assert answer.status == again.status < 500, name
        if name not in CHANGING and answer.status == 200:
            assert answer.content == again.content, name


def test_a_claim_cut_before_its_answer_delays_the_job_by_the_time_to_acknowledge_only(served: Server) -> None:
    served.queue.enqueue("a", job_id="one", max_attempts=1)
    client = served.client("work")
    connection = client.open("POST", "/v1/claims", {"worker": "gone", "ack_ms": 2_000})
    wait_until(lambda: served.queue.get("one").state == "running")
    connection.close()
    served.clock.advance(2.1)

    [claim] = client.post("/v1/claims", {"worker": "here"}).json["claims"]
    assert (claim["job"]["attempt"], claim["job"]["suspect"]) == (1, False)


@pytest.mark.parametrize("step", ["sent", "waiting", "claimed", "answered"])
def test_a_claimer_that_dies_at_any_step_of_its_long_poll_delays_no_job_for_long(served: Server, step: str) -> None:
    client = served.client("work")
    connection = client.open("POST", "/v1/claims", {"worker": "gone", "wait": 30, "ack_ms": 2_000})
    if step != "sent":
        wait_until(lambda: claim_waits(served))
    if step in {"claimed", "answered"}:
        served.queue.enqueue("a", job_id="one", max_attempts=1)
        wait_until(lambda: served.queue.get("one").state == "running")
    if step == "answered":
        assert connection.recv(5) == b"HTTP/"
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    connection.close()
    if step in {"sent", "waiting"}:
        served.queue.enqueue("a", job_id="one", max_attempts=1)

    delay = 0.0
    while not (claims := client.post("/v1/claims", {"worker": "here"}).json["claims"]):
        # The time to acknowledge, and a second.
        assert delay < 3
        served.clock.advance(0.5)
        delay += 0.5
    assert (claims[0]["job"]["attempt"], claims[0]["job"]["suspect"]) == (1, False)


def test_a_request_that_is_cut_in_its_body_has_no_effect(server: Server) -> None:
    client = server.client("produce")
    for _ in range(3):
        connection = client.open("POST", "/v1/jobs", b'{"kind": "a"', {"Content-Length": "99"})
        connection.close()
    time.sleep(0.1)
    assert server.queue.counts() == {}
    assert Client(server.port, client.token).post("/v1/jobs", {"kind": "a"}).status == 201
