"""Roles, tokens and methods of every route, generated from the route table."""

from __future__ import annotations

import re
from typing import Any

import pytest

from holdfast.domain.access import ROLES, Role
from holdfast.service.call import Endpoint
from holdfast.service.routes import ROUTES
from tests.support.service import Answer, Client, Server

PRIVATE = [route for route in ROUTES if route.roles is not None]
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


def call(client: Client, route: Endpoint, method: str | None = None) -> Answer:
    """Send the example of a route; names in its path do not exist."""
    path = re.sub(r"\{\w+\}", "missing", route.path)
    body: Any = route.body_example
    headers = {}
    if isinstance(body, dict) and "wait" in body:
        body = {**body, "wait": 0}
    if isinstance(body, str):
        body, headers = body.encode(), {"Content-Type": route.body_media_type}
    return client.request(method or route.method, path, body, headers)


def test_every_route_refuses_a_caller_without_a_valid_token(server: Server) -> None:
    revoked, expired = server.client("admin"), server.client("admin", expires_in=5)
    for token in (revoked.token,):
        server.queue.admin.tokens.revoke(str(token).split("_")[1])
    server.clock.advance(6)
    genuine = str(server.client("admin").token)
    invalid = [None, "", "hf_x", "hf_" + "a" * 16 + "_" + "s" * 43, revoked.token, expired.token]
    # The right id with another secret.
    invalid.append(genuine[:-4] + ("aaaa" if genuine[-4:] != "aaaa" else "bbbb"))
    for route in PRIVATE:
        for token in invalid:
            answer = call(Client(server.port, token), route)
            assert (answer.status, answer.code) == (401, "not_authenticated"), (route.name, token)
            assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("role", ROLES)
def test_a_role_may_call_exactly_its_routes(server: Server, role: Role) -> None:
    client = server.client(role)
    for route in PRIVATE:
        answer = call(client, route)
        allowed = role == "admin" or role in (route.roles or ())
        assert (answer.status == 403) is not allowed, (route.name, answer)
        if not allowed:
            assert answer.code == "forbidden"


def test_no_post_is_open_to_readers() -> None:
    assert [route.name for route in PRIVATE if route.method != "GET" and "read" in (route.roles or ())] == []


def test_a_token_of_one_tenant_is_refused_where_all_tenants_are_concerned(server: Server) -> None:
    client = server.client("admin", tenant="acme")
    for route in PRIVATE:
        answer = call(client, route)
        assert (answer.status == 403) is route.any_tenant, (route.name, answer)


def test_a_token_of_some_lanes_or_kinds_is_refused_where_all_are_concerned(server: Server) -> None:
    for client in (server.client("admin", lanes=["mail"]), server.client("admin", kinds=["email.send"])):
        for route in PRIVATE:
            if route.any_job:
                assert call(client, route).code == "forbidden", route.name
    assert {route.path for route in PRIVATE if route.any_job} == {
        *(
            route.path
            for route in PRIVATE
            if route.path.startswith(("/v1/sessions", "/v1/webhooks", "/v1/schedules", "/v1/limit"))
        ),
        "/v1/groups/{group}/cancel",
        "/v1/jobs/{job_id}/cancel-tree",
        *("/v1/admin/cancel", "/v1/admin/requeue", "/v1/admin/prune", "/v1/counts", "/v1/backlog", "/v1/overview"),
        *("/v1/problems", "/v1/audit"),
        *(route.path for route in PRIVATE if route.path.startswith("/v1/tokens")),
    }


def test_other_methods_of_a_path_are_refused_and_named(server: Server) -> None:
    client = server.client("admin")
    by_path: dict[str, set[str]] = {}
    for route in ROUTES:
        by_path.setdefault(route.path, set()).add(route.method)
    for path, methods in by_path.items():
        for method in set(METHODS) - methods:
            answer = client.request(method, re.sub(r"\{\w+\}", "missing", path))
            assert (answer.status, answer.code) == (405, "method_not_allowed"), (method, path)
            assert set(answer.headers["allow"].split(", ")) == methods | ({"HEAD"} if "GET" in methods else set())


def test_public_routes_need_no_token_and_reveal_nothing(server: Server) -> None:
    for route in ROUTES:
        if route.roles is None:
            assert call(server.anonymous, route).status == 200
    assert server.anonymous.get("/v1/nothing").code == "not_found"
    assert {route.name for route in ROUTES if route.roles is None} == {"healthz", "readyz", "openapi"}


def test_the_use_of_a_token_is_stored(server: Server) -> None:
    client = server.client("read")
    assert client.get("/v1/lanes").status == 200
    server.stop()

    [token] = server.queue.admin.tokens.list()
    assert token.last_used_at is not None


@pytest.mark.service_settings(tokens=False)
def test_without_tokens_every_program_but_no_web_page_is_served(server: Server) -> None:
    client = server.anonymous
    assert client.get("/v1/lanes").status == 200
    assert client.post("/v1/jobs", {"kind": "a"}).status == 201
    assert client.request("GET", "/v1/lanes", headers={"Host": "evil.example:80"}).code == "wrong_origin"
    assert client.post("/v1/jobs", {"kind": "a"}, Origin="https://evil.example").code == "wrong_origin"
    own = f"http://127.0.0.1:{server.port}"
    assert client.post("/v1/jobs", {"kind": "a"}, Origin=own).status == 201
    # What a form of a web page can send without asking.
    assert client.post("/v1/jobs", b'{"kind": "a"}', Content_Type="text/plain").code == "unsupported_media_type"
