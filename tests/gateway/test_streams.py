"""Streams: each frame at once, the terminator after the commit, no frames of two attempts, re-attached readers."""

from __future__ import annotations

import json
from itertools import accumulate
from pathlib import Path

import pytest

from tests.support import nginx
from tests.support.gateway import GENERATING, RunningGateway, body_of
from tests.support.model_server import ModelServer, Script, stream_frames
from tests.support.service import Client, wait_until

ENDS = {"/api/chat": b'"done":true', "/v1/chat/completions": b"[DONE]", "/v1/messages": b"message_stop"}


def frames_of(path: str, script: Script) -> list[bytes]:
    return list(stream_frames(path, "llama:8b", body_of(path), script))


@pytest.mark.parametrize("path", ENDS)
def test_the_terminator_is_sent_after_the_commit(path: str, served: RunningGateway, upstream: ModelServer) -> None:
    upstream.script.hold = True
    answer = served.open(path, stream=True)
    job = served.wait_for_job("running")
    wait_until(lambda: upstream.generations)
    seen = b""
    with served.queue.transaction() as transaction:
        # On SQLite no other writer commits; on PostgreSQL none of this job.
        transaction.enqueue("other")
        if served.on_server:
            transaction.execute(f"select 1 from {served.schema}.job where id = ? for update", [job.id])
        upstream.script.hold = False
        exchange = served.gateway.exchanges.get(job.id)
        assert exchange is not None
        wait_until(lambda: exchange.terminated == "end")
        content = b"".join(frames_of(path, upstream.script))
        while len(seen) < len(content) - len(exchange.held):
            seen += answer.line()
        assert exchange.held
        assert not answer.answered
        assert ENDS[path] not in seen
    rest = answer.rest()

    assert seen + rest == content
    assert ENDS[path] in rest
    assert served.queue.get(job.id).state == "done"


def test_the_model_server_hears_of_a_request_after_its_job_is_committed(
    served: RunningGateway, upstream: ModelServer
) -> None:
    served.generate()
    before = len(upstream.events("request"))
    with served.queue.transaction() as transaction:
        # On SQLite no other writer commits; on PostgreSQL none that stores jobs.
        transaction.enqueue("other")
        if served.on_server:
            transaction.execute(f"lock table {served.schema}.job in exclusive mode")
        answer = served.open(text="second")
        wait_until(lambda: [one for one in served.gateway.exchanges if one.ended is None])
        assert len(upstream.events("request")) == before
    assert answer.response.status == 200


@pytest.mark.slow("a stream is cut at each byte")
def test_a_stream_cut_at_any_byte_is_repeated_unseen_or_ends_with_an_error(
    gateway: RunningGateway, upstream: ModelServer
) -> None:
    upstream.script.tokens = 1
    content = b"".join(frames := frames_of("/api/chat", upstream.script))
    for cut in range(len(content) + 1):
        upstream.script.cut_after = [cut]
        answer = gateway.generate(stream=True)
        job = gateway.queue.get(answer.headers["Holdfast-Job"])
        if cut < len(frames[0]):
            assert (answer.content, job.state, job.attempt) == (content, "done", 2), cut
        elif cut < len(content):
            assert answer.content.startswith(frames[0]), cut
            error = json.loads(answer.content[len(frames[0]) :])["error"]
            assert job.id in error, cut
            assert (job.state, job.attempt) == ("failed", 1), cut
            assert gateway.queue.artifact(job.id, "partial").data == content[:cut], cut
        else:
            assert (answer.content, job.state) == (content, "done")


@pytest.mark.parametrize("path", GENERATING)
def test_a_broken_stream_ends_in_its_dialect_after_each_frame(
    path: str, gateway: RunningGateway, upstream: ModelServer
) -> None:
    frames = frames_of(path, upstream.script)
    for end in list(accumulate(map(len, frames)))[:-1]:
        upstream.script.cut_after = [end]
        answer = gateway.generate(path, stream=True)

        assert answer.status == 200
        assert answer.content[:end] == b"".join(frames)[:end]
        assert answer.headers["Holdfast-Job"].encode() in answer.content[end:]
        assert ENDS.get(path, b"[DONE]") not in answer.content[end:]


