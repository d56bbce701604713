"""Jobs over HTTP: create, bulk, list, get and wait, cancel, requeue, artifacts."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any
from urllib.parse import quote

import pytest

from holdfast import Artifact, Done, Failed, NewJob
from holdfast.client.queue_state import state_of
from holdfast.service.jobs import BULK_LINES_MAX
from holdfast.service.routes import ROUTES
from tests.support.service import Answer, Server, wait_until


def test_a_created_job_is_stored_and_read(served: Server) -> None:
    producer = served.client("produce")
    answer = producer.post(
        "/v1/jobs",
        {
            "kind": "email.send",
            "payload": {"to": "ada", "big": 2**70},
            "lane": "mail",
            "priority": 3,
            "run_at": "2000-01-01T00:00:00+02:00",
            "backoff": {"base": 1, "factor": 2},
            "tags": {"order": "42"},
            "deadline": 3600,
        },
    )

    assert answer.status == 201, answer
    created = answer.json["job"]
    stored = served.queue.get(created["id"])
    assert (stored.kind, stored.payload, stored.lane, stored.priority) == (
        "email.send",
        {"to": "ada", "big": 2**70},
        "mail",
        3,
    )
    assert stored.tags == {"order": "42"}
    assert answer.headers["location"] == f"/v1/jobs/{stored.id}"
    assert producer.get(f"/v1/jobs/{stored.id}").json == created


@pytest.mark.parametrize(
    ("body", "field", "limit"),
    [
        ({"kind": "a", "priority": 1_001}, "priority", 1_000),
        ({"kind": "a", "priority": -1_001}, "priority", -1_000),
        ({"kind": "a", "delay": -1}, "delay", 0),
        ({"kind": "a" * 201}, "kind", 200),
        ({"kind": "a", "payload": "x" * (1 << 20)}, "payload", 1 << 20),
        ({"kind": "a", "tags": {str(n): "" for n in range(100)}}, "tags", 32),
        ({"kind": "a", "session": "s", "messages": []}, "messages", 1),
    ],
)
def test_a_value_beyond_a_limit_is_refused_by_the_limit(server: Server, body: Any, field: str, limit: int) -> None:
    producer = server.client("produce")
    answer = producer.post("/v1/jobs", body)
    assert (answer.status, answer.json["field"], answer.json["limit"]) == (422, field, limit)
    answer = producer.post("/v1/jobs/batch", {"jobs": [{"kind": "a"}, body]})
    assert (answer.status, answer.json["field"], answer.json["limit"]) == (422, f"jobs[1].{field}", limit)
    answer = producer.post("/v1/jobs/bulk", json.dumps(body).encode(), Content_Type="application/x-ndjson")
    refused = json.loads(answer.content)["error"]
    assert (refused["field"], refused["limit"]) == (field, limit)
    assert server.queue.counts() == {}


def test_a_parameter_beyond_its_limit_is_refused_by_the_limit(server: Server) -> None:
    answer = server.client("produce").get(f"/v1/jobs/{server.queue.enqueue('a').id}?wait=61")
    assert (answer.status, answer.json["field"], answer.json["limit"]) == (422, "wait", 60)


@pytest.mark.parametrize(
    ("body", "status", "code", "field"),
    [
        (b"{", 400, "invalid_json", "body"),
        (b'{"kind": "a", "payload": NaN}', 400, "invalid_json", "body"),
        (b'{"kind": "a", "kind": "b"}', 400, "invalid_json", "body"),
        (b'{"kind": "\xff"}', 400, "invalid_json", "body"),
        (b'{"kind": "a", "payload": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400, "invalid_json", "body"),
        (b'{"kind": "a", "payload": ' + b"9" * 5_000 + b"}", 400, "invalid_json", "body"),
        (b"[]", 422, "invalid_input", "body"),
        ({}, 422, "invalid_input", "kind"),
        ({"kind": 3}, 422, "invalid_input", "kind"),
        ({"kind": "a", "colour": 1}, 422, "invalid_input", "colour"),
        ({"kind": "a", "priority": 1_001}, 422, "invalid_input", "priority"),
        ({"kind": "a", "payload": "\ud800"}, 422, "invalid_input", "payload"),
        ({"kind": "a", "payload": {"x": "\0"}}, 422, "invalid_input", "payload.x"),
        ({"kind": "a", "payload": "x" * (1 << 20)}, 422, "invalid_input", "payload"),
        ({"kind": "a", "run_at": "2030-01-01T00:00:00"}, 422, "invalid_input", "run_at"),
        ({"kind": "a", "delay": 1, "run_at": "2030-01-01T00:00:00Z"}, 422, "invalid_input", "run_at"),
        ({"kind": "a", "backoff": {"base": -1}}, 422, "invalid_input", "backoff.base"),
        ({"kind": "a", "tags": {"a": 1}}, 422, "invalid_input", "tags.a"),
    ],
)
def test_a_bad_body_is_refused_by_field_and_nothing_is_stored(
    server: Server, body: Any, status: int, code: str, field: str
) -> None:
    answer = server.client("produce").post("/v1/jobs", body, Content_Type="application/json")

    assert (answer.status, answer.code, answer.json["field"]) == (status, code, field)
    assert answer.json["request_id"] == answer.headers["x-request-id"]
    assert server.queue.counts() == {}


def test_a_batch_is_stored_as_a_whole_or_not_at_all(server: Server) -> None:
    producer = server.client("produce")
    refused = producer.post("/v1/jobs/batch", {"jobs": [{"kind": "a"}, {"kind": "a", "delay": -1}]})
    assert (refused.status, refused.json["field"]) == (422, "jobs[1].delay")
    assert server.queue.counts() == {}

    answer = producer.post("/v1/jobs/batch", {"jobs": [{"kind": "a"}, {"kind": "b"}]})
    assert [one["job"]["kind"] for one in answer.json["jobs"]] == ["a", "b"]
    assert server.queue.counts() == {"ready": 2}


def test_a_full_lane_answers_429_and_when_to_come_back(server: Server) -> None:
    server.queue.lanes.set("l", max_waiting=1)
    producer = server.client("produce")
    assert producer.post("/v1/jobs", {"kind": "a", "lane": "l"}).status == 201
    answer = producer.post("/v1/jobs", {"kind": "a", "lane": "l"})
    assert (answer.status, answer.code, answer.headers["retry-after"]) == (429, "queue_full", "1")
    assert (answer.json["lane"], answer.json["limit"]) == ("l", 1)


# --- idempotency ---------------------------------------------------------------------------------------------------


def test_an_idempotency_key_makes_repeats_safe(served: Server) -> None:
    producer = served.client("produce")
    body = {"kind": "a", "payload": {"n": 1}}
    first = producer.post("/v1/jobs", body, Idempotency_Key="order-42")
    again = producer.post("/v1/jobs", body, Idempotency_Key="order-42")
    other = producer.post("/v1/jobs", {**body, "payload": {"n": 2}}, Idempotency_Key="order-42")

    assert (first.status, again.status) == (201, 200)
    assert first.json["job"] == again.json["job"]
    assert (other.status, other.code) == (422, "idempotency_key_reused")
    assert producer.post("/v1/jobs", body, Idempotency_Key="order-43").status == 201
    # Another tenant's key is another key.
    assert served.client("produce", tenant="acme").post("/v1/jobs", body, Idempotency_Key="order-42").status == 201
    assert served.queue.counts() == {"ready": 3}


def test_an_idempotency_key_of_a_batch_covers_each_job(server: Server) -> None:
    producer = server.client("produce")
    body = {"jobs": [{"kind": "a"}, {"kind": "a"}]}
    first = producer.post("/v1/jobs/batch", body, Idempotency_Key="k")
    again = producer.post("/v1/jobs/batch", body, Idempotency_Key="k")
    other = producer.post("/v1/jobs/batch", {"jobs": [{"kind": "a"}, {"kind": "b"}]}, Idempotency_Key="k")

    assert (first.status, again.status) == (201, 200)
    assert [one["job"]["id"] for one in first.json["jobs"]] == [one["job"]["id"] for one in again.json["jobs"]]
    assert (other.status, other.code, other.json["field"]) == (422, "idempotency_key_reused", "jobs[1]")
    assert server.queue.counts() == {"ready": 2}


def test_concurrent_requests_with_one_key_make_one_job(served: Server) -> None:
    producer = served.client("produce")

    def send(number: int) -> Answer:
        return producer.post("/v1/jobs", {"kind": "a", "payload": number % 2}, Idempotency_Key="race")

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(send, range(24)))

    [job] = served.queue.jobs()
    assert sorted({answer.status for answer in answers}) == [200, 201, 422]
    assert sum(answer.status == 201 for answer in answers) == 1
    won = [answer for answer in answers if answer.status in {200, 201}]
    assert {(answer.json["job"]["id"], answer.json["job"]["payload"]) for answer in won} == {(job.id, job.payload)}


def test_an_own_id_and_a_key_exclude_each_other(server: Server) -> None:
    producer = server.client("produce")
    answer = producer.post("/v1/jobs", {"kind": "a", "job_id": "x"}, Idempotency_Key="k")
    assert (answer.status, answer.json["field"]) == (422, "job_id")
    assert producer.post("/v1/jobs", {"kind": "a"}, Idempotency_Key="k k").json["field"] == "Idempotency-Key"
    # An own id that is used for another job is a conflict.
    assert producer.post("/v1/jobs", {"kind": "a", "job_id": "x"}).status == 201
    conflict = producer.post("/v1/jobs", {"kind": "b", "job_id": "x"})
    assert (conflict.status, conflict.code, conflict.json["job_id"]) == (409, "conflict", "x")


# --- bulk ----------------------------------------------------------------------------------------------------------


def test_each_line_of_a_bulk_request_is_answered_by_a_line(served: Server) -> None:
    served.queue.lanes.set("draining", state="draining")
    lines = [
        '{"kind": "a", "payload": 1}',
        "",
        '{"kind": "a", "delay": -1}',
        "nonsense",
        '{"kind": "a", "lane": "draining"}',
        '{"kind": "b", "job_id": "own"}',
    ]
    answer = served.client("produce").post(
        "/v1/jobs/bulk", "\n".join(lines).encode(), Content_Type="application/x-ndjson"
    )

    results = [json.loads(line) for line in answer.content.splitlines()]
    assert [one["line"] for one in results] == [1, 3, 4, 5, 6]
    assert [one.get("error", {}).get("code") for one in results] == [
        None,
        "invalid_input",
        "invalid_json",
        "lane_draining",
        None,
    ]
    assert (results[1]["error"]["field"], results[4]["id"], results[4]["created"]) == ("delay", "own", True)
    assert served.queue.counts() == {"ready": 2}


def test_empty_lines_of_a_bulk_request_count(server: Server) -> None:
    # Otherwise a body of 64 MiB could have 67 million of them.
    producer, ndjson = server.client("produce"), "application/x-ndjson"
    refused = producer.post("/v1/jobs/bulk", b"\n" * (BULK_LINES_MAX + 1), Content_Type=ndjson)
    assert (refused.status, refused.code, refused.json["limit"]) == (413, "body_too_large", BULK_LINES_MAX)

    accepted = producer.post("/v1/jobs/bulk", b"\n" * (BULK_LINES_MAX - 1) + b'{"kind": "a"}\n', Content_Type=ndjson)
    assert (accepted.status, accepted.json["line"]) == (200, BULK_LINES_MAX)


def test_a_bulk_request_can_be_repeated_with_its_key(server: Server) -> None:
    producer = server.client("produce")
    body = b"".join(b'{"kind": "a", "payload": %d}\n' % number for number in range(1_200))
    sent: dict[str, str] = {"Content_Type": "application/x-ndjson", "Idempotency_Key": "import-1"}
    # The first half was stored by an earlier request that was cut off.
    producer.post("/v1/jobs/bulk", b"\n".join(body.split(b"\n")[:600]), **sent)
    results = [json.loads(line) for line in producer.post("/v1/jobs/bulk", body, **sent).content.splitlines()]

    assert [one["created"] for one in results] == [False] * 600 + [True] * 600
    assert server.queue.counts() == {"ready": 1_200}


# --- read ----------------------------------------------------------------------------------------------------------


def test_jobs_are_listed_in_pages_with_filters(served: Server) -> None:
    for number in range(5):
        served.queue.enqueue("a" if number % 2 else "b", job_id=str(number), lane="mail")
    reader = served.client("read")
    first = reader.get("/v1/jobs?limit=3").json
    rest = reader.get(f"/v1/jobs?limit=3&after={first['cursor']}").json

    assert [job["id"] for job in (*first["jobs"], *rest["jobs"])] == ["4", "3", "2", "1", "0"]
    assert rest["cursor"] is None
    assert [job["id"] for job in reader.get("/v1/jobs?kind=a&state=ready&state=running").json["jobs"]] == ["3", "1"]
    for query, field in (
        ("limit=0", "limit"),
        ("limit=x", "limit"),
        ("state=odd", "state[0]"),
        ("after=x", "after"),
        ("color=1", "color"),
        ("kind=a&kind=b", "kind"),
        ("tag=order", "tag"),
        ("tag=a%3D1&tag=a%3D2", "tag"),
    ):
        answer = reader.get(f"/v1/jobs?{query}")
        assert (answer.status, answer.json["field"]) == (422, field), query


def test_jobs_are_listed_by_tags_and_by_the_root_of_their_tree(served: Server) -> None:
    served.queue.enqueue("a", job_id="first", tags={"order": "42", "size": "a=b"})
    claim = served.queue.claim(worker="w")
    assert claim is not None
    served.queue.settle(claim, Done(follow_ups=[NewJob("b", job_id="second", tags={"order": "42"})]))
    reader = served.client("read")

    def listed(query: str) -> list[str]:
        return [job["id"] for job in reader.get(f"/v1/jobs?{query}").json["jobs"]]

    assert listed("tag=order%3D42") == listed("tag=order=42") == listed("root=first") == ["second", "first"]
    assert listed("tag=order%3D42&tag=size%3Da%3Db") == listed("root=first&kind=a") == ["first"]
    assert listed("tag=order%3D43") == listed("root=none") == []
    second = reader.get("/v1/jobs/second").json
    assert (second["parent"], second["root"]) == ("first", "first")


def test_ids_with_any_characters_are_found_by_their_encoded_path(server: Server) -> None:
    for job_id in ("a/b", "ü 1", "%2F", "..", "?x=1#y"):
        server.queue.enqueue("a", job_id=job_id)
        answer = server.client("read").get(f"/v1/jobs/{quote(job_id, safe='')}")
        assert answer.json["id"] == job_id, answer
    assert server.client("read").get("/v1/jobs/%ff").status == 404


def test_waiting_returns_the_job_when_it_finishes(served: Server) -> None:
    served.queue.enqueue("a", job_id="one")
    reader = served.client("read")
    with ThreadPoolExecutor(1) as pool:
        # For longer than the client waits.
        waiting = pool.submit(reader.get, "/v1/jobs/one?wait=60")
        claim = served.queue.claim(worker="w")
        assert claim is not None
        served.queue.settle(claim, Done({"n": 1}))
        answer = waiting.result()

    assert (answer.json["state"], answer.json["result"]) == ("done", {"n": 1})
    assert reader.get("/v1/jobs/one?wait=20").json["state"] == "done"


def test_waiting_ends_with_the_current_job_after_its_time(server: Server) -> None:
    server.queue.enqueue("a", job_id="one")
    assert server.client("read").get("/v1/jobs/one?wait=0.05").json["state"] == "ready"


def test_a_waiting_request_fails_a_job_whose_deadline_passes(served: Server) -> None:
    served.queue.enqueue("a", job_id="one", deadline=10)
    reader = served.client("read")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(reader.get, "/v1/jobs/one?wait=20")
        served.clock.advance(11)
        assert waiting.result().json["state"] == "failed"


@pytest.mark.slow("it opens 1,000 connections, and counts for five seconds")
@pytest.mark.usefixtures("many_files")
def test_a_thousand_waiters_cost_a_few_statements_a_second(served: Server) -> None:
    ids = [f"job-{number}" for number in range(1_000)]
    served.queue.enqueue_many([{"kind": "a", "job_id": job_id} for job_id in ids])
    reader, seen = served.client("read"), served.harness.faults.seen

    with ExitStack() as stack:
        waiting = [
            stack.enter_context(reader.open("GET", f"/v1/jobs/{job_id}?wait=60", headers={"Connection": "close"}))
            for job_id in ids
        ]
        notifier = state_of(served.queue).store.notifier
        wait_until(lambda: len(notifier.topics()) >= 1_000)
        for _ in range(3):
            time.sleep(0.5)
            before, since = len(seen), time.monotonic()
            time.sleep(5)
            asked, seconds = Counter(seen[before:]), time.monotonic() - since
            # Once a minute the server also deletes what is old, which no waiter costs.
            if "kept_keys_delete" not in asked:
                break
        before = seen.count("jobs_finished")
        served.queue.admin.cancel_many(ids)
        for connection in waiting:
            received = b""
            while part := connection.recv(65_536):
                received += part
            assert b'"state":"cancelled"' in received

    # Waiting jobs, tokens, what is due, and the beginning of each transaction.
    assert asked.total() <= 10 * seconds, asked
    # All ended in one commit: a few queries answered them.
    assert seen.count("jobs_finished") - before <= 20


# --- change --------------------------------------------------------------------------------------------------------


def test_cancel_and_requeue_are_recorded_with_the_token(served: Server) -> None:
    served.queue.enqueue("a", job_id="one")
    admin = served.client("admin")
    assert admin.post("/v1/jobs/one/cancel").json["state"] == "cancelled"
    assert admin.post("/v1/jobs/one/requeue").json["state"] == "ready"
    conflict = admin.post("/v1/jobs/one/requeue")
    assert (conflict.status, conflict.code) == (409, "conflict")

    actor = f"token:{str(admin.token).split('_')[1]}"
    log = [entry for entry in served.queue.admin.audit_log() if entry.action != "token.create"]
    assert [(one.actor, one.action, one.target) for one in log] == [
        (actor, "jobs.requeue", "one"),
        (actor, "jobs.requeue", "one"),
        (actor, "jobs.cancel", "one"),
    ]


def test_only_an_admin_takes_a_running_job_from_its_worker(server: Server) -> None:
    server.queue.enqueue("a", job_id="one")
    assert server.queue.claim(worker="w") is not None
    assert server.client("produce").post("/v1/jobs/one/cancel", {"force": True}).status == 403
    requested = server.client("produce").post("/v1/jobs/one/cancel")
    assert (requested.json["state"], requested.json["cancel_requested"]) == ("running", True)
    assert server.client("admin").post("/v1/jobs/one/cancel", {"force": True}).json["state"] == "cancelled"


def test_attempts_and_artifacts_are_read_and_never_active_content(served: Server) -> None:
    served.queue.enqueue("a", job_id="one", backoff=None)
    claim = served.queue.claim(worker="w")
    assert claim is not None
    page = b"<script>alert(1)</script>"
    artifacts = [Artifact("ü.html", page, "text/html"), Artifact("odd", b"x", 'text/html"\u2028')]
    served.queue.attach(claim, artifacts)
    served.queue.settle(claim, Failed("smtp refused", reason="smtp", permanent=True))
    reader = served.client("produce")

    [attempt] = reader.get("/v1/jobs/one/attempts").json["attempts"]
    assert (attempt["outcome"], attempt["failure"]["reason"]) == ("failed", "smtp")
    listed = reader.get("/v1/jobs/one/artifacts").json["artifacts"]
    assert {one["name"]: one["size"] for one in listed} == {"ü.html": len(page), "odd": 1}
    answer = reader.get(f"/v1/jobs/one/artifacts/{quote('ü.html')}")
    assert (answer.content, answer.headers["x-content-type-options"]) == (page, "nosniff")
    assert answer.headers["content-disposition"] == "attachment; filename*=UTF-8''%C3%BC.html"
    assert "sandbox" in answer.headers["content-security-policy"]
    assert reader.get("/v1/jobs/one/artifacts/odd").headers["content-type"] == "application/octet-stream"
    for name in ("missing", "..", "%00", "a%2F..%2Fb"):
        assert reader.get(f"/v1/jobs/one/artifacts/{name}").status == 404


# --- operators -----------------------------------------------------------------------------------------------------


def test_lanes_kinds_workers_and_metrics(served: Server) -> None:
    served.queue.enqueue("a", lane="mail")
    admin = served.client("admin")
    assert admin.request("PATCH", "/v1/lanes/mail", {"state": "paused"}).json["state"] == "paused"
    assert [lane["name"] for lane in admin.get("/v1/lanes").json["lanes"] if lane["state"] == "paused"] == ["mail"]
    assert admin.get("/v1/kinds/a").json["name"] == "a"
    assert admin.get("/v1/kinds/missing").code == "unknown_kind"
    assert admin.post("/v1/kinds/a/retire").json == {"kind": "a", "retired": True, "jobs": 1}
    assert admin.post("/v1/kinds/a/restore").json["retired"] is False
    assert admin.get("/v1/workers").json == {"workers": []}
    assert admin.post("/v1/workers/nobody/drain").code == "worker_not_found"
    served.queue.enqueue("b", lane="bulk")
    metrics = served.client("read").get("/metrics").content.decode()
    assert 'holdfast_jobs_ready{kind="b",lane="bulk"} 1.0' in metrics
    actions = [entry.action for entry in served.queue.admin.audit_log() if entry.action != "token.create"]
    assert actions == ["workers.drain", "kinds.restore", "kinds.retire", "lanes.set"]


def test_numbers_of_a_worker_are_stored_up_to_their_limit_and_refused_above(served: Server) -> None:
    [route] = [route for route in ROUTES if route.name == "register_worker"]
    assert route.body is not None
    shapes = {name: one.get("anyOf", [one])[0] for name, one in route.body["properties"].items()}
    numbers = {name: shape["maximum"] for name, shape in shapes.items() if "maximum" in shape}
    assert "hold_left" in numbers
    client = served.client("work")
    assert client.request("PUT", "/v1/workers/w", {**route.body_example, **numbers}).status == 200
    for name, limit in numbers.items():
        refused = client.request("PUT", "/v1/workers/w", {**route.body_example, name: 2 * limit})
        assert (refused.status, refused.json["field"]) == (422, name)


def test_a_store_that_does_not_answer_is_a_problem_of_its_own(server: Server) -> None:
    client = server.client("produce")
    assert client.get("/readyz").status == 200
    with server.queue.transaction():
        answers: list[Answer] = []
        writing = threading.Thread(target=lambda: answers.append(client.post("/v1/jobs", {"kind": "a"})))
        writing.start()
        # Reads are not affected by a writer.
        assert client.get("/readyz").status == 200
        assert client.get("/healthz").status == 200
    writing.join()
    assert answers[0].status == 201
