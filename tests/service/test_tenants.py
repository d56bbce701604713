"""Another tenant's things are not found, on every route of the table."""

from __future__ import annotations

import re
from typing import Any

from holdfast import Artifact, Claim, Failed, Queue
from holdfast.service.routes import ROUTES
from tests.support.service import Server

ABOUT_A_JOB = [route for route in ROUTES if "{job_id}" in route.path]


def running_job(queue: Queue) -> Claim:
    """Return a claim of a job of tenant acme, with an artifact."""
    queue.enqueue("secret.kind", {"secret": 1}, tenant="acme", job_id="theirs", lane="mail")
    claim = queue.claim(worker="w", lanes=["mail"], lease_token="theirs")
    assert claim is not None
    queue.attach(claim, [Artifact("log.txt", b"secret")])
    return claim


def body_of(route: Any, claim: Claim) -> Any:
    """Return the example of a route with the true proof of the claim."""
    if isinstance(route.body_example, dict) and "lease_token" in route.body_example:
        return {**route.body_example, "epoch": claim.epoch, "lease_token": claim.lease_token}
    return route.body_example


def test_a_job_of_another_tenant_is_not_found_on_any_route(served: Server) -> None:
    claim = running_job(served.queue)
    before = served.queue.get("theirs")
    for scope in ({"tenant": "other"}, {"tenant": "acme", "lanes": ["bulk"]}, {"kinds": ["other.kind"]}):
        client = served.client("admin", **scope)
        for route in ABOUT_A_JOB:
            path = route.path.replace("{job_id}", "theirs").replace("{name}", "log.txt")
            there = client.request(route.method, path, body_of(route, claim))
            missing = client.request(route.method, path.replace("theirs", "absent"), body_of(route, claim))
            if route.any_job and scope.keys() & {"lanes", "kinds"}:
                # Not for this token, whatever the job is.
                assert (there.status, missing.status) == (403, 403), (route.name, scope, there)
                continue
            assert (there.status, there.code) == (404, "job_not_found"), (route.name, scope, there)
            # The same as for a job that does not exist, except for its name.
            assert {**there.json, "request_id": ""} == {
                **missing.json,
                "request_id": "",
                "detail": missing.json["detail"].replace("absent", "theirs"),
                "job_id": "theirs",
            }
    assert served.queue.get("theirs") == before


def test_a_session_or_upload_of_another_tenant_is_not_found_on_any_route(served: Server) -> None:
    queue = served.queue
    queue.enqueue("secret.kind", {"secret": 1}, tenant="acme", job_id="theirs", session="chat")
    turn = queue.sessions.claim("chat", tenant="acme", worker="w", lease_token="t")
    assert turn is not None
    upload = queue.uploads.begin(tenant="acme")
    before = queue.get("theirs"), queue.sessions.get("chat", tenant="acme")
    client = served.client("admin", tenant="other")
    checked = 0
    for route in ROUTES:
        # To open a session that the own tenant does not have yet creates it.
        if not re.search(r"{(session|upload_id)}", route.path) or route.name == "open_session":
            continue
        path = route.path.replace("{session}", "chat").replace("{upload_id}", upload.id).replace("{number}", "0")
        body: Any = route.body_example
        headers = {}
        if isinstance(body, str):
            body, headers = body.encode(), {"Content-Type": route.body_media_type}
        elif body and "entries" in body:
            body = {**body, "lease_token": "t", "entries": [{"id": "theirs", "epoch": 1}]}
        answer = client.request(route.method, path, body, headers)
        expected = (409, "lease_lost") if route.name in {"renew_session", "close_session"} else (404, None)
        assert answer.status == expected[0], (route.name, answer)
        assert b"secret" not in answer.content
        assert b"acme" not in answer.content
        checked += 1

    assert checked >= 11
    assert client.get("/v1/sessions").json["sessions"] == []
    assert (queue.get("theirs"), queue.sessions.get("chat", tenant="acme")) == before


def test_lists_claims_events_and_counts_contain_only_the_own_tenant(served: Server) -> None:
    served.queue.enqueue("a", tenant="acme", job_id="theirs", events="all")
    served.queue.enqueue("a", tenant="other", job_id="ours", events="all")
    client = served.client("admin", tenant="other")

    assert [job["id"] for job in client.get("/v1/jobs").json["jobs"]] == ["ours"]
    assert {event["job_id"] for event in client.get("/v1/events").json["events"]} == {"ours"}
    assert client.get("/v1/stats").json["total"] == 1
    claimed = client.post("/v1/claims", {"worker": "w", "limit": 10}).json["claims"]
    assert [claim["job"]["id"] for claim in claimed] == ["ours"]
    with client.stream("/v1/events?after=e1-0" if "sqlite" in repr(served.queue) else "/v1/events") as stream:
        served.queue.cancel("theirs")
        served.queue.cancel("ours", force=True)
        for _, event in stream:
            assert event["job_id"] == "ours"
            if event["name"] == "cancelled":
                break


