"""Sessions over HTTP: entries, turns of remote workers, lists and owners."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from holdfast import Queue
from tests.support.service import Answer, Client, Server, wait_until


def say(queue: Queue, *texts: str, session: str = "chat", **options: Any) -> None:
    """Enqueue joining messages."""
    for text in texts:
        queue.enqueue("chat.message", text, session=session, join=True, job_id=text, **options)


def claim(client: Client, **options: Any) -> dict[str, Any]:
    """Claim a turn."""
    answer = client.post("/v1/turns", {"worker": "w", **options})
    assert answer.status == 200, answer
    assert answer.json["turn"] is not None
    return dict(answer.json["turn"])


def proof(*turns: dict[str, Any]) -> dict[str, Any]:
    """Return what every further call of a turn presents."""
    entries = [{"id": job["id"], "epoch": job["epoch"]} for turn in turns for job in turn["entries"]]
    return {"lease_token": turns[0]["lease_token"], "entries": entries, "tenant": turns[0]["tenant"]}


def payloads(turn: dict[str, Any]) -> list[Any]:
    """Return the payloads of a turn."""
    return [job["payload"] for job in turn["entries"]]


def test_a_conversation_runs_over_http(served: Server) -> None:
    producer, worker = served.client("produce"), served.client("work")
    for message in ("hello", "are you there?"):
        body = {"kind": "chat.message", "payload": message, "session": "chat", "join": True, "message_id": message}
        first, again = producer.post("/v1/jobs", body), producer.post("/v1/jobs", {**body, "payload": "other"})
        assert (first.status, again.status, again.json["job"]["payload"]) == (201, 200, message)
    assert producer.post("/v1/jobs", {"kind": "chat.reset", "session": "chat", "entry_type": "command"}).status == 201

    turn = claim(worker)
    assert (payloads(turn), turn["entry_type"], turn["fencing_token"]) == (["hello", "are you there?"], "message", 1)
    renewal = worker.post("/v1/turns/chat/heartbeat", {**proof(turn), "lease": 60}).json
    assert renewal["lease_until_ms"] == turn["lease_until_ms"] + 50_000
    # Output and progress belong to the first entry, by the calls of jobs.
    head = turn["entries"][0]
    emitted = {"epoch": head["epoch"], "lease_token": turn["lease_token"], "text": "I am."}
    assert worker.post(f"/v1/claims/{head['id']}/output", emitted).json == {"number": 1}
    ended: dict[str, Any] = {**proof(turn), "outcome": "done", "result": "I am.", "follow_ups": [{"kind": "mail"}]}
    settled, repeated = (worker.post("/v1/turns/chat/settle", ended) for _ in range(2))
    assert [(job["state"], job["result"]) for job in settled.json["entries"]] == [("done", "I am.")] * 2
    assert repeated.json == settled.json
    assert served.queue.counts(by="kind")["mail"] == 1

    command = claim(worker, session="chat")
    assert (command["entry_type"], command["fencing_token"]) == ("command", 2)
    outcomes = {**proof(command), "outcomes": [{"outcome": "failed", "message": "no", "permanent": True}]}
    assert worker.post("/v1/turns/chat/settle", outcomes).json["entries"][0]["state"] == "failed"


def test_a_running_turn_takes_in_what_arrives(served: Server) -> None:
    say(served.queue, "one")
    worker = served.client("work")
    turn = claim(worker)
    assert worker.post("/v1/turns/chat/checkpoint", proof(turn)).json == {"turn": None}
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(worker.post, "/v1/turns/chat/checkpoint", {**proof(turn), "wait": 20})
        say(served.queue, "two")
        more = waiting.result().json["turn"]
    assert worker.post("/v1/turns/chat/checkpoint", proof(turn)).json["turn"]["entries"] == more["entries"]

    assert (payloads(more), more["fencing_token"]) == (["two"], 1)
    settled = worker.post("/v1/turns/chat/settle", {**proof(turn, more), "outcome": "done"})
    assert [job["state"] for job in settled.json["entries"]] == ["done", "done"]


def test_a_turn_that_is_not_acknowledged_is_released_without_using_an_attempt(served: Server) -> None:
    say(served.queue, "one", max_attempts=1)
    worker = served.client("work")
    for token in (1, 2):
        assert claim(worker, ack_ms=5_000)["fencing_token"] == token
        assert worker.post("/v1/turns", {"worker": "other"}).json == {"turn": None}
        served.clock.advance(5.1)
    turn = claim(worker, ack_ms=5_000)
    assert worker.post("/v1/turns/chat/heartbeat", {**proof(turn), "lease": 60}).status == 200
    served.clock.advance(50)

    assert worker.post("/v1/turns/chat/heartbeat", proof(turn)).status == 200
    job = served.queue.get("one")
    assert (job.state, job.attempt, job.suspect) == ("running", 1, 0)


def test_a_claim_can_be_sent_again_and_a_lost_lease_is_refused(served: Server) -> None:
    say(served.queue, "one")
    worker = served.client("work")
    turn, again = (claim(worker, lease_token="t") for _ in range(2))
    assert again == turn
    other = worker.post("/v1/turns", {"worker": "w", "lease_token": "t", "kinds": ["z"]})
    assert (other.status, other.code) == (409, "conflict")
    served.clock.advance(11)
    claim(worker)
    before = served.queue.get("one")

    for path, more in (("heartbeat", {}), ("checkpoint", {}), ("settle", {"outcome": "done"})):
        answer = worker.post(f"/v1/turns/chat/{path}", {**proof(turn), **more})
        assert (answer.status, answer.code) == (409, "lease_lost"), path
    assert served.queue.get("one") == before


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/turns", {"worker": "w", "session_lease": {"generation": 1, "lease_token": "t"}}, "session"),
        ("/v1/turns", {"worker": "w", "only": "mail"}, "only"),
        ("/v1/turns", {"worker": "w", "wait": 61}, "wait"),
        ("/v1/turns", {"worker": "w", "ack_ms": 1}, "ack_ms"),
        ("/v1/turns", {"worker": "w", "tenant": ""}, "tenant"),
        ("/v1/turns", {"worker": "w", "tenant": "", "session": "chat"}, "tenant"),
        ("/v1/sessions/chat/open", {"worker": "w", "tenant": ""}, "tenant"),
        ("/v1/sessions/chat/open", {"worker": "w", "incarnation": ""}, "incarnation"),
        ("/v1/uploads", {"tenant": ""}, "tenant"),
        ("/v1/turns", {"worker": "w", "limit": 0}, "limit"),
        ("/v1/turns", {"worker": "w", "session": "\t"}, "session"),
        ("/v1/turns/chat/settle", {}, "outcome"),
        ("/v1/turns/chat/settle", {"outcome": "done", "outcomes": []}, "outcome"),
        ("/v1/turns/chat/settle", {"outcomes": []}, "outcomes"),
        ("/v1/turns/chat/settle", {"outcomes": [{"outcome": "failed"}]}, "outcomes[0].message"),
        ("/v1/turns/chat/settle", {"outcomes": [{"outcome": "deferred"}]}, "outcomes[0].after"),
        ("/v1/turns/chat/settle", {"outcome": "done", "entries": []}, "entries"),
        ("/v1/turns/chat/settle", {"outcome": "done", "entries": [{"id": "one", "epoch": 1}] * 2}, "entries"),
        ("/v1/turns/chat/settle", {"outcome": "done", "entries": [{"id": "one", "epoch": -1}]}, "entries[0].epoch"),
        ("/v1/sessions/chat/open", {"worker": "w", "lease": 0}, "lease"),
        ("/v1/sessions/chat/renew", {"generation": 0, "lease_token": "t"}, "generation"),
        ("/v1/jobs", {"kind": "a", "entry_type": "command"}, "entry_type"),
        ("/v1/jobs", {"kind": "a", "session": "s", "messages": []}, "messages"),
        ("/v1/jobs", {"kind": "a", "session": "s", "priority": 1}, "priority"),
        ("/v1/jobs", {"kind": "a", "session": "s", "join": 1}, "join"),
    ],
)
def test_a_bad_call_is_refused_by_field_and_changes_nothing(
    server: Server, path: str, body: dict[str, Any], field: str
) -> None:
    say(server.queue, "one")
    client = server.client("admin")
    held = proof(claim(client)) if path.endswith("settle") else {}
    before = server.queue.get("one")
    answer = client.post(path, {**held, **body})

    assert (answer.status, answer.json["field"]) == (422, field), answer
    assert server.queue.get("one") == before
    assert len(server.queue.jobs()) == 1


# --- long polls ----------------------------------------------------------------------------------------------------


def test_a_waiting_claim_gets_a_turn_as_soon_as_there_is_one(served: Server) -> None:
    worker = served.client("work")
    with ThreadPoolExecutor(2) as pool:
        # For longer than the client waits.
        named = pool.submit(worker.post, "/v1/turns", {"worker": "w", "session": "chat", "wait": 60})
        other = pool.submit(worker.post, "/v1/turns", {"worker": "w", "lanes": ["other"], "wait": 60})
        say(served.queue, "one")
        say(served.queue, "two", session="s2", lane="other")
        answers: list[Answer] = [named.result(), other.result()]

    assert [payloads(answer.json["turn"]) for answer in answers] == [["one"], ["two"]]
    assert worker.post("/v1/turns", {"worker": "w", "wait": 0.05}).json == {"turn": None}


def test_a_claimer_that_has_gone_gets_no_turn(served: Server) -> None:
    worker = served.client("work")
    connection = worker.open("POST", "/v1/turns", {"worker": "gone", "wait": 30})
    # The claim has looked for sessions and waits.
    wait_until(lambda: "session_next_time" in served.harness.faults.seen)
    connection.close()
    say(served.queue, "one", max_attempts=1)

    wait_until(lambda: worker.post("/v1/turns", {"worker": "here"}).json["turn"])
    job = served.queue.get("one")
    assert (job.worker, job.attempt, job.suspect) == ("here", 1, 0)


@pytest.mark.service_settings(shutdown_seconds=3_600)
def test_a_shutdown_ends_the_long_poll_for_a_turn(server: Server) -> None:
    worker = server.client("work")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(worker.post, "/v1/turns", {"worker": "w", "wait": 60})
        wait_until(lambda: "session_next_time" in server.harness.faults.seen)
        server.stop()
        assert waiting.result().json == {"turn": None}


# --- sessions and owners -------------------------------------------------------------------------------------------


def test_sessions_are_listed_shown_and_cancelled(served: Server) -> None:
    say(served.queue, "one", "two", session="a")
    say(served.queue, "three", session="b")
    say(served.queue, "four", session="c", tenant="acme")
    client = served.client("produce", "read")
    first = client.get("/v1/sessions?limit=2").json
    rest = client.get(f"/v1/sessions?limit=2&after={first['cursor']}").json
    assert [one["session"] for one in (*first["sessions"], *rest["sessions"])] == ["c", "a", "b"]
    assert rest["cursor"] is None
    assert [one["session"] for one in client.get("/v1/sessions?tenant=acme").json["sessions"]] == ["c"]

    shown = client.get("/v1/sessions/a").json
    assert (shown["entries"], shown["ready"], shown["owner"]) == (2, True, None)
    assert client.get("/v1/sessions/c?tenant=acme").json["entries"] == 1
    assert (client.get("/v1/sessions/c").status, client.get("/v1/sessions/c").code) == (404, "session_not_found")
    assert client.get("/v1/sessions/%09").code == "session_not_found"
    assert client.post("/v1/sessions/a/cancel").json == {"cancelled": ["one", "two"]}
    assert client.post("/v1/sessions/a/cancel").json == {"cancelled": []}
    assert [entry.action for entry in served.queue.admin.audit_log()][:1] == ["sessions.cancel"]
    assert [job["id"] for job in client.get("/v1/jobs?session=a&state=cancelled").json["jobs"]] == ["two", "one"]


def test_an_owner_holds_a_session_until_it_closes_it(served: Server) -> None:
    say(served.queue, "one")
    worker = served.client("work")
    body = {"worker": "agent", "lease": 60, "lease_token": "o"}
    lease, again = (worker.post("/v1/sessions/chat/open", body).json for _ in range(2))
    assert (lease["generation"], again) == (1, lease)
    owner = {"generation": 1, "lease_token": "o"}
    shown = served.client("read").get("/v1/sessions/chat").json
    assert (shown["owner"], shown["lease_until_ms"]) == ("agent", lease["lease_until_ms"])
    assert "lease_until" not in shown
    refused = worker.post("/v1/sessions/chat/open", {"worker": "other"})
    assert (refused.status, refused.code) == (409, "conflict")
    assert worker.post("/v1/turns", {"worker": "other", "session": "chat"}).code == "conflict"

    turn = claim(worker, session="chat", session_lease=owner)
    served.clock.advance(50)
    for _ in range(2):
        assert worker.post("/v1/sessions/chat/renew", {**owner, "lease": 60}).status == 200
    served.clock.advance(50)
    assert worker.post("/v1/turns/chat/heartbeat", proof(turn)).status == 200
    for _ in range(2):
        assert worker.post("/v1/sessions/chat/close", owner).json["owner"] is None
    assert served.queue.get("one").state == "ready"
    lost = worker.post("/v1/sessions/chat/renew", owner)
    assert (lost.status, lost.code) == (409, "lease_lost")
    assert worker.post("/v1/sessions/chat/open", {"worker": "b", "take_over": True}).json["generation"] == 2


# --- tenants and scopes --------------------------------------------------------------------------------------------


def test_turns_of_another_tenant_or_scope_are_not_found(served: Server) -> None:
    say(served.queue, "theirs", tenant="acme", lane="mail")
    turn = claim(served.client("work"), lanes=["mail"])
    before = served.queue.get("theirs")
    for scope in ({"tenant": "other"}, {"tenant": "acme", "lanes": ["bulk"]}, {"tenant": "acme", "kinds": ["x"]}):
        client = served.client("work", **scope)
        held = {key: value for key, value in proof(turn).items() if key != "tenant"}
        for path, more in (("heartbeat", {}), ("checkpoint", {}), ("settle", {"outcome": "done"})):
            answer = client.post(f"/v1/turns/chat/{path}", {**held, **more})
            assert (answer.status, answer.code) == (404, "job_not_found"), (scope, path)
            absent = {**held, "entries": [{"id": "absent", "epoch": 1}], **more}
            missing = client.post(f"/v1/turns/chat/{path}", absent)
            assert missing.json["detail"].replace("absent", "theirs") == answer.json["detail"]
    assert served.queue.get("theirs") == before


def test_a_claim_of_turns_stays_within_tenant_scopes_and_ceilings(served: Server) -> None:
    say(served.queue, "a", "b", "c", tenant="acme", lane="mail")
    say(served.queue, "d", session="s2", lane="bulk")
    scopes: list[dict[str, Any]] = [{"tenant": "other"}, {"lanes": ["x"]}, {"kinds": ["x"]}]
    for scope in scopes:
        client = served.client("work", **scope)
        lanes = {} if "lanes" in scope else {"lanes": ["mail"]}
        assert client.post("/v1/turns", {"worker": "w", **lanes}).json == {"turn": None}
        assert client.post("/v1/turns", {"worker": "w", "session": "s2"}).json == {"turn": None}
    worker = served.client("work", tenant="acme", lanes=["mail"], kinds=["chat.message"], claim_max=2)
    for body, field in (({"tenant": "b"}, "tenant"), ({"lanes": ["x"]}, "lanes[0]"), ({"kinds": ["x"]}, "kinds[0]")):
        refused = worker.post("/v1/turns", {"worker": "w", **body})
        assert (refused.status, refused.json["field"]) == (403, field)
    over = worker.post("/v1/turns", {"worker": "w", "limit": 3})
    assert (over.status, over.json["field"], over.json["limit"]) == (403, "limit", 2)
    assert payloads(claim(worker)) == ["a", "b"]


def test_a_token_of_some_lanes_or_kinds_may_not_act_on_whole_sessions(server: Server) -> None:
    say(server.queue, "one")
    scopes: list[dict[str, Any]] = [{"lanes": ["default"]}, {"kinds": ["chat.message"]}]
    for scope in scopes:
        client = server.client("admin", **scope)
        owner = {"generation": 1, "lease_token": "t"}
        for answer in (
            client.get("/v1/sessions"),
            client.get("/v1/sessions/chat"),
            client.post("/v1/sessions/chat/cancel"),
            client.post("/v1/sessions/chat/open", {"worker": "w"}),
            client.post("/v1/sessions/chat/renew", owner),
            client.post("/v1/sessions/chat/close", owner),
        ):
            assert (answer.status, answer.code) == (403, "forbidden")


def test_messages_count_as_the_payload_of_an_entry(server: Server) -> None:
    client = server.client("produce", payload_bytes_max=10)
    entry = {"kind": "a", "session": "s"}
    refused = client.post("/v1/jobs", {**entry, "messages": ["x" * 5, "y" * 5]})
    assert (refused.status, refused.json["field"], refused.json["limit"]) == (403, "payload", 10)
    assert client.post("/v1/jobs", {**entry, "messages": ["x", "y"]}).json["job"]["entry"]["messages"] == 2
