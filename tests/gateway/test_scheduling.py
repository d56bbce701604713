"""The order of work: one model after the other, tenants in turn, priorities, and models that run elsewhere."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.gateway import OpenAnswer, RunningGateway, StorePlace, body_of
from tests.support.model_server import ModelServer
from tests.support.service import wait_until

MODELS = ("llama:8b", "qwen:7b", "mistral")


def all_waiting(gateway: RunningGateway, upstream: ModelServer, open_all: Callable[[], list[OpenAnswer]]) -> Any:
    """Send a first request that is held, then others that wait behind it; let them go, and return their answers."""
    upstream.script.hold = True
    first = gateway.open(text="first", model="llama:8b")
    wait_until(lambda: upstream.generations)
    answers = open_all()
    wait_until(lambda: len(gateway.jobs("ready")) == len(answers))
    upstream.script.hold = False
    return [answer.response.status for answer in (first, *answers)]


@pytest.mark.slow("it sends 60 requests")
@pytest.mark.gateway_settings(num_ctx=dict.fromkeys(MODELS, 8192))
def test_a_mixed_backlog_costs_two_swaps_if_the_context_lengths_are_pinned(
    served: RunningGateway, upstream: ModelServer
) -> None:
    rng = random.Random(7)
    requests = [(model, rng.choice((2048, 4096, 8192))) for model in MODELS for _ in range(20)]
    rng.shuffle(requests)

    statuses = all_waiting(
        served,
        upstream,
        lambda: [served.open(model=model, options={"num_ctx": length}) for model, length in requests],
    )

    assert statuses == [200] * 61
    assert served.gateway.status().switches == 2
    assert len(upstream.events("load")) == 3
    assert {one["options"]["num_ctx"] for one in upstream.generations} == {8192}


def test_context_lengths_that_are_not_pinned_are_drained_one_after_the_other(
    served: RunningGateway, upstream: ModelServer
) -> None:
    lengths = [2048, 4096] * 5

    all_waiting(
        served, upstream, lambda: [served.open(model="qwen:7b", options={"num_ctx": length}) for length in lengths]
    )

    # Requests of different connections may be stored in another order than they were sent.
    first, *others = [one["options"] for one in upstream.events("load")]
    assert (first, sorted(others)) == ("{}", ['{"num_ctx": 2048}', '{"num_ctx": 4096}'])


def test_names_of_one_model_are_one_model(gateway: RunningGateway, upstream: ModelServer) -> None:
    names = ["mistral", "mistral:latest", "Mistral"]
    all_waiting(gateway, upstream, lambda: [gateway.open(model=name) for name in names])

    assert len({job.affinity for job in gateway.jobs() if job.tags["model"] in names}) == 1


def test_a_single_request_is_run_at_a_time(gateway: RunningGateway, upstream: ModelServer) -> None:
    all_waiting(gateway, upstream, lambda: [gateway.open() for _ in range(5)])

    assert [one["running"] for one in upstream.generations] == [0] * 6


@pytest.mark.slow("it sends 510 requests")
def test_tenants_take_turns_so_that_single_requests_do_not_wait_for_a_heavy_caller(
    served: RunningGateway, upstream: ModelServer
) -> None:
    # So that the worker takes no jobs ahead.
    upstream.script.token_seconds, upstream.script.tokens = 0.01, 3
    upstream.script.hold = True
    first = served.open(text="first")
    wait_until(lambda: upstream.generations)
    body = {"path": "/api/chat", "request": body_of("/api/chat", text="heavy"), "tenant": "heavy"}
    assert {served.client.post("/jobs", body).status for _ in range(500)} == {202}
    light = [served.open(text=f"light {n}", headers={"holdfast-tenant": f"light-{n}"}) for n in range(10)]
    wait_until(lambda: len(served.gateway.exchanges.unfinished()) == 511)
    upstream.script.hold = False

    assert {answer.response.status for answer in (first, *light)} == {200}
    wait_until(lambda: sum(one["prompt"] == "heavy" for one in upstream.generations) >= 12)
    order = [one["prompt"] for one in upstream.generations][1:]
    twelfth = [index for index, text in enumerate(order) if text == "heavy"][11]
    assert all(order.index(f"light {n}") < twelfth for n in range(10))


@pytest.mark.gateway_settings(residence=0.05)
def test_another_model_is_loaded_within_the_residence_bound(served: RunningGateway, upstream: ModelServer) -> None:
    def open_all() -> list[OpenAnswer]:
        return [*(served.open(text="same") for _ in range(40)), served.open(model="qwen:7b", text="other")]

    all_waiting(served, upstream, open_all)
    order = [one["prompt"] for one in upstream.generations]

    # The bound passes while the first request is held; without one, the other model comes after all 40.
    assert order.index("other") < 30


def test_a_higher_priority_goes_first_up_to_the_ceiling_of_the_token(
    place: StorePlace, upstream: ModelServer
) -> None:
    with place.gateway(f"http://127.0.0.1:{upstream.port}", tokens=True) as gateway:
        urgent = gateway.token_client("urgent", priority_max=5)
        plain = gateway.token_client("plain", priority_max=0)
        upstream.script.hold = True
        answers = [gateway.open(client=plain, text="first")]
        wait_until(lambda: upstream.generations)
        answers.append(gateway.open(client=plain, text="plain"))
        wait_until(lambda: len(gateway.jobs("ready")) == 1)
        answers.append(gateway.open(client=urgent, text="urgent", headers={"holdfast-priority": "5"}))
        wait_until(lambda: len(gateway.jobs("ready")) == 2)
        refused = gateway.generate(client=plain, headers={"holdfast-priority": "1"})
        nameless = gateway.generate(client=plain, headers={"holdfast-tenant": "urgent"})
        upstream.script.hold = False

        assert [answer.response.status for answer in answers] == [200] * 3
        assert [one["prompt"] for one in upstream.generations] == ["first", "urgent", "plain"]
        assert refused.status == nameless.status == 403
        assert "limit of the token" in refused.json["error"]


def test_models_that_run_elsewhere_do_not_wait_for_the_loaded_one(
    gateway: RunningGateway, upstream: ModelServer
) -> None:
    upstream.script.hold = True
    first = gateway.open()
    wait_until(lambda: upstream.generations)
    remote = [gateway.open(model="big:cloud") for _ in range(3)]
    wait_until(lambda: len(upstream.generations) == 4)
    upstream.script.hold = False

    assert [answer.response.status for answer in (first, *remote)] == [200] * 4
    assert gateway.gateway.status().switches == 0
    assert len(upstream.events("load")) == 1


# --- loads and keep_alive ------------------------------------------------------------------------------------------


def test_a_model_is_loaded_once_with_the_options_of_its_requests(
    gateway: RunningGateway, upstream: ModelServer
) -> None:
    upstream.script.load_seconds = 0.2
    answer = gateway.open(options={"num_ctx": 1024, "temperature": 0.5})
    wait_until(lambda: [job for job in gateway.jobs("running") if job.phase == "loading"])

    assert answer.response.status == 200
    assert [one["options"] for one in upstream.events("load")] == ['{"num_ctx": 1024}']


def test_keep_alive_is_obeyed_after_the_drain(gateway: RunningGateway, upstream: ModelServer) -> None:
    def open_all() -> list[OpenAnswer]:
        return [gateway.open(text="unloads", keep_alive=0), *(gateway.open(text="more") for _ in range(5))]

    all_waiting(gateway, upstream, open_all)
    wait_until(lambda: upstream.events("unload"))

    assert all(one["keep_alive"] is None for one in upstream.generations)
    assert len(upstream.events("unload")) == len(upstream.events("load")) == 1
    assert upstream.log.index(upstream.events("unload")[0]) > upstream.log.index(upstream.generations[-1])


def test_a_request_to_unload_waits_for_the_work_of_its_model(gateway: RunningGateway, upstream: ModelServer) -> None:
    upstream.script.hold = True
    first = gateway.open()
    wait_until(lambda: upstream.generations)
    answer = gateway.client.post("/api/generate", {"model": "llama:8b", "keep_alive": 0})
    assert (answer.json["done"], answer.json["done_reason"]) == (True, "unload")
    assert upstream.events("unload") == []
    upstream.script.hold = False

    assert first.response.status == 200
    wait_until(lambda: upstream.events("unload"))


def test_a_request_to_unload_is_passed_on_if_nothing_waits(gateway: RunningGateway, upstream: ModelServer) -> None:
    gateway.generate()
    answer = gateway.client.post("/api/generate", {"model": "llama:8b", "keep_alive": 0})

    assert answer.json["done_reason"] == "unload"
    assert upstream.loaded is None


def test_a_request_to_load_loads_and_is_answered_as_by_the_server(
    gateway: RunningGateway, upstream: ModelServer
) -> None:
    answer = gateway.client.post("/api/generate", {"model": "llama:8b"})

    assert answer.json["done_reason"] == "load"
    assert len(upstream.events("load")) == 1
    assert upstream.generations == []


# --- bounds, positions and estimates -------------------------------------------------------------------------------


@pytest.mark.gateway_settings(queue_max=3, queue_max_per_tenant=2)
def test_callers_beyond_the_bound_are_refused_in_the_dialect_of_their_path(
    served: RunningGateway, upstream: ModelServer
) -> None:
    upstream.script.hold = True
    answers = [served.open()]
    wait_until(lambda: upstream.generations)
    answers += [served.open() for _ in range(2)]
    wait_until(lambda: len(served.jobs("ready")) == 2)
    own = [served.generate(path) for path in ("/api/chat", "/v1/chat/completions", "/v1/messages")]
    answers.append(served.open(headers={"holdfast-tenant": "other"}))
    wait_until(lambda: len(served.jobs("ready")) == 3)
    full = served.generate(headers={"holdfast-tenant": "third"})
    upstream.script.hold = False

    assert [answer.response.status for answer in answers] == [200] * 4
    assert [answer.status for answer in own] == [429] * 3
    assert all(1 <= int(answer.headers["retry-after"]) <= 120 for answer in own)
    assert "2 of your requests wait" in own[0].json["error"]
    assert own[1].json["error"]["type"] == own[2].json["error"]["type"] == "rate_limit_error"
    assert "3 requests wait" in full.json["error"]


@pytest.mark.gateway_settings(hold_headers=0.05)
def test_a_caller_who_waits_is_told_its_position_and_an_estimate(
    served: RunningGateway, upstream: ModelServer
) -> None:
    upstream.script.hold = True
    first = served.open()
    wait_until(lambda: upstream.generations)
    others: list[OpenAnswer] = []
    for model in ("qwen:7b", "llama:8b", "qwen:7b"):
        others.append(served.open(model=model, stream=True))
        wait_until(lambda: len(served.jobs("ready")) == len(others))
    shown = [int(answer.response.headers["Holdfast-Position"]) for answer in others]
    jobs = [served.client.get(f"/jobs/{answer.response.headers['Holdfast-Job']}").json for answer in others]
    upstream.script.hold = False

    # The loaded model goes first.
    assert [job["position"] for job in jobs] == [1, 0, 2]
    assert shown[0] in {0, 1}
    assert jobs[1]["estimate_seconds"] < jobs[0]["estimate_seconds"] < jobs[2]["estimate_seconds"]
    assert [answer.rest()[:1] for answer in (first, *others)] == [b"{"] * 4
    assert [one["model"] for one in upstream.generations] == ["llama:8b", "llama:8b", "qwen:7b", "qwen:7b"]


def test_a_budget_of_tokens_per_caller_and_model_holds_back_what_exceeds_it(
    served: RunningGateway, upstream: ModelServer
) -> None:
    upstream.script.tokens = 3
    limit: Any = {
        "kinds": ["model.local"],
        "key": "tenant+tag:model",
        "rate": 2_000,
        "per": 3_600,
        "weight": "tokens",
    }
    served.queue.limits.set("budget", **limit)

    def left() -> int:
        served.queue.claim_many(kinds=["none"])
        [use] = served.queue.limits.show("default / llama:8b")
        return use.left or 0

    for _ in range(3):
        # Each may use more than 900, and uses ten.
        assert served.generate(options={"num_predict": 900}).status == 200
        wait_until(lambda: left() > 1_900)
    served.open(options={"num_predict": 5_000})
    # More than the budget: it starts once nothing of it is used.
    wait_until(lambda: served.jobs("parked"))
    # Other callers and other models have their own.
    assert served.generate(headers={"holdfast-tenant": "other"}).status == 200
    assert served.generate(model="qwen:7b").status == 200
    assert len(served.jobs("parked")) == 1