def test_naming_another_tenant_is_forbidden(server: Server) -> None:
    client = server.client("admin", tenant="other")
    refused = [
        (client.post("/v1/jobs", {"kind": "a", "tenant": "acme"}), "tenant"),
        (client.post("/v1/jobs/batch", {"jobs": [{"kind": "a"}, {"kind": "a", "tenant": "acme"}]}), "jobs[1].tenant"),
        (client.post("/v1/claims", {"worker": "w", "tenant": "acme"}), "tenant"),
        (client.get("/v1/jobs?tenant=acme"), "tenant"),
        (client.get("/v1/events?tenant=acme"), "tenant"),
        (client.get("/v1/stats?tenant=acme"), "tenant"),
    ]
    for answer, field in refused:
        assert (answer.status, answer.code, answer.json["field"]) == (403, "forbidden", field)
    assert server.queue.counts() == {}


def test_follow_ups_stay_in_the_tenant_and_scope_of_the_worker(server: Server) -> None:
    server.queue.enqueue("a", tenant="other", job_id="ours")
    client = server.client("work", tenant="other", kinds=["a", "b"], priority_max=5)
    [claim] = client.post("/v1/claims", {"worker": "w"}).json["claims"]
    proof = {"epoch": claim["epoch"], "lease_token": claim["lease_token"], "outcome": "done"}

    for follow_up, field in (
        ({"kind": "b", "tenant": "acme"}, "follow_ups[0].tenant"),
        ({"kind": "c"}, "follow_ups[0].kind"),
        ({"kind": "b", "priority": 6}, "follow_ups[0].priority"),
    ):
        answer = client.post("/v1/claims/ours/settle", {**proof, "follow_ups": [follow_up]})
        assert (answer.status, answer.json["field"]) == (403, field)
    answer = client.post("/v1/claims/ours/settle", {**proof, "follow_ups": [{"kind": "b"}]})
    assert (answer.status, answer.json["state"]) == (200, "done")
    assert [(job.kind, job.tenant) for job in server.queue.jobs(state="ready")] == [("b", "other")]


def test_scopes_and_ceilings_limit_what_a_producer_enqueues(server: Server) -> None:
    client = server.client("produce", lanes=["mail"], kinds=["a"], payload_bytes_max=10, priority_max=0)

    for body, field, limit in (
        ({"kind": "b"}, "kind", None),
        ({"kind": "a", "lane": "bulk"}, "lane", None),
        ({"kind": "a", "payload": "x" * 9}, "payload", 10),
        ({"kind": "a", "priority": 1}, "priority", 0),
    ):
        answer = client.post("/v1/jobs", body)
        assert (answer.status, answer.json["field"], answer.json.get("limit")) == (403, field, limit)
    assert client.post("/v1/jobs", {"kind": "a", "payload": "x" * 8}).json["job"]["lane"] == "mail"


def test_a_claim_is_limited_to_the_scopes_of_its_token(server: Server) -> None:
    for lane in ("mail", "bulk"):
        for kind in ("a", "b"):
            server.queue.enqueue(kind, lane=lane)
    client = server.client("work", lanes=["mail", "other"], kinds=["a"], claim_max=5)

    assert client.post("/v1/claims", {"worker": "w", "lanes": ["bulk"]}).json["field"] == "lanes[0]"
    assert client.post("/v1/claims", {"worker": "w", "kinds": ["a", "b"]}).json["field"] == "kinds[1]"
    over = client.post("/v1/claims", {"worker": "w", "limit": 6})
    assert (over.status, over.json["field"], over.json["limit"]) == (403, "limit", 5)
    [claim] = client.post("/v1/claims", {"worker": "w", "limit": 5}).json["claims"]
    assert (claim["job"]["lane"], claim["job"]["kind"]) == ("mail", "a")


def test_a_chosen_id_that_another_tenant_uses_reveals_nothing_but_that_it_is_in_use(served: Server) -> None:
    served.queue.enqueue("secret.kind", {"secret": 1}, tenant="acme", job_id="used", tags={"secret": "x"})
    served.queue.enqueue("mine", {"mine": 1}, tenant="other", job_id="mine")
    before = served.queue.get("used")
    client = served.client("produce", tenant="other")
    for path, wrap in (
        ("/v1/jobs", lambda job: job),
        ("/v1/jobs/batch", lambda job: {"jobs": [{"kind": "a"}, job]}),
    ):
        theirs, ours = (client.post(path, wrap({"kind": "a", "job_id": name})) for name in ("used", "mine"))
        assert (theirs.status, theirs.code) == (409, "conflict")
        # The same as for an own job with other content, except for the id.
        assert {**theirs.json, "request_id": ""} == {
            **ours.json,
            "request_id": "",
            "detail": ours.json["detail"].replace("mine", "used"),
            "job_id": "used",
        }
        # Not even the same content makes it a job of this tenant.
        same = client.post(path, wrap({"kind": "secret.kind", "payload": {"secret": 1}, "job_id": "used"}))
        assert {**same.json, "request_id": ""} == {**theirs.json, "request_id": ""}
    assert served.queue.get("used") == before
    assert len(served.queue.jobs(tenant="other")) == 1


