"""The parts of the gateway that need no server: dialects, positions, and what is read of a request."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast import InvalidInput
from holdfast.gateway import backlog, dialects, model_requests
from holdfast.gateway.backlog import Durations, WaitingRequest
from holdfast.gateway.settings import GatewaySettings
from tests.support.gateway import GENERATING, body_of
from tests.support.model_server import Script, stream_frames


@pytest.mark.parametrize("path", GENERATING)
def test_frames_are_found_however_the_stream_is_divided(path: str) -> None:
    frames = list(stream_frames(path, "m", body_of(path), Script()))
    content = b"".join(frames)
    for step in (1, 2, 3, 7, 50, len(content)):
        splitter = dialects.FrameSplitter(dialects.dialect_of(path).pattern)
        found = [
            frame for start in range(0, len(content), step) for frame in splitter.feed(content[start : start + step])
        ]
        assert found == frames
        assert splitter.rest == b""


@pytest.mark.parametrize("path", GENERATING)
def test_only_the_last_frame_is_a_terminator_whatever_the_text_is(path: str) -> None:
    dialect = dialects.dialect_of(path)
    texts = ['"done":true', "[DONE]", "event: message_stop", '{"error": 1}', "data: [DONE]"]
    for text in texts:
        frames = list(stream_frames(path, "m", body_of(path, text=text), Script()))
        assert [dialect.frame_kind(frame) for frame in frames] == ["content"] * (len(frames) - 1) + ["end"]


@pytest.mark.parametrize("path", GENERATING)
def test_the_error_of_the_gateway_is_an_error_of_the_dialect(path: str) -> None:
    dialect = dialects.dialect_of(path)

    assert dialect.frame_kind(dialect.error_frame("code", "a problem")) == "error"
    assert dialect.frame_kind(dialect.keep_alive(path, "m")) == "content"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"model": "m", "prompt": "p"}, {"stream": True, "loads_only": False, "unloads": False}),
        ({"model": "m"}, {"loads_only": True, "unloads": False}),
        ({"model": "m", "keep_alive": 0}, {"loads_only": True, "unloads": True}),
        ({"model": "m", "keep_alive": "0s"}, {"unloads": True}),
        ({"model": "m", "keep_alive": "10m"}, {"unloads": False}),
        ({"model": "m", "keep_alive": -1}, {"unloads": False}),
        ({"model": "m", "prompt": "p", "keep_alive": 0}, {"unloads": False}),
        ({"model": 3, "stream": False}, {"model": "", "stream": False}),
        ({"model": "m", "options": {"num_ctx": 1, "seed": 2}}, {"options": {"num_ctx": 1}}),
    ],
)
def test_few_fields_of_a_request_are_read(body: Any, expected: dict[str, Any]) -> None:
    request = model_requests.parse("/api/generate", json.dumps(body).encode(), {})

    assert {name: getattr(request, name) for name in expected} == expected


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"3", b"[" * 100_000])
def test_a_body_that_is_no_object_is_refused(content: bytes) -> None:
    with pytest.raises(model_requests.InvalidRequestError):
        model_requests.parse("/api/chat", content, {})


def test_a_request_is_changed_only_if_it_must_be() -> None:
    def sent(body: bytes, num_ctx: dict[str, int]) -> bytes:
        return model_requests.content_to_send(model_requests.parse("/api/chat", body, num_ctx))

    plain = b'{"model": "m",  "options": {"num_ctx": 5}}'
    assert sent(plain, {}) == sent(plain, {"m": 5}) == plain
    assert json.loads(sent(plain, {"m": 9})) == {"model": "m", "options": {"num_ctx": 9}}
    assert json.loads(sent(b'{"model": "m", "keep_alive": 0}', {})) == {"model": "m"}
    half = b'{"model": "m", "keep_alive": 0, "messages": ["\\ud800"]}'
    assert json.loads(sent(half, {}))["messages"] == ["\ud800"]


def waiting(text: str) -> list[WaitingRequest]:
    """Return requests written as `id:tenant:priority:affinity`."""
    rows = [one.split(":") for one in text.split()]
    return [WaitingRequest(row[0], row[1], int(row[2]), row[3] or None, order) for order, row in enumerate(rows)]


@pytest.mark.parametrize(
    ("text", "loaded", "expected"),
    [
        ("1:a:0:x 2:a:0:y 3:a:0:x", [], "1 3 2"),
        ("1:a:0:x 2:a:0:y 3:a:0:x", ["y"], "2 1 3"),
        ("1:a:0:x 2:a:0:x 3:b:0:x", ["x"], "1 3 2"),
        ("1:a:0:x 2:a:5:y 3:a:0:y", ["x"], "2 3 1"),
        ("1:a:0: 2:a:0:x", ["x"], "2 1"),
    ],
)
def test_positions_follow_the_claim_order(text: str, loaded: list[str], expected: str) -> None:
    found = backlog.in_claim_order(waiting(text), loaded)

    assert [one.job_id for one in found] == expected.split()


def test_the_estimate_counts_runs_and_loads() -> None:
    durations = Durations()
    durations.note_run("x", 2.0)
    durations.note_run("y", 4.0)
    durations.note_load("y", 10.0)
    requests = waiting("1:a:0:x 2:a:0:y 3:a:0:y")

    places = [backlog.place_of(one, requests, ["x"], 0, 1, durations) for one in ("1", "2", "3", "4")]

    assert places == [(0, 0.0), (1, 12.0), (2, 16.0), None]
    assert [backlog.retry_after(seconds) for seconds in (0.0, 30.4, 1e9)] == [1, 30, 120]


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"upstream": "127.0.0.1:11434"}, "upstream"),
        ({"upstream": "http://user@host"}, "upstream"),
        ({"models": 0}, "models"),
        ({"num_ctx": {"m": 0}}, "num_ctx[m]"),
        ({"grace": -1}, "grace"),
        ({"keep_alive_every": 0}, "keep_alive_every"),
        ({"queue_max": 0}, "queue_max"),
        ({"upstream_type": "other"}, "upstream_type"),
    ],
)
def test_an_invalid_setting_is_refused(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        GatewaySettings(**settings)

    assert raised.value.field == field
