"""Events over HTTP: pages, streams, resuming, filters, lag, pruning and revocation."""

from __future__ import annotations

import pytest

from holdfast import Queue
from holdfast.service import access, event_streams
from tests.support.service import Client, Server, Stream, wait_until


def cancel_jobs(queue: Queue, *ids: str, kind: str = "a", lane: str = "default", tag: str = "1") -> None:
    """Make one event for each id."""
    for job_id in ids:
        queue.enqueue(kind, job_id=job_id, lane=lane, tags={"order": tag, "team": "x"})
        queue.cancel(job_id)


def take(stream: Stream, count: int) -> list[str]:
    """Return the job ids of the next events."""
    found = []
    for _, event in stream:
        found.append(event["job_id"])
        if len(found) == count:
            break
    return found


def test_the_log_is_read_in_pages(served: Server) -> None:
    cancel_jobs(served.queue, "1", "2", "3")
    reader = served.client("read")
    first = reader.get("/v1/events?limit=2").json
    rest = reader.get(f"/v1/events?after={first['cursor']}").json

    assert [event["job_id"] for event in (*first["events"], *rest["events"])] == ["1", "2", "3"]
    assert reader.get(f"/v1/events?after={rest['cursor']}").json == {"events": [], "cursor": rest["cursor"]}
    assert reader.get("/v1/events?after=nonsense").json["field"] == "after"


def test_a_stream_starts_at_the_end_and_follows(served: Server) -> None:
    cancel_jobs(served.queue, "before")
    with served.client("read").stream("/v1/events") as stream:
        assert stream.response.headers["x-accel-buffering"] == "no"
        assert stream.response.headers["content-type"].startswith("text/event-stream")
        assert stream.response.readline() == b"retry: 2000\n"
        cancel_jobs(served.queue, "1", "2")
        assert take(stream, 2) == ["1", "2"]


def test_a_stream_resumes_without_gap_or_repeat(served: Server) -> None:
    reader = served.client("read")
    cancel_jobs(served.queue, *map(str, range(10)))
    cursor = reader.get("/v1/events?limit=3").json["cursor"]
    with reader.stream("/v1/events", Last_Event_ID=cursor) as stream:
        assert take(stream, 4) == ["3", "4", "5", "6"]
        position = stream.last_id
    cancel_jobs(served.queue, "10", "11")
    # Another stream keeps the shared reader running, so that the next one joins its ring.
    with reader.stream("/v1/events") as other, reader.stream(f"/v1/events?after={position}") as stream:
        assert take(stream, 5) == ["7", "8", "9", "10", "11"]
        cancel_jobs(served.queue, "12")
        assert (take(stream, 1), take(other, 1)) == (["12"], ["12"])
        assert stream.last_id == other.last_id


def test_filters_select_by_kind_lane_job_and_tags(served: Server) -> None:
    cancel_jobs(served.queue, "1", kind="a", lane="mail", tag="1")
    cancel_jobs(served.queue, "2", kind="b", lane="mail", tag="2")
    cancel_jobs(served.queue, "3", kind="a", lane="bulk", tag="2")
    reader = served.client("read")

    for query, expected in (
        ("kind=a", ["1", "3"]),
        ("kind=a&kind=b", ["1", "2", "3"]),
        ("lane=mail&kind=a", ["1"]),
        ("job=2&job=3", ["2", "3"]),
        ("tag=order:2", ["2", "3"]),
        ("tag=order:2&tag=team:x&lane=bulk", ["3"]),
        ("tag=team:y", []),
    ):
        found = [event["job_id"] for event in reader.get(f"/v1/events?{query}").json["events"]]
        assert found == expected, query
    first = reader.get("/v1/events?limit=1").json["cursor"]
    with reader.stream(f"/v1/events?after={first}&tag=order:2") as stream:
        assert take(stream, 2) == ["2", "3"]
    scoped = served.client("read", kinds=["b"])
    assert [event["job_id"] for event in scoped.get("/v1/events").json["events"]] == ["2"]
    assert reader.get("/v1/events?tag=nothing").json["field"] == "tag"


def test_a_pruned_cursor_is_gone(served: Server) -> None:
    reader = served.client("read")
    cancel_jobs(served.queue, "1", "2")
    old = reader.get("/v1/events?limit=1").json["cursor"]
    served.clock.advance(100)
    served.queue.admin.prune(older_than=10)

    for headers in ({}, {"Accept": "text/event-stream"}):
        gone = reader.request("GET", f"/v1/events?after={old}", headers=headers)
        assert (gone.status, gone.code) == (410, "events_pruned")
    cancel_jobs(served.queue, "3")
    with reader.stream(f"/v1/events?after={gone.json['cursor']}") as stream:
        assert take(stream, 1) == ["3"]


