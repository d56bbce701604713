"""What is kept of requests and answers, for how long, and what never leaves the artifacts."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from tests.support.gateway import RunningGateway, body_of, running_gateway
from tests.support.model_server import ModelServer
from tests.support.receivers import receiver
from tests.support.service import wait_until

SECRET = "a secret thought"


def erased(gateway: RunningGateway, job_id: str) -> bool:
    return not gateway.queue.artifacts(job_id)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/api/chat", "/v1/chat/completions", "/v1/messages"])
def test_the_content_of_a_request_with_store_false_is_erased_once_it_is_delivered(
    path: str, stream: bool, served: RunningGateway
) -> None:
    kept = served.generate(path, stream=stream)
    answer = served.generate(path, stream=stream, store=False)
    job_id = answer.headers["Holdfast-Job"]
    wait_until(lambda: erased(served, job_id))

    assert answer.content == kept.content
    assert served.queue.get(job_id).state == "done"
    assert not erased(served, kept.headers["Holdfast-Job"])
    assert served.client.get(f"/jobs/{job_id}/stream").status == 410


@pytest.mark.gateway_settings(grace=0.3)
def test_the_content_of_an_asynchronous_request_with_store_false_is_kept_for_the_grace(
    gateway: RunningGateway, upstream: ModelServer
) -> None:
    upstream.script.hold = True
    body = {"path": "/api/chat", "request": body_of("/api/chat", store=False)}
    job_id = gateway.client.post("/jobs", body).json["id"]
    wait_until(lambda: upstream.generations)
    assert not erased(gateway, job_id)
    upstream.script.hold = False
    wait_until(lambda: erased(gateway, job_id))

    assert gateway.queue.get(job_id).state == "done"


def test_a_key_whose_answer_was_erased_is_not_generated_again(gateway: RunningGateway, upstream: ModelServer) -> None:
    first = gateway.generate(store=False, headers={"idempotency-key": "k1"})
    wait_until(lambda: erased(gateway, first.headers["Holdfast-Job"]))
    again = gateway.generate(store=False, headers={"idempotency-key": "k1"})

    assert again.status == 410
    assert "was erased" in again.json["error"]
    assert len(upstream.generations) == 1


@pytest.mark.gateway_settings(content_retention={"brief": 0.05, "long": 3_600.0, "*": 7_200.0})
def test_each_tenant_has_its_own_retention_of_content(gateway: RunningGateway, upstream: ModelServer) -> None:
    jobs = {
        tenant: gateway.generate(headers={"holdfast-tenant": tenant}).headers["Holdfast-Job"]
        for tenant in ("long", "other", "brief")
    }
    wait_until(lambda: erased(gateway, jobs["brief"]))
    upstream.script.statuses = [400]
    failed = gateway.generate(headers={"holdfast-tenant": "brief"})
    wait_until(lambda: erased(gateway, failed.headers["Holdfast-Job"]))

    assert failed.status == 400
    assert not erased(gateway, jobs["long"])
    assert not erased(gateway, jobs["other"])


def test_content_that_a_killed_gateway_left_is_erased_by_the_next(file: Path, upstream: ModelServer) -> None:
    url = f"http://127.0.0.1:{upstream.port}"
    with running_gateway(str(file), url) as first:
        job_id = first.generate().headers["Holdfast-Job"]
    with running_gateway(str(file), url, grace=0.01, content_retention={"default": 0.0}) as second:
        wait_until(lambda: erased(second, job_id))


def test_logs_webhooks_and_jobs_contain_no_text_of_callers_and_answers(
    file: Path, upstream: ModelServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_WEBHOOK_ALLOW", "127.0.0.0/8")
    caplog.set_level(logging.DEBUG)
    upstream.script.statuses = [0, 500]
    with receiver() as target, running_gateway(str(file), f"http://127.0.0.1:{upstream.port}") as gateway:
        headers = {"prefer": "respond-async", "holdfast-webhook-url": f"{target.url}/hook"}
        for _ in range(2):
            gateway.generate(text=SECRET, headers=headers)
        wait_until(lambda: len({json.loads(one.body)["data"]["job_id"] for one in target.requests}) == 2)
        wait_until(lambda: {job.state for job in gateway.jobs()} == {"done", "failed"})
        sent = b"".join(one.body for one in target.requests)
        jobs = [gateway.client.get(f"/jobs/{job.id}").content for job in gateway.jobs()]

    assert len(upstream.generations) == len(jobs) == 2
    assert SECRET not in caplog.text
    assert "ended: done" in caplog.text
    assert not [text for text in (sent, *jobs) if SECRET.encode() in text]
