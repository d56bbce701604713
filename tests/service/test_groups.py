"""`/v1/groups` and dependencies over HTTP: grants, tenants, repeated requests."""

from __future__ import annotations

from typing import Any

from tests.support.service import Server

MEMBERS: list[dict[str, Any]] = [{"kind": "page", "payload": 1}, {"kind": "page", "after": [0], "on_failed": "run"}]
BODY: dict[str, Any] = {"members": MEMBERS, "on_success": {"kind": "report", "lane": "late"}}


def test_a_group_is_made_once_read_and_cancelled(served: Server) -> None:
    client = served.client("produce", "read")
    first = client.post("/v1/groups/g", BODY, **{"Idempotency-Key": "k"})
    again = client.post("/v1/groups/g", BODY, **{"Idempotency-Key": "k"})

    assert (first.status, again.status) == (201, 201)
    assert [one["job"]["state"] for one in first.json["jobs"]] == ["ready", "dependent"]
    assert again.json["group"] == first.json["group"] == client.get("/v1/groups/g").json
    assert client.get("/v1/groups").json == {"groups": [first.json["group"]]}
    assert client.post("/v1/groups/g", BODY).code == "conflict"
    assert len(client.post("/v1/groups/g/cancel").json["cancelled"]) == 2
    assert client.get("/v1/groups/g?wait=30").json["state"] == "failed"
    assert client.get("/v1/groups/none").code == "group_not_found"


def test_members_and_callbacks_are_within_the_grants(served: Server) -> None:
    client = served.client("produce", kinds=["page"], tenant="acme")
    assert client.post("/v1/groups/g", BODY).code == "forbidden"
    assert client.post("/v1/groups/g", {"members": [{"kind": "other"}]}).code == "forbidden"
    assert client.post("/v1/groups/g?tenant=default", {"members": []}).code == "forbidden"
    assert served.queue.groups.list() == []
    made = client.post("/v1/groups/g", {"members": MEMBERS}).json
    assert {one["job"]["tenant"] for one in made["jobs"]} == {made["group"]["tenant"]} == {"acme"}
    assert served.client("read", tenant="other").get("/v1/groups/g").code == "group_not_found"
    assert served.client("read", tenant="other").get("/v1/groups").json == {"groups": []}


def test_bad_input_names_the_field(server: Server) -> None:
    client = server.client("produce")
    for body, field in (
        ({}, "members"),
        ({"members": [{"kind": "a", "priority": 5000}]}, "members[0].priority"),
        ({"members": [{"kind": "a", "tenant": "x"}]}, "members[0].tenant"),
        ({"members": [], "on_end": {"kind": "a", "job_id": "x"}}, "on_end.job_id"),
        ({"members": [{"kind": "a", "on_end": {"lane": "x"}}]}, "members[0].on_end.kind"),
    ):
        answer = client.post("/v1/groups/g", body)
        assert (answer.status, answer.json["field"]) == (422, field)


def test_a_callback_of_one_job_is_within_the_grants_and_belongs_to_its_tenant(served: Server) -> None:
    client = served.client("produce", kinds=["page", "undo"], tenant="acme")
    assert client.post("/v1/jobs", {"kind": "page", "on_end": {"kind": "other"}}).code == "forbidden"
    made = client.post("/v1/jobs", {"kind": "page", "on_end": {"kind": "undo"}}).json["job"]
    callback = served.queue.get(f"holdfast:on_end:{made['number']}")
    assert (callback.kind, callback.tenant, callback.state) == ("undo", "acme", "dependent")