@pytest.mark.service_settings(ping_seconds=0.05)
def test_an_idle_stream_gets_comments_with_the_position(server: Server) -> None:
    with server.client("read").stream("/v1/events?kind=rare") as stream:
        cancel_jobs(server.queue, "1")
        newest = server.client("read").get("/v1/events").json["cursor"]
        lines = []
        while f"id: {newest}" not in lines:
            lines.append(stream.response.readline().decode().rstrip())

    assert ": ping" in lines
    assert [line for line in lines if line.startswith("data")] == []


def test_a_revoked_token_ends_its_streams_within_a_second(served: Server) -> None:
    kept, revoked = served.client("read"), served.client("read")
    with kept.stream("/v1/events") as staying, revoked.stream("/v1/events") as ending:
        served.queue.admin.tokens.revoke(str(revoked.token).split("_")[1])
        assert list(ending) == []
        assert ending.comments[-1] == "the token was revoked or has expired"
        cancel_jobs(served.queue, "1")
        assert take(staying, 1) == ["1"]
    assert access._WATCH_SECONDS < 1


def test_a_token_that_expires_ends_its_streams(server: Server) -> None:
    client = server.client("read", expires_in=60)
    with client.stream("/v1/events") as stream:
        server.clock.advance(61)
        assert list(stream) == []
        assert stream.comments[-1] == "the token was revoked or has expired"


def test_a_rotated_token_keeps_its_streams_during_the_overlap(server: Server) -> None:
    client = server.client("read")
    with client.stream("/v1/events") as stream:
        new = server.queue.admin.tokens.rotate(str(client.token).split("_")[1], overlap=60)
        cancel_jobs(server.queue, "1")
        assert take(stream, 1) == ["1"]
        assert Client(server.port, new.text).get("/v1/lanes").status == 200
        server.clock.advance(61)
        assert list(stream) == []
        assert stream.comments[-1] == "the token was revoked or has expired"


@pytest.mark.service_settings(streams_per_token_max=2)
def test_the_streams_of_a_token_are_limited(server: Server) -> None:
    client = server.client("read")
    with client.stream("/v1/events"):
        with client.stream("/v1/events"):
            refused = client.request("GET", "/v1/events", headers={"Accept": "text/event-stream"})
            assert (refused.status, refused.code, refused.json["limit"]) == (429, "too_many_streams", 2)
            with server.client("read").stream("/v1/events"):
                pass

        def has_room() -> bool:
            return client.request("GET", "/v1/events").status == 200 and _opens(client)

        wait_until(has_room)


def _opens(client: Client) -> bool:
    connection = client.open("GET", "/v1/events", headers={"Accept": "text/event-stream"})
    try:
        return connection.recv(12) == b"HTTP/1.1 200"
    finally:
        connection.close()


@pytest.mark.slow("it fills the buffers of a connection")
@pytest.mark.service_settings(send_seconds=60)
def test_a_stream_that_falls_behind_is_told_and_can_resume(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_streams, "_RING_MAX", 200)
    reader = server.client("read")
    total, tags = 800, {str(key): "x" * 500 for key in range(32)}
    with reader.stream("/v1/events", receive_bytes=65_536) as slow:
        # It reads nothing until its buffers are full and the ring has moved on.
        for start in range(0, total, 50):
            ids = [str(number) for number in range(start, start + 50)]
            server.queue.enqueue_many([{"kind": "a", "job_id": job_id, "tags": tags} for job_id in ids])
            server.queue.admin.cancel_many(ids)
        with reader.stream("/v1/events") as other:
            # The shared reader has read the whole log.
            cancel_jobs(server.queue, str(total))
            assert take(other, 1) == [str(total)]
        seen: list[int] = []
        for name, event in slow:
            if name == "lagged":
                assert event["cursor"] == slow.last_id
                break
            seen.append(int(event["job_id"]))
        else:
            pytest.fail("the stream ended without an event")
    assert 0 < len(seen) < total
    with reader.stream("/v1/events", Last_Event_ID=str(slow.last_id)) as stream:
        rest = [int(job_id) for job_id in take(stream, total + 1 - len(seen))]
    assert seen + rest == list(range(total + 1))


@pytest.mark.service_settings(shutdown_seconds=3_600)
def test_a_shutdown_ends_streams_politely(server: Server) -> None:
    with server.client("read").stream("/v1/events") as stream:
        server.stop()
        assert list(stream) == []
        assert stream.comments[-1] == "server is shutting down"
