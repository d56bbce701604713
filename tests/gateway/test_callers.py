"""Callers who leave, come back and repeat: what happens to their jobs."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from holdfast import AsyncQueue, Job
from holdfast.client.middleware import EndedAttempt
from holdfast.gateway import attempts
from holdfast.gateway.exchanges import Exchange
from tests.support.gateway import RunningGateway
from tests.support.model_server import ModelServer
from tests.support.service import wait_until

RETRY = {"x-stainless-retry-count": "1"}


@pytest.mark.gateway_settings(grace=0.1)
@pytest.mark.parametrize("stream", [False, True])
def test_the_job_of_a_caller_who_left_while_it_waited_is_cancelled(
    stream: bool, served: RunningGateway, upstream: ModelServer
) -> None:
    upstream.script.hold = True
    first = served.open(text="first")
    wait_until(lambda: upstream.generations)
    second = served.open(text="second", stream=stream)
    waiting = served.wait_for_job("ready")
    second.leave()
    wait_until(lambda: served.queue.get(waiting.id).state == "cancelled")
    upstream.script.hold = False

    assert first.response.status == 200
    assert [one["prompt"] for one in upstream.generations] == ["first"]


@pytest.mark.gateway_settings(grace=0.1)
@pytest.mark.parametrize("stream", [False, True])
def test_the_job_of_a_caller_who_left_during_the_load_is_cancelled_with_the_load(
    stream: bool, served: RunningGateway, upstream: ModelServer
) -> None:
    upstream.script.load_seconds = 3_600
    answer = served.open(stream=stream)
    wait_until(lambda: [job for job in served.jobs("running") if job.phase == "loading"])
    job = served.jobs()[0]
    wait_until(lambda: upstream.events("load"))
    answer.leave()
    wait_until(lambda: served.queue.get(job.id).state == "cancelled")
    wait_until(lambda: upstream.events("gone"))
    upstream.script.load_seconds = 0

    assert upstream.generations == []
    assert served.generate(model="qwen:7b").status == 200


@pytest.mark.gateway_settings(grace=0.1)
@pytest.mark.parametrize("stream", [False, True])
def test_the_connection_of_a_caller_who_left_before_the_first_token_is_closed(
    stream: bool, served: RunningGateway, upstream: ModelServer
) -> None:
    upstream.script.hold = True
    answer = served.open(stream=stream)
    wait_until(lambda: upstream.generations)
    answer.leave()
    wait_until(lambda: upstream.events("gone"))
    wait_until(lambda: served.jobs("cancelled"))


@pytest.mark.gateway_settings(grace=0.1)
@pytest.mark.parametrize("stream", [False, True])
def test_the_connection_of_a_caller_who_left_in_the_answer_is_closed(
    stream: bool, served: RunningGateway, upstream: ModelServer
) -> None:
    upstream.script.token_seconds, upstream.script.tokens = 0.02, 10_000
    upstream.script.stop_within = True
    answer = served.open(stream=stream)
    if stream:
        assert answer.line()
    wait_until(lambda: upstream.events("within") or stream)
    answer.leave()
    wait_until(lambda: upstream.events("gone"))
    wait_until(lambda: served.jobs("cancelled"))


@pytest.mark.gateway_settings(grace=0.05)
@pytest.mark.parametrize("headers", [{"idempotency-key": "k1"}, {"prefer": "respond-async"}])
def test_the_job_of_a_caller_who_asked_to_keep_it_goes_on(
    headers: dict[str, str], served: RunningGateway, upstream: ModelServer
) -> None:
    upstream.script.hold = True
    answer = served.open(headers=headers)
    wait_until(lambda: upstream.generations)
    job = served.jobs()[0]
    answer.leave()
    until = time.monotonic() + 0.2
    wait_until(lambda: time.monotonic() > until)
    upstream.script.hold = False
    wait_until(lambda: served.queue.get(job.id).state == "done")

    assert upstream.events("gone") == []


WINDOWS = ("queued", "loading", "before the first token", "in the answer")


@pytest.mark.gateway_settings(grace=0.05)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("window", WINDOWS)
def test_the_job_of_a_caller_with_a_key_goes_on_whenever_the_caller_leaves(
    window: str, stream: bool, gateway: RunningGateway, upstream: ModelServer
) -> None:
    other = gateway.open(text="other") if window == "queued" else None
    script = upstream.script
    script.hold = window in {"queued", "before the first token"}
    script.load_seconds = 0.5 if window == "loading" else 0.0
    script.token_seconds, script.tokens = 0.05, 10
    if other is not None:
        wait_until(lambda: upstream.generations)
    answer = gateway.open(stream=stream, headers={"idempotency-key": "k"})
    if window in {"queued", "loading"}:
        # Until the job is stored: the gateway knows the request before.
        wait_until(lambda: upstream.events("load") and len(gateway.jobs()) == 1 + bool(other))
    else:
        wait_until(lambda: upstream.generations)
    if window == "in the answer" and stream:
        assert answer.line()
    job = gateway.jobs()[0]
    answer.leave()
    until = time.monotonic() + 0.2
    wait_until(lambda: time.monotonic() > until)
    script.hold = False
    wait_until(lambda: gateway.queue.get(job.id).state == "done")

    assert gateway.queue.get(job.id).attempt == 1
    assert upstream.events("gone") == []
    again = gateway.generate(stream=stream, headers={"idempotency-key": "k"})
    assert again.content == gateway.queue.artifact(job.id, "response").data


def test_a_late_report_of_an_attempt_does_not_end_the_answer_that_is_read_from_the_store(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports: list[EndedAttempt] = []
    ended, stored_answer = attempts.Settlements.ended, attempts.stored_answer

    def noted(settlements: attempts.Settlements, attempt: EndedAttempt) -> None:
        reports.append(attempt)
        ended(settlements, attempt)

    async def reported_late(queue: AsyncQueue, exchange: Exchange, job: Job) -> None:
        gateway.gateway._attempt_ended(reports[0])
        await stored_answer(queue, exchange, job)

    monkeypatch.setattr(attempts.Settlements, "ended", noted)
    monkeypatch.setattr(attempts, "stored_answer", reported_late)
    first = gateway.generate(stream=True, headers={"idempotency-key": "k"})
    again = gateway.generate(stream=True, headers={"idempotency-key": "k"})

    assert len(reports) == 1
    assert again.content == first.content


@pytest.mark.gateway_settings(grace=0.1)
def test_a_stream_whose_caller_has_gone_goes_on_as_long_as_another_reads_it(
    served: RunningGateway, upstream: ModelServer
) -> None:
    upstream.script.hold, upstream.script.hold_after = True, 1
    cut = served.open(stream=True)
    first, job_id = cut.line(), cut.response.headers["Holdfast-Job"]
    exchange = next(iter(served.gateway.exchanges))
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(served.client.get, f"/jobs/{job_id}/stream?after=1")
        wait_until(lambda: len(exchange.readers) == 2)
        cut.leave()
        wait_until(lambda: exchange.grace is not None)
        first_grace = exchange.grace
        # It is over: another has begun.
        wait_until(lambda: exchange.grace not in {first_grace, None})
        upstream.script.hold = False
        rest = reading.result().content

    assert served.queue.get(job_id).state == "done"
    assert first + rest == served.queue.artifact(job_id, "response").data


# --- retries -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_a_retry_joins_the_job_whose_caller_has_gone(
    path: str, stream: bool, served: RunningGateway, upstream: ModelServer
) -> None:
    upstream.script.hold = True
    first = served.open(path, stream=stream)
    wait_until(lambda: upstream.generations)
    first.leave()
    exchange = next(iter(served.gateway.exchanges))
    wait_until(lambda: exchange.grace is not None)
    retry = served.open(path, stream=stream, headers=RETRY)
    wait_until(lambda: exchange.callers)
    upstream.script.hold = False

    assert retry.response.status == 200
    assert retry.response.headers["Holdfast-Job"] == exchange.job_id
    assert len(upstream.generations) == 1


def test_a_retry_gets_the_answer_of_a_job_that_ended_after_its_caller_left(
    served: RunningGateway, upstream: ModelServer
) -> None:
    upstream.script.hold = True
    first = served.open("/v1/completions")
    wait_until(lambda: upstream.generations)
    first.leave()
    exchange = next(iter(served.gateway.exchanges))
    wait_until(lambda: exchange.grace is not None)
    upstream.script.hold = False
    wait_until(lambda: exchange.ended)

    answer = served.generate("/v1/completions", headers=RETRY)

    assert answer.headers["Holdfast-Job"] == exchange.job_id
    assert len(upstream.generations) == 1


@pytest.mark.parametrize(
    "change",
    [{"text": "other"}, {"headers": {}}, {"headers": {**RETRY, "holdfast-tenant": "other"}}],
)
def test_another_request_does_not_join(
    change: dict[str, Any], gateway: RunningGateway, upstream: ModelServer
) -> None:
    upstream.script.hold = True
    first = gateway.open("/v1/completions")
    wait_until(lambda: upstream.generations)
    first.leave()
    exchange = next(iter(gateway.gateway.exchanges))
    wait_until(lambda: exchange.grace is not None)
    second = gateway.open("/v1/completions", **{"headers": RETRY, **change})
    wait_until(lambda: len(gateway.jobs()) == 2)
    upstream.script.hold = False

    assert second.response.headers["Holdfast-Job"] != exchange.job_id


def test_a_retry_never_joins_a_job_with_a_live_caller(gateway: RunningGateway, upstream: ModelServer) -> None:
    upstream.script.hold = True
    first = gateway.open("/v1/completions")
    wait_until(lambda: upstream.generations)
    second = gateway.open("/v1/completions", headers=RETRY)
    wait_until(lambda: len(gateway.jobs()) == 2)
    upstream.script.hold = False

    assert first.response.headers["Holdfast-Job"] != second.response.headers["Holdfast-Job"]
    assert len(upstream.generations) == 2


def test_requests_with_one_idempotency_key_are_one_job(served: RunningGateway, upstream: ModelServer) -> None:
    upstream.script.hold = True
    both = [served.open("/v1/completions", headers={"idempotency-key": "k1"}) for _ in range(2)]
    exchange_of = served.gateway.exchanges
    wait_until(lambda: [one for one in exchange_of if one.callers == 2])
    upstream.script.hold = False
    first, second = (one.rest() for one in both)
    later = served.generate("/v1/completions", headers={"idempotency-key": "k1"})
    other = served.generate("/v1/completions", text="other", headers={"idempotency-key": "k1"})

    assert first == second == later.content
    assert len(upstream.generations) == 1
    assert other.status == 422


# --- the model server ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [429, 503])
def test_an_overloaded_model_server_is_asked_again(
    status: int, served: RunningGateway, upstream: ModelServer
) -> None:
    upstream.script.statuses = [status, status]
    answer = served.generate("/v1/chat/completions")

    assert answer.status == 200
    assert served.queue.get(answer.headers["Holdfast-Job"]).attempt == 3


@pytest.mark.gateway_settings(concurrency=4)
def test_a_model_server_that_says_when_to_come_back_gets_one_request_for_the_model_then(
    served: RunningGateway, upstream: ModelServer
) -> None:
    upstream.script.statuses, upstream.script.retry_after = [429, 503], "0.4"
    answers = [served.open()]
    wait_until(lambda: upstream.script.statuses == [503])
    answers += [served.open() for _ in range(3)]

    assert [answer.response.status for answer in answers] == [200] * 4
    refused, again, accepted, *others = [one["at"] for one in upstream.generations]
    assert again - refused >= 0.4
    assert accepted - again >= 0.4
    assert len(others) == 3


@pytest.mark.gateway_settings(concurrency=4, models=2)
def test_other_models_do_not_wait_for_one_that_the_model_server_refuses(
    gateway: RunningGateway, upstream: ModelServer
) -> None:
    upstream.script.statuses, upstream.script.retry_after = [429], "60"
    waiting = [gateway.open()]
    wait_until(lambda: not upstream.script.statuses)
    waiting += [gateway.open() for _ in range(2)]

    assert gateway.generate(model="qwen:7b").status == 200
    assert [one["model"] for one in upstream.generations] == ["llama:8b", "qwen:7b"]
    assert not any(answer.answered for answer in waiting)


@pytest.mark.gateway_settings(max_attempts=2)
def test_the_last_refusal_of_an_overloaded_server_is_passed_on(
    gateway: RunningGateway, upstream: ModelServer
) -> None:
    upstream.script.statuses, upstream.script.retry_after = [503, 503], "0"
    answer = gateway.generate("/v1/chat/completions")

    assert answer.status == 503
    assert answer.json["error"]["message"] == "scripted 503"
    assert answer.headers["retry-after"] == "0"


def test_the_model_server_decides_whether_a_retry_makes_sense(gateway: RunningGateway, upstream: ModelServer) -> None:
    upstream.script.statuses, upstream.script.should_retry = [503], "false"
    assert gateway.generate("/v1/chat/completions").status == 503
    upstream.script.statuses, upstream.script.should_retry = [500], "true"
    assert gateway.generate("/v1/chat/completions").status == 200


@pytest.mark.gateway_settings(max_attempts=2)
def test_a_model_server_that_fails_to_the_end_gives_an_error_with_the_job(
    gateway: RunningGateway, upstream: ModelServer
) -> None:
    upstream.script.cut_after = [0, 0]
    answer = gateway.generate("/v1/messages")

    assert answer.status == 502
    assert answer.headers["Holdfast-Job"] in answer.json["error"]["message"]
    assert answer.headers["x-should-retry"] == "false"


def test_a_job_that_an_operator_cancels_ends_its_caller(served: RunningGateway, upstream: ModelServer) -> None:
    upstream.script.hold = True
    first = served.open()
    wait_until(lambda: upstream.generations)
    second = served.open(text="second")
    job = served.wait_for_job("ready")
    assert served.client.post(f"/jobs/{job.id}/cancel").status == 200

    assert second.response.status == 503
    assert job.id.encode() in second.rest()
    upstream.script.hold = False
    assert first.response.status == 200
