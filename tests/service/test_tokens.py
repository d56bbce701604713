"""Tokens over HTTP: managed by an administrator without limits, secrets shown once, every change recorded."""

from __future__ import annotations

import hashlib

import pytest

import holdfast
from holdfast.domain.access import TokenOptions
from tests.support.service import Client, Server, wait_until


def test_a_token_is_created_rotated_and_revoked(served: Server) -> None:
    admin = served.client("admin")
    created = admin.post("/v1/tokens", {"name": "billing", "roles": ["produce"], "tenant": "acme"})
    assert created.status == 201
    first = Client(served.port, created.json["text"])
    assert first.post("/v1/jobs", {"kind": "a"}).json["job"]["tenant"] == "acme"

    token_id = created.json["token"]["id"]
    rotated = admin.post(f"/v1/tokens/{token_id}/rotate", {"overlap": 60})
    assert rotated.json["token"]["roles"] == ["produce"]
    second = Client(served.port, rotated.json["text"])
    assert [one.post("/v1/jobs", {"kind": "a"}).status for one in (first, second)] == [201, 201]

    assert admin.post(f"/v1/tokens/{token_id}/revoke").json["state"] == "revoked"
    wait_until(lambda: first.post("/v1/jobs", {"kind": "a"}).status == 401)
    assert second.post("/v1/jobs", {"kind": "a"}).status == 201

    listed = admin.get("/v1/tokens").content.decode()
    secrets = [text.split("_", 2)[2] for text in (created.json["text"], rotated.json["text"])]
    assert not any(secret in listed for secret in secrets)
    log = [(one.action, one.actor) for one in served.queue.admin.audit_log() if one.action != "token.create"]
    actor = f"token:{str(admin.token).split('_')[1]}"
    assert log == [("token.revoke", actor), ("token.rotate", actor)]
    assert admin.post("/v1/tokens/missing/revoke").code == "token_not_found"


def test_a_secret_may_stay_with_the_client_and_the_call_can_be_sent_again(served: Server) -> None:
    admin = served.client("admin")
    secret = "s" * 43
    body = {
        "name": "x",
        "roles": ["read"],
        "id": "a" * 16,
        "secret_hash": hashlib.sha256(secret.encode()).hexdigest(),
    }
    answers = [admin.post("/v1/tokens", body) for _ in range(2)]
    assert [answer.status for answer in answers] == [201, 201]
    assert answers[0].json == answers[1].json
    assert answers[0].json["text"] is None
    assert Client(served.port, f"hf_{'a' * 16}_{secret}").get("/v1/lanes").status == 200
    assert len(served.queue.admin.audit_log()) == 2
    assert admin.post("/v1/tokens", {**body, "secret_hash": "0" * 64}).code == "conflict"
    for wrong in ({"id": "short"}, {"secret_hash": "x"}, {"id": None}):
        refused = admin.post("/v1/tokens", {**body, **wrong})
        assert (refused.status, refused.json["field"]) == (422, next(iter(wrong)))


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"expires_in": 3_600}, "expires_at"),
        ({"priority_max": 5}, "priority_max"),
        ({"claim_max": 5}, "claim_max"),
        ({"payload_bytes_max": 5}, "payload_bytes_max"),
    ],
)
def test_a_limited_administrator_manages_no_tokens(server: Server, options: TokenOptions, field: str) -> None:
    client = server.client("admin", **options)
    token_id = str(client.token).split("_")[1]
    for answer in (
        client.get("/v1/tokens"),
        client.post("/v1/tokens", {"name": "x", "roles": ["admin"]}),
        client.post(f"/v1/tokens/{token_id}/rotate"),
        client.post(f"/v1/tokens/{token_id}/revoke"),
    ):
        assert (answer.status, answer.json["field"]) == (403, field)
    assert len(server.queue.admin.tokens.list()) == 1


def test_the_python_client_manages_tokens(server: Server) -> None:
    url = f"http://127.0.0.1:{server.port}"
    with holdfast.connect(url, token=server.client("admin").token) as queue:
        created = queue.admin.tokens.create("worker", roles=["work"], lanes=["mail"])
        assert created.token in queue.admin.tokens.list()
        assert created.token in server.queue.admin.tokens.list()
        with holdfast.connect(url, token=created.text) as worker:
            assert worker.claim_many(lanes=["mail"]) == []
        assert queue.admin.tokens.revoke(created.token.id).revoked_at is not None