@pytest.mark.parametrize("path", GENERATING)
def test_an_answer_that_is_not_a_stream_is_repeated_if_it_breaks(
    path: str, gateway: RunningGateway, upstream: ModelServer
) -> None:
    upstream.script.cut_after = [0, 20]
    answer = gateway.generate(path)

    assert answer.content == Client(upstream.port, None).post(path, body_of(path)).content
    assert gateway.queue.get(answer.headers["Holdfast-Job"]).attempt == 3


@pytest.mark.parametrize("path", GENERATING)
def test_an_error_in_the_stream_of_the_model_server_is_passed_on(
    path: str, gateway: RunningGateway, upstream: ModelServer
) -> None:
    upstream.script.error_frame = True
    answer = gateway.generate(path, stream=True)
    job = gateway.queue.get(answer.headers["Holdfast-Job"])

    assert answer.content == b"".join(frames_of(path, upstream.script))
    assert job.state == "failed"
    assert gateway.queue.artifact(job.id, "response").data == answer.content


# --- headers and keep-alives ---------------------------------------------------------------------------------------


@pytest.mark.gateway_settings(hold_headers=0.05, keep_alive_every=0.05)
@pytest.mark.parametrize(
    ("path", "keep_alive"),
    [
        ("/api/chat", b'"content":""'),
        ("/api/generate", b'"response":""'),
        ("/v1/completions", b": keep-alive"),
        ("/v1/messages", b"event: ping"),
    ],
)
def test_a_stream_that_waits_gets_headers_and_keep_alives_in_its_dialect(
    path: str, keep_alive: bytes, gateway: RunningGateway, upstream: ModelServer
) -> None:
    upstream.script.hold = True
    answer = gateway.open(path, stream=True)
    first = answer.line()
    second = answer.line() if path.startswith("/api/") else answer.line() + answer.line() + answer.line()
    upstream.script.hold = False
    rest = answer.rest()

    assert answer.response.status == 200
    assert keep_alive in first
    assert keep_alive in second or b"ping" in second
    # Keep-alives may stand between the frames.
    for frame in frames_of(path, upstream.script):
        assert frame in rest
        rest = rest[rest.index(frame) + len(frame) :]
    assert "Holdfast-Job" in answer.response.headers


@pytest.mark.skipif(nginx.PROGRAM is None, reason="nginx is not installed: apt-get install nginx-light")
@pytest.mark.parametrize(
    "idle_seconds",
    [
        pytest.param(
            6,
            marks=[
                pytest.mark.slow("it waits longer than a proxy does"),
                pytest.mark.gateway_settings(hold_headers=1, keep_alive_every=1),
            ],
        ),
        pytest.param(30, marks=pytest.mark.long),
    ],
)
def test_a_proxy_with_an_idle_timeout_does_not_cut_a_stream_that_waits(
    idle_seconds: int, gateway: RunningGateway, upstream: ModelServer, tmp_path: Path
) -> None:
    upstream.script.hold = True
    settings = f"proxy_pass http://127.0.0.1:{gateway.port}; proxy_read_timeout {idle_seconds}s;"
    with nginx.proxy(tmp_path, f"location / {{ {settings} }}") as port:
        through = Client(port, None)
        streams = {path: gateway.open(path, through, stream=True) for path in ENDS}
        # Answers that are not streams send nothing before their end: the proxy gives up, and its timeout has passed.
        whole = gateway.open("/v1/completions", through)
        wait_until(lambda: whole.answered, 90)
        assert whole.response.status == 504
        upstream.script.hold = False
        contents = {path: answer.rest() for path, answer in streams.items()}

    for path, content in contents.items():
        assert ENDS[path] in content
        assert b"".join(frames_of(path, upstream.script)[-2:]) in content


