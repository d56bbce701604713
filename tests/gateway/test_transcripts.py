"""What callers get through the gateway is, byte by byte, what the model server sends."""

from __future__ import annotations

import json
import re

import pytest

from tests.support.gateway import GENERATING, RunningGateway, body_of
from tests.support.model_server import ModelServer
from tests.support.service import Client, wait_until

PASSED = ("/", "/api/version", "/api/tags", "/api/ps", "/v1/models")
EMBEDDING = ("/api/embed", "/api/embeddings", "/v1/embeddings")


@pytest.mark.parametrize("path", PASSED)
def test_status_pages_are_passed_on(path: str, gateway: RunningGateway, upstream: ModelServer) -> None:
    direct, through = Client(upstream.port, None).get(path), gateway.client.get(path)

    assert (through.status, through.content) == (direct.status, direct.content)
    assert through.headers["content-type"] == direct.headers["content-type"]


def test_details_of_a_model_are_passed_on(gateway: RunningGateway, upstream: ModelServer) -> None:
    direct = Client(upstream.port, None).post("/api/show", {"model": "llama:8b"})

    assert gateway.client.post("/api/show", {"model": "llama:8b"}).content == direct.content


@pytest.mark.parametrize("frame_bytes", [0, 7])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", GENERATING)
def test_a_generated_answer_equals_that_of_a_direct_call(
    path: str, stream: bool, frame_bytes: int, gateway: RunningGateway, upstream: ModelServer
) -> None:
    upstream.script.frame_bytes = frame_bytes
    body = body_of(path, stream=stream)
    direct, through = Client(upstream.port, None).post(path, body), gateway.client.post(path, body)

    assert (through.status, through.content) == (direct.status, direct.content)
    assert through.headers["content-type"] == direct.headers["content-type"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", GENERATING)
def test_what_a_caller_saw_can_be_fetched(path: str, stream: bool, served: RunningGateway) -> None:
    answer = served.generate(path, stream=stream)
    job_id = answer.headers["Holdfast-Job"]
    job = served.queue.get(job_id)

    assert job.state == "done"
    assert served.queue.artifact(job_id, "response").data == answer.content
    assert json.loads(served.queue.artifact(job_id, "request").data) == body_of(path, stream=stream)
    assert served.client.get(f"/jobs/{job_id}/artifacts/response").content == answer.content
    assert job.result["status"] == 200
    if not stream or path.startswith(("/api/", "/v1/messages")):
        assert job.result["usage"] == {"input_tokens": 7, "output_tokens": 5}


@pytest.mark.parametrize("path", GENERATING)
def test_an_error_of_the_model_server_is_final_and_passed_on_as_it_is(
    path: str, gateway: RunningGateway, upstream: ModelServer
) -> None:
    upstream.script.statuses = [400, 400]
    direct, through = Client(upstream.port, None).post(path, body_of(path)), gateway.generate(path)
    job = gateway.queue.get(through.headers["Holdfast-Job"])

    assert (through.status, through.content) == (direct.status, direct.content)
    assert job.state == "failed"
    assert job.attempt == 1
    assert gateway.queue.artifact(job.id, "response").data == direct.content


@pytest.mark.parametrize("path", [*GENERATING, *EMBEDDING])
@pytest.mark.parametrize("stream", [False, True])
def test_an_unknown_model_is_refused_at_the_door_with_the_servers_own_error(
    path: str, stream: bool, gateway: RunningGateway, upstream: ModelServer
) -> None:
    body = body_of(path, model="missing", stream=stream) | {"input": "text"}
    direct, through = Client(upstream.port, None).post(path, body), gateway.client.post(path, body)

    assert (through.status, through.content) == (direct.status, direct.content)
    assert through.status == 404
    assert gateway.jobs() == []


def test_the_exact_bytes_reach_the_model_server(gateway: RunningGateway, upstream: ModelServer) -> None:
    text = b"nul \\u0000, half \\ud800, \xff"
    content = b'{ "model":"llama:8b", "messages": [{"role":"user","content":"%s"}],\n"stream":false}' % text

    answer = gateway.client.post("/api/chat", content)

    assert answer.status == 200
    assert gateway.queue.artifact(answer.headers["Holdfast-Job"], "request").data == content
    assert upstream.generations[-1]["size"] == len(content)


def test_the_query_of_a_request_is_sent_on(gateway: RunningGateway, upstream: ModelServer) -> None:
    assert gateway.client.post("/v1/messages?beta=true", body_of("/v1/messages")).status == 200
    assert upstream.query == "beta=true"


def test_a_large_request_with_images_and_a_large_answer_arrive_whole(
    gateway: RunningGateway, upstream: ModelServer
) -> None:
    upstream.script.padding = 9 << 20
    body = body_of("/api/chat", images=["i" * (20 << 20)])

    direct, through = Client(upstream.port, None).post("/api/chat", body), gateway.client.post("/api/chat", body)

    assert through.content == direct.content
    sent = [one["digest"] for one in upstream.generations]
    assert sent[0] == sent[1]
    assert gateway.queue.artifact(through.headers["Holdfast-Job"], "response").data == direct.content


def test_a_body_that_is_not_json_is_refused_in_the_dialect_of_its_path(gateway: RunningGateway) -> None:
    assert "not JSON" in gateway.client.post("/api/chat", b"{").json["error"]
    assert "not JSON" in gateway.client.post("/v1/completions", b"{").json["error"]["message"]
    assert gateway.client.post("/v1/messages", b"[]").json["error"]["type"] == "invalid_request_error"
    assert gateway.client.post("/v1/unknown", b"{}").status == 404
    assert gateway.client.get("/api/chat").status == 405


@pytest.mark.parametrize("path", EMBEDDING)
def test_embeddings_are_passed_to_a_loaded_model_and_queued_for_another(
    path: str, gateway: RunningGateway, upstream: ModelServer
) -> None:
    body = {"model": "embed", "input": "text", "prompt": "text"}
    queued = gateway.client.post(path, body)
    # The list of loaded models is believed for a moment.
    wait_until(lambda: "Holdfast-Job" not in gateway.client.post(path, body).headers)
    passed = gateway.client.post(path, body)

    assert queued.content == passed.content == Client(upstream.port, None).post(path, body).content
    assert "Holdfast-Job" in queued.headers
    assert upstream.loaded is not None
    assert upstream.loaded[0] == "embed:latest"


def test_models_are_changed_through_the_gateway_part_by_part(gateway: RunningGateway) -> None:
    answer = gateway.client.post("/api/pull", {"model": "llama:8b"})

    assert [json.loads(line)["status"] for line in answer.content.splitlines()] == ["pulling manifest", "success"]


def test_the_service_stands_under_its_prefix(gateway: RunningGateway) -> None:
    answer = gateway.generate()
    job = gateway.client.get(f"/holdfast/v1/jobs/{answer.headers['Holdfast-Job']}").json

    assert job["state"] == "done"
    assert gateway.client.get("/holdfast/healthz").json["status"] == "ok"
    assert gateway.client.get("/healthz").status == 200


def test_the_dashboard_stands_under_the_prefix_too(gateway: RunningGateway) -> None:
    answer = gateway.generate()
    number = gateway.client.get(f"/holdfast/v1/jobs/{answer.headers['Holdfast-Job']}").json["number"]
    page = gateway.client.get("/holdfast/dashboard/jobs").content.decode()

    assert f'href="/holdfast/dashboard/jobs/{number}"' in page
    links = set(re.findall(r'(?:href|src|action)="(/[^"]*)"', page))
    assert all(link.startswith("/holdfast/dashboard/") for link in links), links
    style = next(link for link in links if "style.css" in link)
    assert gateway.client.get(style).status == 200
    assert gateway.client.get(f"/holdfast/dashboard/jobs/{number}").status == 200
