"""The content of jobs over HTTP: output as pages and streams, artifacts with ranges, uploads."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

import pytest

from holdfast import Artifact, Claim, Done, Queue
from holdfast.client.queue_state import state_of
from holdfast.domain import limits
from holdfast.service import content
from tests.support.service import Client, Server, Stream, wait_until

CHUNK = limits.ARTIFACT_CHUNK_BYTES
BYTES = {"Content-Type": "application/octet-stream"}


def running(queue: Queue, job_id: str = "one", **options: Any) -> Claim:
    """Return the claim of a new job."""
    queue.enqueue("a", job_id=job_id, **options)
    claim = queue.claim(worker="w", lease_token="t")
    assert claim is not None
    return claim


def proof(claim: Claim) -> dict[str, Any]:
    """Return what every call of a worker presents."""
    return {"epoch": claim.epoch, "lease_token": claim.lease_token}


def texts(stream: Stream, count: int) -> list[str]:
    """Return the next texts of a stream."""
    return [stream.next()[1]["text"] for _ in range(count)]


# --- output --------------------------------------------------------------------------------------------------------


def test_a_worker_appends_output_and_others_read_it_in_pages(served: Server) -> None:
    claim = running(served.queue)
    worker, reader = served.client("work"), served.client("read")
    for part, text in enumerate(("one ", "zwei ", "три")):
        for _ in range(2):
            answer = worker.post("/v1/claims/one/output", {**proof(claim), "text": text, "part": part})
            assert (answer.status, answer.json) == (200, {"number": part + 1})
    page = reader.get("/v1/jobs/one/output?limit=2").json
    rest = reader.get("/v1/jobs/one/output?after=2").json

    assert [chunk["text"] for chunk in (*page["chunks"], *rest["chunks"])] == ["one ", "zwei ", "три"]
    assert (page["ended"], rest["ended"]) == (False, False)
    served.queue.settle(claim, Done())
    assert reader.get("/v1/jobs/one/output?after=3").json == {"chunks": [], "ended": True}
    late = worker.post("/v1/claims/one/output", {**proof(claim), "text": "late", "part": 3})
    assert (late.status, late.code) == (409, "lease_lost")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"text": ""}, "text"),
        ({"text": "x" * (limits.OUTPUT_CHUNK_BYTES_MAX + 1)}, "text"),
        ({"text": "\0"}, "text"),
        ({"text": "x", "part": -1}, "part"),
        ({"text": 1}, "text"),
        ({}, "text"),
    ],
)
def test_bad_output_is_refused_by_field_and_stores_nothing(server: Server, body: Any, field: str) -> None:
    claim = running(server.queue)
    answer = server.client("work").post("/v1/claims/one/output", {**proof(claim), **body})

    assert (answer.status, answer.json["field"]) == (422, field), answer
    assert len(server.queue.output("one")) == 0


@pytest.mark.service_settings(ping_seconds=3_600)
def test_a_stream_follows_the_output_until_the_job_has_finished(
    served: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    # By notifications, not by polling.
    monkeypatch.setattr(content, "_POLL_SECONDS", 3_600.0)
    claim = running(served.queue)
    served.queue.emit(claim, "before ")
    with served.client("produce").stream("/v1/jobs/one/output") as stream:
        assert stream.response.headers["content-type"].startswith("text/event-stream")
        assert texts(stream, 1) == ["before "]
        served.queue.emit(claim, "during ")
        assert texts(stream, 1) == ["during "]
        served.queue.emit(claim, "after")
        served.queue.settle(claim, Done())
        assert texts(stream, 1) == ["after"]
        assert stream.next() == ("end", {"number": 3})
        assert list(stream) == []
    assert stream.last_id == "3"


def test_an_output_stream_resumes_without_gap_or_repeat(served: Server) -> None:
    claim = running(served.queue)
    for number in range(150):
        served.queue.emit(claim, str(number), part=number)
    served.queue.settle(claim, Done())
    reader = served.client("read")
    with reader.stream("/v1/jobs/one/output") as stream:
        seen = texts(stream, 60)
    with reader.stream("/v1/jobs/one/output?after=5", Last_Event_ID=str(stream.last_id)) as stream:
        seen += [data["text"] for name, data in stream if name == "message"]

    assert seen == [str(number) for number in range(150)]
    with reader.stream("/v1/jobs/one/output", Last_Event_ID="150") as stream:
        assert list(stream) == [("end", {"number": 150})]
    assert reader.get("/v1/jobs/one/output", **{"Last-Event-ID": "x"}).json["field"] == "Last-Event-ID"


def test_an_output_stream_says_that_its_job_was_deleted(server: Server) -> None:
    claim = running(server.queue)
    server.queue.emit(claim, "text")
    with server.client("read").stream("/v1/jobs/one/output") as stream:
        assert texts(stream, 1) == ["text"]
        # In one transaction, so that the stream does not see that the job has finished.
        with server.queue.transaction() as tx:
            tx.settle(claim, Done())
            tx.execute("delete from holdfast_job")
        assert stream.next() == ("deleted", {"number": 1})


@pytest.mark.service_settings(ping_seconds=0.05)
def test_a_waiting_job_whose_deadline_passes_ends_its_output_stream(served: Server) -> None:
    served.queue.enqueue("a", job_id="one", deadline=60)
    with served.client("read").stream("/v1/jobs/one/output") as stream:
        served.clock.advance(61)
        assert stream.next() == ("end", {"number": 0})
    assert served.queue.get("one").state == "failed"


@pytest.mark.service_settings(ping_seconds=0.05, streams_per_token_max=2, shutdown_seconds=3_600)
def test_output_streams_get_comments_are_limited_and_end_with_their_token(server: Server) -> None:
    running(server.queue)
    client = server.client("read")
    with client.stream("/v1/jobs/one/output") as first, client.stream("/v1/events"):
        refused = client.request("GET", "/v1/jobs/one/output", headers={"Accept": "text/event-stream"})
        assert (refused.status, refused.code, refused.json["limit"]) == (429, "too_many_streams", 2)
        server.queue.admin.tokens.revoke(str(client.token).split("_")[1])
        assert list(first) == []
        assert first.comments[-1] == "the token was revoked or has expired"
        assert "ping" in first.comments
    with server.client("read").stream("/v1/jobs/one/output") as stream:
        server.stop()
        assert list(stream) == []
        assert stream.comments[-1] == "server is shutting down"


def test_a_stream_whose_client_has_gone_is_forgotten(server: Server) -> None:
    running(server.queue)
    notifier = state_of(server.queue).store.notifier
    with server.client("read").stream("/v1/jobs/one/output"):
        wait_until(lambda: "output:one" in notifier.topics())
    wait_until(lambda: "output:one" not in notifier.topics())


# --- artifacts -----------------------------------------------------------------------------------------------------


def test_inputs_are_stored_with_the_job_and_read_by_its_worker(served: Server) -> None:
    body = {"kind": "a", "artifacts": [{"name": "in.txt", "data": base64.b64encode(b"hello").decode()}]}
    producer, worker = served.client("produce"), served.client("work")
    created, again = (producer.post("/v1/jobs", body, Idempotency_Key="k") for _ in range(2))
    job_id = created.json["job"]["id"]

    assert (created.status, again.status) == (201, 200)
    [info] = worker.get(f"/v1/jobs/{job_id}/artifacts").json["artifacts"]
    assert (info["name"], info["size"], info["input"]) == ("in.txt", 5, True)
    assert worker.get(f"/v1/jobs/{job_id}/artifacts/in.txt").content == b"hello"
    other = {"kind": "a", "artifacts": [{"name": "in.txt", "data": ""}]}
    assert producer.post("/v1/jobs", other, Idempotency_Key="k").code == "idempotency_key_reused"


def test_a_range_of_an_artifact_is_downloaded(served: Server) -> None:
    data = bytes(range(256)) * 2_000
    served.queue.enqueue("a", job_id="one", artifacts=[Artifact("film.mp4", data, "video/mp4")])
    client = served.client("read")
    path = "/v1/jobs/one/artifacts/film.mp4"
    whole = client.get(path)
    assert (whole.status, whole.content, whole.headers["content-type"]) == (200, data, "video/mp4")
    assert whole.headers["etag"] == f'"{hashlib.sha256(data).hexdigest()}"'

    size = len(data)
    for header, expected, described in (
        ("bytes=0-0", data[:1], f"0-0/{size}"),
        ("bytes=262100-262200", data[262_100:262_201], f"262100-262200/{size}"),
        (f"bytes={size - 3}-", data[-3:], f"{size - 3}-{size - 1}/{size}"),
        ("bytes=-5", data[-5:], f"{size - 5}-{size - 1}/{size}"),
        (f"bytes=10-{size + 100}", data[10:], f"10-{size - 1}/{size}"),
    ):
        part = client.get(path, Range=header)
        assert (part.status, part.content) == (206, expected), header
        assert part.headers["content-range"] == f"bytes {described}"
        assert int(part.headers["content-length"]) == len(expected)
    for ignored in ("bytes=5-2", "bytes=-", "lines=1-2", "bytes=0-1,4-5", f"bytes=-{size * 2}"):
        assert client.get(path, Range=ignored).content == data
    changed = client.request("GET", path, headers={"Range": "bytes=0-0", "If-Range": '"other"'})
    assert (changed.status, changed.content) == (200, data)
    for beyond in (f"bytes={size}-", "bytes=-0"):
        refused = client.get(path, Range=beyond)
        assert (refused.status, refused.code, refused.json["limit"]) == (416, "range_not_satisfiable", size)
        assert refused.headers["content-range"] == f"bytes */{size}"


def test_a_worker_attaches_and_settles_with_uploaded_artifacts(served: Server) -> None:
    claim = running(served.queue, tenant="acme")
    worker = served.client("work", tenant="acme")
    uploads = []
    for data in (b"first", b"second"):
        upload_id = worker.post("/v1/uploads").json["id"]
        uploads.append(worker.request("PUT", f"/v1/uploads/{upload_id}/content", data, BYTES).json)
    given = [
        {"name": f"{index}.bin", "upload_id": upload["id"], "digest": upload["digest"]}
        for index, upload in enumerate(uploads)
    ]
    for _ in range(2):
        attached = worker.post("/v1/claims/one/artifacts", {**proof(claim), "artifacts": given[:1]})
        assert [one["name"] for one in attached.json["artifacts"]] == ["0.bin"]
    for _ in range(2):
        body = {**proof(claim), "outcome": "done", "artifacts": given[1:]}
        assert worker.post("/v1/claims/one/settle", body).json["state"] == "done"

    assert [served.queue.artifact("one", f"{index}.bin").data for index in range(2)] == [b"first", b"second"]


@pytest.mark.parametrize(
    ("artifact", "field"),
    [
        ({"name": "x"}, "artifacts[0].data"),
        ({"name": "x", "data": "*"}, "artifacts[0].data"),
        ({"name": "x", "data": "", "digest": "0" * 64}, "artifacts[0].digest"),
        ({"name": "x", "data": "", "upload_id": "u"}, "artifacts[0].data"),
        ({"name": "x", "upload_id": "u"}, "artifacts[0].digest"),
        ({"name": "x", "upload_id": "u", "digest": "short"}, "artifacts[0].digest"),
        ({"name": "a/b", "data": ""}, "artifacts[0].name"),
        ({"data": ""}, "artifacts[0].name"),
    ],
)
def test_a_bad_artifact_is_refused_by_field_and_stores_nothing(server: Server, artifact: Any, field: str) -> None:
    answer = server.client("produce").post("/v1/jobs", {"kind": "a", "artifacts": [artifact]})

    assert (answer.status, answer.json["field"]) == (422, field), answer
    assert server.queue.counts() == {}


# --- uploads -------------------------------------------------------------------------------------------------------


def begin(client: Client, **options: Any) -> str:
    """Begin an upload and return its id."""
    answer = client.post("/v1/uploads", options)
    assert (answer.status, answer.headers["location"]) == (201, f"/v1/uploads/{answer.json['id']}")
    return str(answer.json["id"])


def test_an_upload_is_sent_in_chunks_and_becomes_an_input(served: Server) -> None:
    client = served.client("produce")
    data = bytes(range(256)) * (CHUNK // 256) + b"the end"
    upload = begin(client)
    path = f"/v1/uploads/{upload}"
    for number, start in enumerate(range(0, len(data), CHUNK)):
        for _ in range(2):
            stored = client.request("PUT", f"{path}/chunks/{number}", data[start : start + CHUNK], BYTES)
            assert (stored.status, stored.json["chunks"]) == (200, number + 1)
        assert client.get(path).json["chunks"] == number + 1
    digest = hashlib.sha256(data).hexdigest()
    for wrong, field in (({"size": 1}, "size"), ({"digest": "0" * 64}, "digest")):
        refused = client.post(f"{path}/finish", wrong)
        assert (refused.status, refused.json["field"]) == (422, field)
    for _ in range(2):
        finished = client.post(f"{path}/finish", {"size": len(data), "digest": digest})
        assert (finished.status, finished.json["digest"]) == (200, digest)

    body = {"kind": "a", "job_id": "one", "artifacts": [{"name": "f", "upload_id": upload, "digest": digest}]}
    for status in (201, 200):
        assert client.post("/v1/jobs", body).status == status
    assert served.queue.artifact("one", "f").data == data
    again = client.post("/v1/jobs", {**body, "job_id": "two"})
    assert (again.status, again.code) == (409, "conflict")


def test_a_whole_body_is_stored_in_chunks_and_can_be_sent_again_after_a_cut(served: Server) -> None:
    client = served.client("produce")
    data = b"x" * (2 * CHUNK + 5)
    upload = begin(client)
    path = f"/v1/uploads/{upload}/content"
    cut = client.open("PUT", path, data[: CHUNK + 99], {**BYTES, "Content-Length": str(len(data))})
    wait_until(lambda: client.get(f"/v1/uploads/{upload}").json["chunks"] == 1)
    cut.close()

    for _ in range(2):
        stored = client.request("PUT", path, data, BYTES)
        assert (stored.status, stored.json["size"], stored.json["chunks"]) == (200, len(data), 3)
    assert stored.json["digest"] == hashlib.sha256(data).hexdigest()
    other = client.request("PUT", path, b"y" * len(data), BYTES)
    assert (other.status, other.code) == (409, "conflict")


def test_bad_uploads_are_refused_by_field_and_limit(server: Server) -> None:
    client = server.client("produce")
    upload = begin(client, expires=60)
    path = f"/v1/uploads/{upload}"
    large = {**BYTES, "Content-Length": str(limits.ARTIFACT_BYTES_MAX + 1)}
    for answer, status, code in (
        (client.request("PUT", f"{path}/chunks/1", b"x", BYTES), 409, "conflict"),
        (client.request("PUT", f"{path}/chunks/x", b"x", BYTES), 422, "invalid_input"),
        (client.request("PUT", f"{path}/chunks/0", b"", BYTES), 422, "invalid_input"),
        (client.request("PUT", f"{path}/chunks/0", b"x" * (CHUNK + 1), BYTES), 413, "body_too_large"),
        (client.request("PUT", f"{path}/chunks/0", b"x"), 415, "unsupported_media_type"),
        (client.request("PUT", f"{path}/content", b"x"), 415, "unsupported_media_type"),
        (client.request("PUT", f"{path}/content", b"", large), 413, "body_too_large"),
        (client.post("/v1/uploads", {"expires": 0}), 422, "invalid_input"),
        (client.get("/v1/uploads/%20"), 404, "upload_not_found"),
    ):
        assert (answer.status, answer.code) == (status, code), answer
    assert client.get(path).json["chunks"] == 0
    server.clock.advance(61)
    assert client.get(path).code == "upload_not_found"
    assert client.request("PUT", f"{path}/content", b"x", BYTES).code == "upload_not_found"


def test_an_upload_of_another_tenant_is_not_found(served: Server) -> None:
    ours, theirs = served.client("produce", "work", tenant="acme"), served.client("admin", tenant="other")
    upload = begin(ours)
    stored = ours.request("PUT", f"/v1/uploads/{upload}/content", b"secret", BYTES)
    artifact = {"name": "f", "upload_id": upload, "digest": stored.json["digest"]}
    for answer in (
        theirs.get(f"/v1/uploads/{upload}"),
        theirs.request("PUT", f"/v1/uploads/{upload}/content", b"secret", BYTES),
        theirs.request("PUT", f"/v1/uploads/{upload}/chunks/0", b"secret", BYTES),
        theirs.post(f"/v1/uploads/{upload}/finish"),
        theirs.post("/v1/jobs", {"kind": "a", "artifacts": [artifact]}),
    ):
        assert (answer.status, answer.code) == (404, "upload_not_found")
    assert theirs.post("/v1/uploads", {"tenant": "acme"}).code == "forbidden"
    assert ours.post("/v1/jobs", {"kind": "a", "artifacts": [artifact]}).status == 201
