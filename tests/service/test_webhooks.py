"""`/v1/webhooks`: secrets shown once, tenants apart, actions of tokens in the audit log."""

from __future__ import annotations

import pytest

from holdfast.domain import webhooks
from holdfast.service.routes import ROUTES
from tests.support.service import Server

ABOUT_A_WEBHOOK = [route for route in ROUTES if "{webhook_id}" in route.path]
URL = "https://example.org/hook"
SECRET = "whsec_" + "c2VjcmV0" * 4


def test_a_webhook_is_managed_over_http(served: Server) -> None:
    client = served.client("admin")
    added = client.post("/v1/webhooks", {"url": URL, "types": ["job.done"], "tags": {"a": "1"}})
    assert added.status == 201
    one = added.json["webhook"]
    path = f"/v1/webhooks/{one['id']}"

    assert added.json["secret"].startswith("whsec_")
    later = [client.get(route).content for route in ("/v1/webhooks", path, f"{path}/deliveries", "/v1/audit")]
    assert client.get("/v1/webhooks").json == {"webhooks": [one]}
    assert client.get(path).json == one
    rotated = client.post(f"{path}/rotate", {"overlap": 60})
    assert rotated.json["secret"] != added.json["secret"]
    assert client.post(f"{path}/rotate").status == 200
    test = client.post(f"{path}/test").json
    assert (test["type"], test["state"], test["webhook_id"]) == ("webhook.test", "ready", one["id"])
    assert client.get(f"{path}/deliveries?state=ready").json == {"deliveries": [test]}
    assert client.post(f"{path}/replay").json == {"requeued": [], "skipped": []}
    enabled, audit = client.post(f"{path}/enable"), client.get("/v1/audit")
    later += [client.get(path).content, enabled.content, audit.content]
    assert enabled.json == one
    removed = client.post(f"{path}/remove")
    later += [removed.content, client.get("/v1/audit").content]
    assert removed.json == one
    assert (client.get(path).status, client.get(path).code) == (404, "webhook_not_found")
    for secret in (added.json["secret"], rotated.json["secret"]):
        assert not any(secret.encode() in content for content in later)
    actors = {entry.actor for entry in served.queue.admin.audit_log() if entry.action.startswith("webhooks.")}
    assert actors == {f"token:{str(client.token).split('_')[1]}"}


def test_bad_input_names_the_field(server: Server) -> None:
    client = server.client("admin")
    for body, field in (
        ({"url": "http://example.org"}, "url"),
        ({"url": URL, "types": ["job.exploded"]}, "types[0]"),
        ({"url": URL, "secret": "whsec_x"}, "secret"),
        ({"url": URL, "typo": 1}, "typo"),
        ({"url": URL, "id": "whj_mvxgk3tdmfxgg2lb", "secret": SECRET}, "id"),
        ({"url": URL, "id": "wh_mvxgk3tdmfxgg2lb"}, "secret"),
        ({"url": URL, "id": "wh_mvxgk3tdmfxgg2lb", "secret": "whsec_x"}, "secret"),
    ):
        answer = client.post("/v1/webhooks", body)
        assert (answer.status, answer.json["field"]) == (422, field)
    assert server.queue.webhooks.list() == []


def test_an_id_that_exists_is_refused_without_its_secret(server: Server) -> None:
    body = {"url": URL, "id": "wh_mvxgk3tdmfxgg2lb", "secret": SECRET}
    mine, other = (server.client("admin", tenant=tenant) for tenant in ("acme", "other"))

    assert mine.post("/v1/webhooks", body).status == mine.post("/v1/webhooks", body).status == 201
    answer = other.post("/v1/webhooks", {**body, "secret": "whsec_" + "b2xkb2xk" * 4})
    assert (answer.status, answer.code) == (409, "conflict")
    assert b"acme" not in answer.content


def test_a_webhook_of_another_tenant_is_not_found_on_any_route(served: Server) -> None:
    theirs = served.queue.webhooks.add(URL, tenant="acme").webhook
    anyones = served.queue.webhooks.add(URL).webhook
    client = served.client("admin", tenant="other")
    for one in (theirs, anyones):
        for route in ABOUT_A_WEBHOOK:
            path = route.path.replace("{webhook_id}", one.id)
            answer = client.request(route.method, path, route.body_example)
            assert (answer.status, answer.code) == (404, "webhook_not_found"), (route.name, answer)
            assert b"example.org" not in answer.content
    assert client.get("/v1/webhooks").json["webhooks"] == []
    assert client.post("/v1/webhooks", {"url": URL, "tenant": "acme"}).code == "forbidden"
    assert client.post("/v1/webhooks", {"url": URL}).json["webhook"]["tenant"] == "other"
    assert {one.tenant for one in served.queue.webhooks.list()} == {"acme", None, "other"}


def test_a_job_has_a_url_over_http(served: Server) -> None:
    client = served.client("produce")
    body = {"kind": "mail", "webhook_url": URL, "job_id": "mine"}

    assert client.post("/v1/jobs", body).status == 201
    assert client.post("/v1/jobs", body).status == 200
    assert client.post("/v1/jobs", {**body, "webhook_url": URL + "2"}).status == 409
    assert client.post("/v1/jobs", {**body, "webhook_url": "ftp://x"}).json["field"] == "webhook_url"
    assert [event.name for event in served.queue.events()] == ["enqueued"]


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/jobs/batch"])
def test_deliveries_cannot_be_enqueued_or_claimed_by_a_tenant(server: Server, path: str) -> None:
    webhook_id = server.queue.webhooks.add(URL, tenant="acme").webhook.id
    server.queue.webhooks.test(webhook_id)
    client = server.client("admin", tenant="acme")
    forged = {"kind": webhooks.KIND, "lane": webhooks.LANE, "payload": {"webhook": webhook_id, "body": "{}"}}

    assert client.post(path, {"jobs": [forged]} if "batch" in path else forged).status == 422
    assert client.post("/v1/claims", {"worker": "w", "lanes": [webhooks.LANE]}).json["claims"] == []
    assert client.get("/v1/jobs").json["jobs"] == []
