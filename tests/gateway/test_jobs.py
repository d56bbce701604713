"""Asynchronous use: `/jobs` at the gateway's address."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.worker import maintenance
from tests.support.gateway import GENERATING, RunningGateway, body_of, running_gateway
from tests.support.model_server import ModelServer
from tests.support.service import Client, wait_until


@pytest.mark.parametrize("path", GENERATING)
def test_a_job_is_accepted_run_and_fetched(path: str, served: RunningGateway, upstream: ModelServer) -> None:
    accepted = served.client.post("/jobs", {"path": path, "request": body_of(path)})
    job_id = accepted.json["id"]
    finished = served.client.get(f"/jobs/{job_id}?wait=30").json

    assert accepted.status == 202
    assert accepted.headers["Location"] == f"/jobs/{job_id}"
    assert finished["state"] == "done"
    assert finished["model"] == "llama:8b"
    direct = Client(upstream.port, None).post(path, body_of(path)).content
    assert served.client.get(f"/jobs/{job_id}/artifacts/response").content == direct
    listed = served.client.get("/jobs?state=done").json["jobs"]
    assert [job["id"] for job in listed] == [job_id]


def test_a_request_may_prefer_to_be_answered_later(gateway: RunningGateway) -> None:
    accepted = gateway.generate("/v1/chat/completions", stream=True, headers={"prefer": "respond-async"})
    stream = gateway.client.get(accepted.json["stream_url"])

    assert accepted.status == 202
    assert stream.content.endswith(b"data: [DONE]\n\n")
    assert stream.headers["content-type"] == "text/event-stream"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"path": "/api/tags", "request": {}}, "path"),
        ({"path": "/api/chat"}, "request"),
        ({"path": "/api/chat", "request": {"model": "missing"}}, "request.model"),
        ({"path": "/api/chat", "request": body_of("/api/chat"), "prio": 1}, "prio"),
        ({"path": "/api/chat", "request": body_of("/api/chat"), "priority": "high"}, "Holdfast-Priority"),
        ({"path": "/api/chat", "request": body_of("/api/chat"), "webhook_url": 3}, "webhook_url"),
        ({"path": "/api/chat", "request": body_of("/api/chat"), "webhook_url": "ftp://x"}, "webhook_url"),
    ],
)
def test_an_invalid_job_is_refused(body: object, field: str, gateway: RunningGateway) -> None:
    answer = gateway.client.post("/jobs", body)

    assert answer.status == 422
    assert answer.json["field"] == field
    assert gateway.jobs() == []


def test_a_job_can_have_a_webhook(gateway: RunningGateway) -> None:
    body = {"path": "/api/chat", "request": body_of("/api/chat"), "webhook_url": "https://example.org/hook"}
    job = gateway.client.post("/jobs", body).json

    assert job["events"] == "all"


def test_jobs_of_other_tenants_and_other_lanes_are_not_found(gateway: RunningGateway) -> None:
    foreign = gateway.queue.enqueue("email.send", {})

    assert gateway.client.get(f"/jobs/{foreign.id}").status == 404
    assert gateway.client.get(f"/jobs/{foreign.id}/stream").status == 404
    assert gateway.client.get("/jobs/missing").status == 404


def test_the_payload_and_the_result_contain_no_text_of_the_caller(gateway: RunningGateway) -> None:
    job_id = gateway.generate(text="a secret thought").headers["Holdfast-Job"]

    assert "secret" not in json.dumps(gateway.client.get(f"/jobs/{job_id}").json)


def test_credentials_of_the_caller_are_neither_stored_nor_sent_on(
    gateway: RunningGateway, upstream: ModelServer
) -> None:
    headers = {"Authorization": "Bearer caller-secret", "X-Api-Key": "caller-secret", "User-Agent": "test"}
    job_id = gateway.generate(headers=headers).headers["Holdfast-Job"]
    sent = upstream.generations[-1]["headers"]

    assert "caller-secret" not in json.dumps(gateway.client.get(f"/jobs/{job_id}").json)
    assert "authorization" not in sent
    assert sent["user-agent"] == "test"


@pytest.mark.gateway_settings(upstream_key="server-secret")
def test_the_key_of_the_model_server_is_sent_and_never_stored(gateway: RunningGateway, upstream: ModelServer) -> None:
    job_id = gateway.generate().headers["Holdfast-Job"]

    assert upstream.generations[-1]["headers"]["authorization"] == "Bearer server-secret"
    assert "server-secret" not in json.dumps(gateway.client.get(f"/jobs/{job_id}").json)
    assert "server-secret" not in repr(gateway.settings)


def test_tokens_separate_tenants_and_roles(file: object, upstream: ModelServer) -> None:
    from tests.support.gateway import running_gateway

    with running_gateway(str(file), f"http://127.0.0.1:{upstream.port}", tokens=True) as gateway:
        acme, other = gateway.token_client("acme"), gateway.token_client("other")
        reader = gateway.token_client("acme", roles=["read"])
        job_id = gateway.generate(client=acme).headers["Holdfast-Job"]
        key = {"X-Api-Key": acme.token or ""}

        assert gateway.generate().status == 401
        assert gateway.client.request("POST", "/v1/messages", body_of("/v1/messages"), key).status == 200
        assert gateway.generate(client=reader).status == 403
        assert reader.get("/api/tags").status == 200
        assert acme.get(f"/jobs/{job_id}").status == 200
        assert other.get(f"/jobs/{job_id}").status == other.get(f"/jobs/{job_id}/stream").status == 404
        assert acme.post("/api/pull", {"model": "llama:8b"}).status == 403
        assert gateway.queue.get(job_id).tenant == "acme"
        admin = gateway.token_client(roles=["admin"])
        assert admin.post("/api/pull", {"model": "llama:8b"}).status == 200


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", GENERATING)
def test_tokens_are_in_the_result_and_in_the_metrics(path: str, stream: bool, gateway: RunningGateway) -> None:
    job_id = gateway.generate(path, stream=stream).headers["Holdfast-Job"]
    usage = gateway.client.get(f"/jobs/{job_id}").json["result"]["usage"]
    metrics = gateway.client.get("/holdfast/metrics").content.decode().splitlines()

    # A stream of OpenAI has its usage only if the caller asks for it.
    counted = not (stream and path.startswith("/v1/") and path != "/v1/messages")
    assert usage == ({"input_tokens": 7, "output_tokens": 5} if counted else {})
    tokens = [line for line in metrics if line.startswith("holdfast_gateway_tokens_total{")]
    expected = [
        'holdfast_gateway_tokens_total{direction="input",model="llama:8b"} 7.0',
        'holdfast_gateway_tokens_total{direction="output",model="llama:8b"} 5.0',
    ]
    assert sorted(tokens) == (expected if counted else [])
    assert 'holdfast_gateway_requests_total{state="done"} 1.0' in metrics
    assert "holdfast_gateway_waiting 0.0" in metrics
    assert "holdfast_store_up 1.0" in metrics


def test_finished_jobs_are_deleted_with_their_content_after_the_retention(
    monkeypatch: pytest.MonkeyPatch, file: Path, upstream: ModelServer
) -> None:
    for name in ("HEARTBEAT_SECONDS", "_CHECK_SECONDS"):
        monkeypatch.setattr(maintenance, name, 0.05)
    with running_gateway(str(file), f"http://127.0.0.1:{upstream.port}", retention=0.1) as gateway:
        job_id = gateway.generate().headers["Holdfast-Job"]
        wait_until(lambda: gateway.client.get(f"/jobs/{job_id}").status == 404)
        assert gateway.client.get(f"/jobs/{job_id}/artifacts/response").status == 404