def test_a_digest_that_a_client_chose_reveals_no_job_of_others(served: Server) -> None:
    digest = "0" * 32
    body = {"kind": "a", "job_id": "theirs", "digest": digest, "payload": {"holdfast.codec": "x", "data": ""}}
    owner = served.client("produce", tenant="acme")
    assert owner.post("/v1/jobs", body).status == 201
    again = owner.post("/v1/jobs", {**body, "payload": {"holdfast.codec": "x", "data": "AA=="}})
    assert (again.status, again.json["created"]) == (200, False)
    assert owner.post("/v1/jobs", {**body, "digest": "1" * 32}).code == "conflict"

    other = served.client("produce", tenant="globex").post("/v1/jobs", body)
    assert (other.status, other.code) == (409, "conflict")
    scoped = served.client("produce", tenant="acme", kinds=["b"]).post("/v1/jobs", {**body, "kind": "b"})
    assert (scoped.status, scoped.code) == (409, "conflict")
    wrong = owner.post("/v1/jobs", {**body, "digest": "x"})
    assert (wrong.status, wrong.json["field"]) == (422, "digest")


def fill(server: Server) -> dict[str, str]:
    """Store one of everything for the tenant acme; return the names by parameter of a path."""
    running_job(server.queue)
    queue, client = server.queue, server.client("admin", tenant="acme")
    queue.enqueue("b", {"concealed": 1}, tenant="acme", job_id="message", session="chat")
    assert queue.sessions.claim("chat", tenant="acme", worker="w", lease_token="turn") is not None
    queue.enqueue("c", {"concealed": 1}, tenant="acme", job_id="dead")
    failing = queue.claim(worker="w", kinds=["c"])
    assert failing is not None
    queue.settle(failing, Failed("concealed", permanent=True))
    queue.schedules.set("nightly", kind="d", payload={"concealed": 1}, cron="0 3 * * *", tenant="acme")
    assert client.post("/v1/groups/batch", {"members": [{"kind": "e", "payload": "concealed"}]}).status == 201
    webhook = client.post("/v1/webhooks", {"url": "https://example.org/concealed"}).json["webhook"]["id"]
    upload = queue.uploads.begin(tenant="acme").id
    return {
        "job_id": "theirs",
        "name": "log.txt",
        "session": "chat",
        "schedule": "nightly",
        "group": "batch",
        "webhook_id": webhook,
        "upload_id": upload,
        "number": "0",
        "kind": "e",
    }


def proved(body: Any) -> Any:
    """Return the example of a body with the ids and true proofs of what `fill` has stored."""
    if isinstance(body, list):
        return [proved(one) for one in body]
    if not isinstance(body, dict):
        return body
    true = {"lease_token": "theirs", "epoch": 1, "job_id": "theirs", "job_ids": ["theirs", "dead"]}
    found = {name: true.get(name, proved(value)) for name, value in body.items()}
    if "entries" in body:
        found |= {"entries": [{"id": "message", "epoch": 1}], "lease_token": "turn"}
    return found


def stored(server: Server) -> object:
    """Return everything that the tenant acme has, as it sees it."""
    client = server.client("read", tenant="acme")
    lists = ["jobs", "schedules", "groups", "webhooks", "sessions", "failures", "counts", "events"]
    # The position of the log is that of all tenants.
    return [{**client.get(f"/v1/{name}").json, "cursor": None} for name in lists]


def test_no_route_shows_or_changes_anything_of_another_tenant(served: Server) -> None:
    names = fill(served)
    before = stored(served)
    assert str(before).count("concealed") > 5
    client = served.client("admin", tenant="other")
    called = 0
    for route in ROUTES:
        if route.roles is None or route.any_tenant:
            continue
        path, body, headers = route.path.format(**names), proved(route.body_example), {}
        if isinstance(body, str):
            body, headers = body.encode(), {"Content-Type": route.body_media_type}
        if "tenant" in route.query:
            named = client.request(route.method, f"{path}?tenant=acme", body, headers)
            assert (named.status, named.code, named.json["field"]) == (403, "forbidden", "tenant"), route.name
        answer = client.request(route.method, path, body, headers)
        assert answer.status < 500, (route.name, answer)
        assert b"concealed" not in answer.content, (route.name, answer)
        assert b'"acme"' not in answer.content, (route.name, answer)
        called += 1
    assert called > 60
    assert stored(served) == before