def test_the_status_of_a_stream_is_held_back_until_the_model_server_answers(
    gateway: RunningGateway, upstream: ModelServer
) -> None:
    upstream.script.statuses = [400]
    upstream.script.load_seconds = 0.1
    answer = gateway.generate("/v1/chat/completions", stream=True)

    assert answer.status == 400
    assert answer.json["error"]["message"] == "scripted 400"


@pytest.mark.gateway_settings(hold_headers=0.02, keep_alive_every=0.05)
def test_an_error_after_the_headers_ends_the_stream_in_its_dialect(
    gateway: RunningGateway, upstream: ModelServer
) -> None:
    upstream.script.load_seconds, upstream.script.statuses = 0.2, [500]
    answer = gateway.generate("/api/chat", stream=True)
    last = json.loads(answer.content.splitlines()[-1])

    assert answer.status == 200
    assert "scripted 500" in last["error"]
    assert answer.headers["Holdfast-Job"] in last["error"]


def test_answers_that_are_not_streams_send_nothing_before_their_end(
    gateway: RunningGateway, upstream: ModelServer
) -> None:
    upstream.script.hold = True
    answer = gateway.open("/v1/chat/completions")
    wait_until(lambda: upstream.generations)
    assert not answer.answered
    upstream.script.hold = False

    assert answer.response.status == 200


# --- re-attached readers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", GENERATING)
def test_a_finished_stream_can_be_read_after_each_frame(path: str, served: RunningGateway) -> None:
    answer = served.generate(path, stream=True)
    job_id = answer.headers["Holdfast-Job"]
    frames = frames_of(path, Script())
    # Frames after the terminator count as one with it.
    for after in range(len(frames)):
        read = served.client.get(f"/jobs/{job_id}/stream?after={after}")
        assert read.content == b"".join(frames[after:])
        assert read.headers["content-type"] == answer.headers["content-type"]


def test_a_running_stream_can_be_read_by_others_from_any_frame(served: RunningGateway, upstream: ModelServer) -> None:
    upstream.script.token_seconds = 0.02
    answer = served.open(stream=True)
    seen = [answer.line(), answer.line()]
    job_id = answer.response.headers["Holdfast-Job"]
    attempt = answer.response.headers["Holdfast-Attempt"]

    attached = [served.client.get(f"/jobs/{job_id}/stream?after={after}&attempt={attempt}") for after in (0, 1, 2)]

    content = b"".join(seen) + answer.rest()
    assert attached[0].content == content
    assert attached[1].content == content[len(seen[0]) :]
    assert attached[2].content == content[len(b"".join(seen)) :]


def test_frames_of_another_attempt_are_not_joined(served: RunningGateway, upstream: ModelServer) -> None:
    upstream.script.cut_after = [0]
    job_id = served.generate(stream=True).headers["Holdfast-Job"]

    assert served.client.get(f"/jobs/{job_id}/stream?after=1").status == 409
    assert served.client.get(f"/jobs/{job_id}/stream?after=1&attempt=1").status == 409
    assert served.client.get(f"/jobs/{job_id}/stream?after=1&attempt=2").status == 200
    assert served.client.get(f"/jobs/{job_id}/stream").status == 200


def test_a_stream_that_broke_can_be_read_as_far_as_it_came(served: RunningGateway, upstream: ModelServer) -> None:
    frames = frames_of("/api/chat", upstream.script)
    upstream.script.cut_after = [len(frames[0]) + len(frames[1])]
    job_id = served.generate(stream=True).headers["Holdfast-Job"]

    read = served.client.get(f"/jobs/{job_id}/stream?after=1").content

    assert read.startswith(frames[1])
    assert job_id in json.loads(read[len(frames[1]) :])["error"]
