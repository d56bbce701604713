"""A gateway or a model server that is killed at any stage: nothing is lost, and nothing is generated for nothing."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.gateway.exchanges import Exchange
from holdfast.gateway.gateway import LANES, Gateway
from tests.support.gateway import (
    GatewayProcess,
    ModelServerProcess,
    OpenAnswer,
    StorePlace,
    body_of,
    running_gateway,
)
from tests.support.model_server import ModelServer
from tests.support.service import Client, wait_until

RETRY = {"x-stainless-retry-count": "1"}


@pytest.fixture
def model_process() -> Iterator[ModelServerProcess]:
    server = ModelServerProcess()
    yield server
    server.kill()


def started(place: StorePlace, upstream: str, *arguments: str) -> GatewayProcess:
    return place.process(upstream, "--grace", "60s", *arguments)


@pytest.mark.slow("it starts processes")
def test_asynchronous_jobs_run_again_at_once_after_a_kill(
    place: StorePlace, model_process: ModelServerProcess
) -> None:
    model_process.script(hold=True)
    first = started(place, model_process.url)
    ids = [
        first.client.post("/jobs", {"path": "/api/chat", "request": body_of("/api/chat")}).json["id"] for _ in "123"
    ]
    wait_until(lambda: [one for one in model_process.events("request") if one["generates"]])
    first.kill()
    model_process.script(hold=False)
    second = started(place, model_process.url)
    try:
        jobs = [second.client.get(f"/jobs/{job_id}?wait=30").json for job_id in ids]
        content = second.client.get(f"/jobs/{ids[0]}/artifacts/response").content
    finally:
        second.kill()

    assert [job["state"] for job in jobs] == ["done"] * 3
    assert json.loads(content)["done"]


@pytest.mark.slow("it starts processes")
def test_interrupted_jobs_run_beside_others_and_do_not_wait_for_their_end(
    place: StorePlace, model_process: ModelServerProcess
) -> None:
    def generating() -> set[str]:
        return {one["prompt"] for one in model_process.events("request") if one["generates"]}

    def post(client: Client, text: str, **options: Any) -> None:
        body = {"path": "/api/chat", "request": body_of("/api/chat", text=text), **options}
        assert client.post("/jobs", body).status == 202

    model_process.script(hold=True)
    first = started(place, model_process.url, "--concurrency", "3")
    for text in ("one", "two"):
        post(first.client, text)
    wait_until(lambda: generating() == {"one", "two"})
    # Its claim tells the store that the others have started: they are suspect after the kill.
    post(first.client, "three", priority=5)
    wait_until(lambda: "three" in generating())
    first.kill()
    model_process.kill()
    restarted = ModelServerProcess(model_process.port)
    restarted.script(hold=True)
    second = started(place, restarted.url, "--concurrency", "3")
    try:
        wait_until(lambda: len([one for one in restarted.events("request") if one["generates"]]) == 3)
    finally:
        second.kill()
        restarted.kill()


@pytest.mark.slow("it starts processes")
@pytest.mark.parametrize("running", [True, False])
@pytest.mark.parametrize("stream", [True, False])
def test_a_retry_joins_the_job_of_a_killed_gateway(
    stream: bool, running: bool, place: StorePlace, model_process: ModelServerProcess
) -> None:
    model_process.script(hold=True)
    first = started(place, model_process.url)
    blocker = None
    if not running:
        blocker = OpenAnswer(first.client, "/v1/completions", body_of("/v1/completions", text="first"))
        wait_until(lambda: [one for one in model_process.events("request") if one["generates"]])
    body = body_of("/v1/completions", stream=stream)
    answer = OpenAnswer(first.client, "/v1/completions", body)
    with place.connect() as queue:
        wait_until(lambda: len(queue.jobs().jobs) == (1 if running else 2))
        job = queue.jobs().jobs[0]
        if running:
            wait_until(lambda: [one for one in model_process.events("request") if one["generates"]])
        first.kill()
        answer.leave()
        if blocker is not None:
            blocker.leave()
        model_process.script(hold=False)
        second = started(place, model_process.url)
        try:
            retried = second.client.request("POST", "/v1/completions", body, RETRY)
        finally:
            second.kill()

        assert retried.status == 200
        assert retried.headers["Holdfast-Job"] == job.id
        assert retried.content == Client(model_process.port, None).post("/v1/completions", body).content


@pytest.mark.slow("it starts processes")
def test_jobs_of_callers_who_do_not_come_back_are_cancelled_and_not_generated(
    place: StorePlace, model_process: ModelServerProcess
) -> None:
    model_process.script(hold=True)
    first = started(place, model_process.url)
    answers = [OpenAnswer(first.client, "/api/chat", body_of("/api/chat", text=text)) for text in ("one", "two")]
    with place.connect() as queue:
        wait_until(lambda: len(queue.jobs().jobs) == 2)
        wait_until(lambda: [one for one in model_process.events("request") if one["generates"]])
        first.kill()
        for answer in answers:
            answer.leave()
        model_process.script(hold=False)
        before = len([one for one in model_process.events("request") if one["generates"]])
        second = started(place, model_process.url, "--grace", "1s")
        try:
            wait_until(lambda: {job.state for job in queue.jobs()} == {"cancelled"})
        finally:
            second.kill()

    assert len([one for one in model_process.events("request") if one["generates"]]) == before


@pytest.mark.slow("a gateway is killed at each part of a stream")
def test_a_gateway_killed_at_any_part_of_a_stream_has_stored_what_was_seen_to_the_end(
    place: StorePlace, model_process: ModelServerProcess
) -> None:
    model_process.script(tokens=3)
    body = body_of("/api/chat", stream=True)
    whole = Client(model_process.port, None).post("/api/chat", body).content
    for parts in range(1, 5):
        model_process.script(hold=parts < 4, hold_after=parts)
        gateway = started(place, model_process.url)
        answer = OpenAnswer(gateway.client, "/api/chat", body)
        seen = b"".join(answer.line() for _ in range(parts))
        job_id = answer.response.headers["Holdfast-Job"]
        gateway.kill()
        answer.leave()
        with place.connect() as queue:
            job = queue.get(job_id)
            stored = {one.name for one in queue.artifacts(job_id)}
            if parts == 4:
                assert queue.artifact(job_id, "response").data == seen == whole
            else:
                assert whole.startswith(seen)
                assert (job.state, stored) == ("running", {"request"})


def test_the_answer_that_was_stored_before_a_kill_is_fetched_and_not_generated_again(
    place: StorePlace, upstream: ModelServer
) -> None:
    url = f"http://127.0.0.1:{upstream.port}"
    with place.gateway(url) as first:
        answer = first.generate("/v1/completions")
    with place.gateway(url) as second:
        again = second.generate("/v1/completions", headers=RETRY)
        fetched = second.client.get(f"/jobs/{answer.headers['Holdfast-Job']}/artifacts/response")

    assert again.content == answer.content == fetched.content
    assert again.headers["Holdfast-Job"] == answer.headers["Holdfast-Job"]
    assert len(upstream.generations) == 1


def test_callers_who_wait_while_the_gateway_stops_are_told_to_come_back(
    place: StorePlace, upstream: ModelServer
) -> None:
    url = f"http://127.0.0.1:{upstream.port}"
    upstream.script.hold = True
    with place.gateway(url) as first:
        running = first.open("/v1/completions", text="running")
        wait_until(lambda: upstream.generations)
        waiting = first.open("/v1/completions", text="waiting")
        first.wait_for_job("ready")
        stopping = threading.Thread(target=first.stop_only)
        stopping.start()
        told = waiting.response
        assert (told.status, told.headers["Retry-After"]) == (503, "1")
        upstream.script.hold = False
        assert running.response.status == 200
        stopping.join(30)
    with place.gateway(url) as second:
        back = second.generate("/v1/completions", text="waiting", headers=RETRY)

    assert back.status == 200
    assert back.headers["Holdfast-Job"] == told.headers["Holdfast-Job"]
    assert [one["prompt"] for one in upstream.generations] == ["running", "waiting"]


def test_a_caller_whose_request_is_stored_while_the_gateway_begins_to_stop_is_told_to_come_back(
    place: StorePlace, upstream: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueue = Gateway.enqueue

    async def enqueue_and_stop(gateway: Gateway, *request: Any) -> Exchange:
        stored = await enqueue(gateway, *request)
        if upstream.generations:
            gateway.begin_closing()
        return stored

    monkeypatch.setattr(Gateway, "enqueue", enqueue_and_stop)
    upstream.script.hold = True
    with place.gateway(f"http://127.0.0.1:{upstream.port}") as first:
        running = first.open("/v1/completions", text="running")
        wait_until(lambda: upstream.generations)
        told = first.open("/v1/completions", text="waiting").response
        assert (told.status, told.headers["Retry-After"]) == (503, "1")
        upstream.script.hold = False
        assert running.response.status == 200


def test_a_caller_whose_job_waits_for_a_limit_finds_it_again_after_a_restart(
    place: StorePlace, upstream: ModelServer
) -> None:
    url = f"http://127.0.0.1:{upstream.port}"
    upstream.script.hold = True
    with place.connect() as queue:
        queue.limits.set("one", kinds=sorted(LANES), concurrency=1)
    with place.gateway(url, concurrency=2) as first:
        running = first.open("/v1/completions", text="running")
        wait_until(lambda: upstream.generations)
        waiting = first.open("/v1/completions", text="waiting")
        first.wait_for_job("parked")
        stopping = threading.Thread(target=first.stop_only)
        stopping.start()
        told = waiting.response
        upstream.script.hold = False
        assert running.response.status == 200
        stopping.join(30)
    with place.gateway(url, concurrency=2) as second:
        back = second.generate("/v1/completions", text="waiting", headers=RETRY)

    assert (told.status, back.status) == (503, 200)
    assert back.headers["Holdfast-Job"] == told.headers["Holdfast-Job"]
    assert [one["prompt"] for one in upstream.generations] == ["running", "waiting"]


def test_requests_wait_for_a_model_server_that_does_not_run_yet(file: Path) -> None:
    from tests.support.model_server import model_server

    with model_server() as probe:
        port = probe.port
    with running_gateway(str(file), f"http://127.0.0.1:{port}", upstream_type="ollama") as gateway:
        answer = gateway.open("/v1/completions")
        wait_until(lambda: [job for job in gateway.jobs() if job.attempt > 1])
        with model_server(port) as upstream:
            assert answer.response.status == 200
            assert len(upstream.generations) == 1


def test_a_model_server_that_starts_later_is_asked_what_it_is(file: Path) -> None:
    from tests.support.model_server import model_server

    with model_server() as probe:
        port = probe.port
    with running_gateway(str(file), f"http://127.0.0.1:{port}") as gateway:
        answers = [gateway.open("/v1/completions", text=text) for text in ("one", "two")]
        wait_until(lambda: len(gateway.jobs("ready")) == 2)
        with model_server(port, version=None) as upstream:
            upstream.script.hold = True
            # Not Ollama, which would get one at a time.
            wait_until(lambda: len(upstream.generations) == 2)
            upstream.script.hold = False
            assert [answer.response.status for answer in answers] == [200, 200]


class Caller(threading.Thread):
    """A caller that repeats its request, as the official clients do, until it has an answer."""

    def __init__(self, port: int, number: int) -> None:
        super().__init__(name=f"caller-{number}")
        self.port, self.number = port, number
        self.body = body_of("/v1/chat/completions", text=f"n{number}", stream=number % 2 == 0)
        self.jobs: set[str] = set()
        self.content: bytes | None = None

    def run(self) -> None:
        for attempt in range(200):
            headers = {"x-stainless-retry-count": str(attempt)} if attempt else {}
            try:
                answer = Client(self.port, None).request("POST", "/v1/chat/completions", self.body, headers)
            except (OSError, Exception):  # the gateway was killed
                threading.Event().wait(0.1)
                continue
            if answer.status == 200 and (b"[DONE]" in answer.content or not self.body["stream"]):
                self.content = answer.content
                self.jobs.add(answer.headers["Holdfast-Job"])
                return
            threading.Event().wait(0.1)


@pytest.mark.slow("200 callers, and processes that are killed")
def test_kills_of_gateway_and_model_server_lose_no_request(place: StorePlace) -> None:
    model_process = ModelServerProcess()
    model_process.script(token_seconds=0.005, tokens=3)
    gateway = place.process(model_process.url, "--grace", "30s")
    callers = [Caller(gateway.port, number) for number in range(200)]
    for caller in callers:
        caller.start()

    def answered() -> int:
        return sum(caller.content is not None for caller in callers)

    def wait_answered(count: int) -> None:
        wait_until(lambda: answered() >= count, 60)

    port, model_port = gateway.port, model_process.port
    try:
        for share in (10, 60, 110):
            wait_answered(share)
            gateway.kill()
            gateway = place.process(model_process.url, "--grace", "30s", port=port)
            wait_answered(share + 20)
            model_process.kill()
            model_process = ModelServerProcess(model_port)
            model_process.script(token_seconds=0.005, tokens=3)
        for caller in callers:
            caller.join(90)
        direct = {one.number: Client(model_port, None).post("/v1/chat/completions", one.body) for one in callers[:10]}
    finally:
        gateway.kill()
        model_process.kill()

    assert answered() == 200
    assert all(callers[number].content == answer.content for number, answer in direct.items())
    with place.connect() as queue:
        states: dict[str, Any] = queue.counts()
    assert states.get("done", 0) >= 200
    assert set(states) <= {"done", "failed", "cancelled"}
