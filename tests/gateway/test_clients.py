"""The official clients `ollama`, `openai` and `anthropic`, unchanged, through the gateway."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.gateway import RunningGateway
from tests.support.model_server import ModelServer
from tests.support.service import TIMEOUT, wait_until

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import anthropic
    import ollama
    import openai

MESSAGES: list[Any] = [{"role": "user", "content": "hi"}]
TEXT = "hi-0 éhi-1 éhi-2 éhi-3 éhi-4 é"
WHOLE = "hi-0 é hi-1 é hi-2 é hi-3 é hi-4 é"


@pytest.fixture
def ollama_client(gateway: RunningGateway) -> Iterator[ollama.Client]:
    client = ollama.Client(host=f"http://127.0.0.1:{gateway.port}")
    yield client
    client._client.close()


@pytest.fixture
def openai_client(gateway: RunningGateway) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://127.0.0.1:{gateway.port}/v1", api_key="none", max_retries=2) as client:
        yield client


@pytest.fixture
def anthropic_client(gateway: RunningGateway) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=f"http://127.0.0.1:{gateway.port}", api_key="none", max_retries=2) as client:
        yield client


def patient_at_last(request: Any) -> None:
    """Let the last try of a client that is impatient wait for its answer."""
    if request.headers["x-stainless-retry-count"] == "2":
        request.extensions["timeout"] = dict.fromkeys(request.extensions["timeout"], TIMEOUT)


# --- ollama --------------------------------------------------------------------------------------------------------


def test_ollama_chats_generates_embeds_and_lists(ollama_client: ollama.Client) -> None:
    assert ollama_client.chat(model="llama:8b", messages=MESSAGES).message.content == WHOLE
    parts = ollama_client.chat(model="llama:8b", messages=MESSAGES, stream=True)
    assert "".join(part.message.content or "" for part in parts) == TEXT
    assert ollama_client.generate(model="llama:8b", prompt="hi").response == WHOLE
    assert "".join(part.response or "" for part in ollama_client.generate("llama:8b", "hi", stream=True)) == TEXT
    assert ollama_client.embed("embed", "text").embeddings == [[0.1, 0.2]]
    assert "llama:8b" in [model.model for model in ollama_client.list().models]
    assert ollama_client.ps().models
    with pytest.raises(ollama.ResponseError, match="not found"):
        ollama_client.chat(model="missing", messages=MESSAGES)


@pytest.mark.gateway_settings(hold_headers=0.02, keep_alive_every=0.02)
def test_ollama_reads_keep_alives_as_empty_parts(ollama_client: ollama.Client, upstream: ModelServer) -> None:
    upstream.script.load_seconds = 0.2
    chat = [part.message.content or "" for part in ollama_client.chat("llama:8b", MESSAGES, stream=True)]
    upstream.loaded = None
    generated = [part.response or "" for part in ollama_client.generate("qwen:7b", "hi", stream=True)]

    assert "".join(chat) == "".join(generated) == TEXT
    assert len(chat) > 6


def test_ollama_raises_with_the_job_if_a_stream_breaks(
    ollama_client: ollama.Client, gateway: RunningGateway, upstream: ModelServer
) -> None:
    upstream.script.cut_after = [200]
    with pytest.raises(ollama.ResponseError) as raised:
        list(ollama_client.chat(model="llama:8b", messages=MESSAGES, stream=True))

    assert gateway.jobs()[0].id in str(raised.value)


# --- openai --------------------------------------------------------------------------------------------------------


def test_openai_completes_chats_and_lists(openai_client: openai.OpenAI) -> None:
    chat = openai_client.chat.completions.create(model="llama:8b", messages=MESSAGES)
    assert chat.choices[0].message.content == WHOLE
    chunks = openai_client.chat.completions.create(model="llama:8b", messages=MESSAGES, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == TEXT
    assert openai_client.completions.create(model="llama:8b", prompt="hi").choices[0].text == WHOLE
    parts = openai_client.completions.create(model="llama:8b", prompt="hi", stream=True)
    assert "".join(part.choices[0].text for part in parts) == TEXT
    assert "qwen:7b" in [model.id for model in openai_client.models.list()]
    with pytest.raises(openai.NotFoundError, match="not found"):
        openai_client.completions.create(model="missing", prompt="hi")


def test_openai_raises_with_the_job_if_a_stream_breaks(
    openai_client: openai.OpenAI, gateway: RunningGateway, upstream: ModelServer
) -> None:
    upstream.script.cut_after = [200]
    chunks = openai_client.completions.create(model="llama:8b", prompt="hi", stream=True)
    with pytest.raises(openai.APIError) as raised:
        list(chunks)

    assert gateway.jobs()[0].id in str(raised.value)


@pytest.mark.slow("the client waits before its retries")
def test_openai_that_times_out_and_retries_twice_costs_one_generation(
    openai_client: openai.OpenAI, gateway: RunningGateway, upstream: ModelServer
) -> None:
    upstream.script.hold = True
    answers: list[str | None] = []

    def ask() -> None:
        impatient = openai_client.with_options(timeout=0.5)
        impatient._client.event_hooks = {"request": [patient_at_last]}
        chat = impatient.chat.completions.create(model="llama:8b", messages=MESSAGES)
        answers.append(chat.choices[0].message.content)

    asking = threading.Thread(target=ask)
    asking.start()
    wait_until(lambda: gateway.gateway.exchanges.joined == 2)
    upstream.script.hold = False
    asking.join(TIMEOUT)

    assert answers == [WHOLE]
    assert len(upstream.generations) == 1
    assert len(gateway.jobs()) == 1


# --- anthropic -----------------------------------------------------------------------------------------------------


def test_anthropic_sends_messages(anthropic_client: anthropic.Anthropic) -> None:
    message = anthropic_client.messages.create(model="llama:8b", max_tokens=100, messages=MESSAGES)
    assert message.content[0].text == WHOLE  # type: ignore[union-attr]
    with anthropic_client.messages.stream(model="llama:8b", max_tokens=100, messages=MESSAGES) as stream:
        assert "".join(stream.text_stream) == TEXT
    with pytest.raises(anthropic.NotFoundError, match="not found"):
        anthropic_client.messages.create(model="missing", max_tokens=100, messages=MESSAGES)


@pytest.mark.gateway_settings(hold_headers=0.02, keep_alive_every=0.02)
def test_anthropic_ignores_keep_alives(anthropic_client: anthropic.Anthropic, upstream: ModelServer) -> None:
    upstream.script.load_seconds = 0.2
    with anthropic_client.messages.stream(model="llama:8b", max_tokens=100, messages=MESSAGES) as stream:
        assert "".join(stream.text_stream) == TEXT


def test_anthropic_raises_with_the_job_if_a_stream_breaks(
    anthropic_client: anthropic.Anthropic, gateway: RunningGateway, upstream: ModelServer
) -> None:
    upstream.script.cut_after = [800]
    with (
        pytest.raises(anthropic.APIStatusError) as raised,
        anthropic_client.messages.stream(model="llama:8b", max_tokens=100, messages=MESSAGES) as stream,
    ):
        list(stream.text_stream)

    assert gateway.jobs()[0].id in str(raised.value)


@pytest.mark.slow("the client waits before its retries")
def test_anthropic_that_times_out_and_retries_twice_costs_one_generation(
    anthropic_client: anthropic.Anthropic, gateway: RunningGateway, upstream: ModelServer
) -> None:
    upstream.script.hold = True
    answers: list[str] = []

    def ask() -> None:
        impatient = anthropic_client.with_options(timeout=0.5)
        impatient._client.event_hooks = {"request": [patient_at_last]}
        message = impatient.messages.create(model="llama:8b", max_tokens=100, messages=MESSAGES)
        answers.append(message.content[0].text)  # type: ignore[union-attr]

    asking = threading.Thread(target=ask)
    asking.start()
    wait_until(lambda: gateway.gateway.exchanges.joined == 2)
    upstream.script.hold = False
    asking.join(TIMEOUT)

    assert answers == [WHOLE]
    assert len(upstream.generations) == 1
