"""`/v1/schedules`: tenants apart, actions of tokens in the audit log, and a server that fires ticks by itself."""

from __future__ import annotations

from holdfast.service.routes import ROUTES
from tests.chaos.threads import wait_until
from tests.support.service import Server

ABOUT_A_SCHEDULE = [route for route in ROUTES if "{schedule}" in route.path]
NIGHTLY = {"kind": "report", "payload": {"a": 1}, "cron": "0 3 * * *", "zone": "Europe/Berlin", "priority": 2}


def test_a_schedule_is_managed_over_http(served: Server) -> None:
    client = served.client("admin")
    path = "/v1/schedules/nightly"
    one = client.request("PUT", path, NIGHTLY)

    assert one.status == 200
    assert (one.json["payload"], one.json["options"]) == ({"a": 1}, {"priority": 2})
    assert client.get("/v1/schedules").json == {"schedules": [one.json]}
    assert client.get(path).json == one.json
    preview = client.get(f"{path}/preview?count=2").json
    assert (preview["zone"], len(preview["ticks_ms"])) == ("Europe/Berlin", 2)
    assert client.post(f"{path}/pause").json["paused"]
    assert client.post(f"{path}/run").json["kind"] == "report"
    assert client.post(f"{path}/resume").json["next_at_ms"] == one.json["next_at_ms"]
    assert client.post(f"{path}/remove").status == 200
    assert (client.get(path).status, client.get(path).code) == (404, "schedule_not_found")
    entries = [entry for entry in served.queue.admin.audit_log() if entry.action.startswith("schedules.")]
    assert {entry.actor for entry in entries} == {f"token:{str(client.token).split('_')[1]}"}


def test_a_run_that_is_sent_twice_with_its_key_enqueues_one_job(served: Server) -> None:
    client = served.client("admin")
    client.request("PUT", "/v1/schedules/nightly", NIGHTLY)
    ran = [client.post("/v1/schedules/nightly/run", **{"Idempotency-Key": key}) for key in ("a", "a", "b")]

    assert [one.status for one in ran] == [200, 200, 200]
    assert ran[0].json["id"] == ran[1].json["id"] != ran[2].json["id"]
    assert len(served.queue.jobs(kind="report").jobs) == 2


def test_a_token_of_one_tenant_sees_only_its_schedules(served: Server) -> None:
    served.queue.schedules.set("nightly", kind="report", every=60)
    client = served.client("admin", tenant="acme")

    for route in ABOUT_A_SCHEDULE:
        body = NIGHTLY if route.method == "PUT" else None
        if route.method != "PUT":
            answer = client.request(route.method, route.path.format(schedule="nightly"), body)
            assert (answer.status, answer.code) == (404, "schedule_not_found"), route.name
    assert client.request("PUT", "/v1/schedules/nightly", NIGHTLY).json["tenant"] == "acme"
    assert [one["tenant"] for one in client.get("/v1/schedules").json["schedules"]] == ["acme"]
    assert client.request("PUT", "/v1/schedules/nightly?tenant=default", NIGHTLY).status == 403
    assert served.queue.schedules.get("nightly").every == 60


def test_bad_input_names_the_field(server: Server) -> None:
    client = server.client("admin")
    for body, field in (
        ({"kind": "a"}, "cron"),
        ({"kind": "a", "cron": "x"}, "cron"),
        ({"kind": "a", "every": 0.1}, "every"),
        ({"kind": "a", "every": 5, "typo": 1}, "typo"),
        ({"kind": "a", "cron": "@daily", "zone": "Mars"}, "zone"),
    ):
        answer = client.request("PUT", "/v1/schedules/a", body)
        assert (answer.status, answer.json["field"]) == (422, field)
    declared = {"schedules": [{"name": "a", "owner": "m", "kind": "k", "cron": "x"}]}
    answer = client.post("/v1/schedules", declared)
    assert (answer.status, answer.json["field"]) == (422, "schedules[0].cron")
    assert server.queue.schedules.list() == []


def test_a_worker_declares_its_schedules(served: Server) -> None:
    client = served.client("work")
    one = {"name": "a", "owner": "app.tasks", "kind": "k", "cron": "@daily"}

    assert client.post("/v1/schedules", {"schedules": [one]}).json == {"taken": []}
    assert served.queue.schedules.get("a").owner == "app.tasks"
    other = {**one, "owner": "other"}
    taken = client.post("/v1/schedules", {"schedules": [other]}).json
    assert taken == {"taken": [{"name": "a", "owner": "app.tasks"}]}


def test_a_server_fires_ticks_by_itself(served: Server) -> None:
    served.client("admin").request("PUT", "/v1/schedules/often", {"kind": "report", "every": 1})
    served.clock.advance(1)

    wait_until(lambda: bool(served.queue.jobs(kind="report").jobs))
