"""Several model servers: requests that the first does not take are sent to another that has the model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.gateway import RunningGateway, body_of, running_gateway
from tests.support.model_server import ModelServer, model_server, stream_frames
from tests.support.service import wait_until


@pytest.fixture
def second() -> Iterator[ModelServer]:
    with model_server() as server:
        yield server


@pytest.fixture
def both(upstream: ModelServer, second: ModelServer, file: Path) -> Iterator[RunningGateway]:
    """A gateway before two model servers; models that only one of them has are named by the test."""
    second.script.missing = ["qwen:7b"]
    upstream.script.missing = ["mistral:latest"]
    first_url, second_url = (f"http://127.0.0.1:{one.port}" for one in (upstream, second))
    with running_gateway(str(file), first_url, fallbacks=(second_url,), fallback_key="second-key") as running:
        yield running


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("status", [429, 503])
def test_a_request_that_is_refused_for_now_is_sent_to_another_server(
    status: int, stream: bool, both: RunningGateway, upstream: ModelServer, second: ModelServer
) -> None:
    upstream.script.statuses = [status]
    answer = both.generate("/v1/chat/completions", stream=stream)

    assert answer.status == 200
    assert both.queue.get(answer.headers["Holdfast-Job"]).attempt == 1
    assert len(second.generations) == 1
    assert second.generations[0]["headers"]["authorization"] == "Bearer second-key"


def test_a_server_that_said_when_to_come_back_is_not_asked_before(
    both: RunningGateway, upstream: ModelServer, second: ModelServer
) -> None:
    upstream.script.statuses, upstream.script.retry_after = [503], "60"
    assert [both.generate().status for _ in range(3)] == [200] * 3
    assert (len(upstream.generations), len(second.generations)) == (1, 3)


def test_a_server_that_was_closed_for_a_time_is_asked_again(
    both: RunningGateway, upstream: ModelServer, second: ModelServer
) -> None:
    upstream.script.statuses, upstream.script.retry_after = [503, 503], "0.1"
    wait_until(lambda: both.generate().status == 200 and len(upstream.generations) == 4)
    refused, again, accepted, _ = [one["at"] for one in upstream.generations]

    assert again - refused >= 0.1
    assert accepted - again >= 0.1
    assert len(second.generations) >= 2


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_breaks_before_it_was_seen_comes_from_another_server(
    stream: bool, both: RunningGateway, upstream: ModelServer, second: ModelServer
) -> None:
    upstream.script.cut_after = [10]
    answer = both.generate(stream=stream)
    job = both.queue.get(answer.headers["Holdfast-Job"])

    assert (job.state, job.attempt) == ("done", 1)
    if stream:
        expected = stream_frames("/api/chat", "llama:8b", body_of("/api/chat"), second.script)
        assert answer.content == b"".join(expected)
    assert len(second.generations) == 1


def test_a_stream_of_which_a_part_was_seen_is_not_sent_again(
    both: RunningGateway, upstream: ModelServer, second: ModelServer
) -> None:
    [first, *_] = stream_frames("/api/chat", "llama:8b", body_of("/api/chat"), upstream.script)
    upstream.script.cut_after = [len(first)]
    answer = both.generate(stream=True)

    assert b'"error"' in answer.content
    assert second.generations == []


def test_other_errors_are_final(both: RunningGateway, upstream: ModelServer, second: ModelServer) -> None:
    upstream.script.statuses = [500]

    assert both.generate().status == 500
    assert second.generations == []


def test_a_server_without_the_model_is_not_asked(
    both: RunningGateway, upstream: ModelServer, second: ModelServer
) -> None:
    upstream.script.statuses = [503]
    retried = both.generate(model="qwen:7b")
    elsewhere = both.generate(model="mistral")

    assert both.queue.get(retried.headers["Holdfast-Job"]).attempt == 2
    assert elsewhere.status == 200
    assert [one["model"] for one in second.generations] == ["mistral"]
    assert "mistral" not in {one["model"] for one in upstream.events("request")}
    assert both.generate(model="missing").status == 404


def test_another_server_answers_while_the_first_does_not_run(file: Path, second: ModelServer) -> None:
    with model_server() as probe:
        gone = f"http://127.0.0.1:{probe.port}"
    fallbacks = (f"http://127.0.0.1:{second.port}",)
    with running_gateway(str(file), gone, fallbacks=fallbacks, upstream_type="ollama") as gateway:
        answer = gateway.generate()

    assert answer.status == 200
    assert len(second.generations) == 1
