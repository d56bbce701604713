"""Slow, huge and broken requests are cut off, and others are served in the meantime."""

from __future__ import annotations

import re
import resource
import select
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from holdfast.service.protocol import WatchedProtocol
from tests.support.service import TIMEOUT, Client, Server, wait_until

HEAD = b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


@pytest.fixture
def raw(server: Server) -> Iterator[socket.socket]:
    """A connection to the server."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=TIMEOUT) as connection:
        yield connection


def read_all(connection: socket.socket) -> bytes:
    """Return everything that the server sends until it closes the connection."""
    parts = []
    try:
        while part := connection.recv(65_536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def assert_served(server: Server) -> None:
    """Fail unless another client is served."""
    assert server.client("produce").post("/v1/jobs", {"kind": "a"}).status == 201


def drip(server: Server, connection: socket.socket, data: bytes) -> bytes:
    """Send *data* every ten seconds, and return what the server sends until it closes the connection."""
    connection.settimeout(0.05)
    received = b""
    for _ in range(100):
        try:
            part = connection.recv(65_536)
        except TimeoutError:
            server.pass_time(10)
            connection.sendall(data)
        except ConnectionResetError:
            return received
        else:
            if not part:
                return received
            received += part
    raise AssertionError("the connection is not cut off")


@pytest.mark.service_settings(header_seconds=0.2)
def test_a_connection_without_a_request_is_closed(server: Server, raw: socket.socket) -> None:
    assert read_all(raw) == b""


@pytest.mark.service_settings(header_seconds=60)
@pytest.mark.parametrize("first", [b"POST /v1/", HEAD, b"\r\n", b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" + HEAD])
def test_slow_headers_are_cut_off_though_bytes_arrive(server: Server, raw: socket.socket, first: bytes) -> None:
    raw.sendall(first)
    # Each byte comes in time, the headers do not.
    received = drip(server, raw, b"x" if first != b"\r\n" else b"\r\n")
    if first != b"\r\n":
        assert b"408 Request Timeout" in received
        assert b'"limit":60,"field":"headers"' in received
    assert_served(server)


@pytest.mark.service_settings(header_bytes_max=2_000)
@pytest.mark.parametrize("endless", [b"X: " + b"y" * 3_000, b"X: y\r\n" * 1_000, b"GET /" + b"z" * 3_000])
def test_large_headers_are_refused(server: Server, raw: socket.socket, endless: bytes) -> None:
    raw.sendall(endless if endless.startswith(b"GET") else HEAD + endless)
    answer = read_all(raw)

    assert answer.startswith(b"HTTP/1.1 431 "), answer
    assert b'"limit":2000,"field":"headers"' in answer


def test_data_that_is_not_http_gets_a_problem(server: Server, raw: socket.socket) -> None:
    raw.sendall(b"\x16\x03\x01 this is TLS\r\n\r\n")
    answer = read_all(raw)

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"application/problem+json" in answer


@pytest.mark.service_settings(body_seconds=0.3)
def test_a_stalled_body_is_cut_off(server: Server, raw: socket.socket) -> None:
    token = server.client("produce").token
    raw.sendall(HEAD + f"Authorization: Bearer {token}\r\nContent-Length: 100\r\n\r\n".encode() + b'{"kind": ')
    answer = read_all(raw)

    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"limit":0.3,"field":"body"' in answer
    assert_served(server)


@pytest.mark.service_settings(body_seconds=60, body_bytes_per_second_min=100)
def test_a_dripping_body_is_cut_off_and_a_slow_one_is_not(
    server: Server, raw: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_body = WatchedProtocol.on_body
    parts: list[bytes] = []

    def noted(connection: WatchedProtocol, body: bytes) -> None:
        on_body(connection, body)
        parts.append(body)

    monkeypatch.setattr(WatchedProtocol, "on_body", noted)
    token = server.client("produce").token
    head = f"Authorization: Bearer {token}\r\nContent-Length: {{}}\r\n\r\n"
    raw.sendall(HEAD + head.format(100_000).encode())
    assert drip(server, raw, b" ").startswith(b"HTTP/1.1 408 ")
    parts.clear()

    body = b'{"kind": "a", "payload": "' + b"x" * 20_000 + b'"}'
    with socket.create_connection(("127.0.0.1", server.port), timeout=TIMEOUT) as slow:
        slow.sendall(HEAD + head.format(len(body)).encode())
        # More than a minute in all, at more than the lowest rate.
        for start in range(0, len(body), 2_000):
            slow.sendall(body[start : start + 2_000])
            wait_until(lambda sent=body[: start + 2_000]: b"".join(parts) == sent)  # type: ignore[misc]
            server.pass_time(10)
        assert slow.recv(65_536).startswith(b"HTTP/1.1 201 ")


@pytest.mark.slow("it sends 300 MB")
@pytest.mark.parametrize("declared", [True, False])
def test_a_huge_body_is_refused_without_being_stored_in_memory(server: Server, declared: bool) -> None:
    size = 300 << 20
    token = server.client("produce").token
    framing = f"Content-Length: {size}\r\n" if declared else "Transfer-Encoding: chunked\r\n"
    memory_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    part = b"x" * (1 << 20)
    framed = part if declared else b"%x\r\n" % len(part) + part + b"\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=TIMEOUT) as connection:
        connection.sendall(HEAD + f"Authorization: Bearer {token}\r\n{framing}\r\n".encode())
        for _ in range(size // len(part)):
            connection.sendall(framed)
        if not declared:
            connection.sendall(b"0\r\n\r\n")
        answer = connection.recv(65_536)
        # The rest was dropped, and the connection can be used again.
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert connection.recv(65_536).startswith(b"HTTP/1.1 200 ")

    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b'"code":"body_too_large"' in answer
    assert b'"limit":' in answer
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory_before
    assert grown_kib < 60 << 10


@pytest.mark.service_settings(connections_max=5)
def test_more_connections_than_the_limit_are_refused(server: Server) -> None:
    with ExitStack() as stack:
        for _ in range(5):
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=TIMEOUT))
        with socket.create_connection(("127.0.0.1", server.port), timeout=TIMEOUT) as sixth:
            answer = read_all(sixth)
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b'"code":"overloaded"' in answer
    wait_until(lambda: _healthy(server))


def _healthy(server: Server) -> bool:
    try:
        return server.anonymous.get("/healthz").status == 200
    except ConnectionError:
        return False


@pytest.mark.service_settings(send_seconds=0.3)
def test_a_client_that_does_not_read_is_cut_off(server: Server) -> None:
    server.queue.enqueue("a", "x" * 1_000_000, job_id="one")
    client = server.client("read")
    with ExitStack() as stack:
        connection = stack.enter_context(client.open("GET", "/v1/jobs/one"))
        # Pipelined, so that the responses exceed all buffers.
        token = str(client.token)
        request = f"GET /v1/jobs/one HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
        connection.sendall(request * 40)
        assert_served(server)
        wait_until(lambda: _is_reset(connection))


def _is_reset(connection: socket.socket) -> bool:
    poll = select.poll()
    poll.register(connection, select.POLLERR)
    return bool(poll.poll(0))


@pytest.mark.slow("it opens 1,000 connections")
@pytest.mark.service_settings(streams_per_token_max=1_000)
def test_a_thousand_idle_streams_do_not_keep_others_from_being_served(server: Server) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8_192), hard))
    client = server.client("read")
    headers = {"Accept": "text/event-stream"}
    try:
        with ExitStack() as stack:
            streams = [
                stack.enter_context(client.open("GET", "/v1/events?kind=watched", headers=headers))
                for _ in range(1_000)
            ]
            for stream in streams:
                assert stream.recv(12) == b"HTTP/1.1 200"
            assert_served(server)
            server.queue.enqueue("watched", job_id="one")
            server.queue.cancel("one")
            for stream in streams:
                received = b""
                while b'"cancelled"' not in received:
                    received += stream.recv(65_536)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_request_ids_are_echoed_or_made(server: Server) -> None:
    client = server.anonymous
    assert client.get("/healthz", **{"X-Request-ID": "abc.DEF-1:2"}).headers["x-request-id"] == "abc.DEF-1:2"
    for odd in ("a b", "x" * 101, "ü", '"'):
        made = client.get("/healthz", **{"X-Request-ID": odd}).headers["x-request-id"]
        assert made != odd
        assert re.fullmatch("[0-9a-f]{12}-[0-9a-f]+", made)


def test_the_access_log_has_no_secrets(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    client = server.client("admin")
    client.post("/v1/jobs", {"kind": "a", "payload": "s3cr3t-payload"})
    client.get("/v1/jobs?kind=s3cr3t-query")
    Client(server.port, "hf_" + "a" * 16 + "_" + "s" * 43).get("/v1/lanes")
    server.stop()

    text = caplog.text + "".join(str(vars(record)) for record in caplog.records)
    assert "POST /v1/jobs 201" in text
    assert f"token:{str(client.token).split('_')[1]}" in text
    for secret in (str(client.token).split("_", 2)[2], "s" * 43, "s3cr3t-payload", "s3cr3t-query"):
        assert secret not in text


def test_head_and_body_of_an_answer_are_one_packet(server: Server, raw: socket.socket) -> None:
    raw.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    head, separator, body = raw.recv(65_536).partition(b"\r\n\r\n")
    assert separator
    assert f"content-length: {len(body)}".encode() in head.lower()
    assert body


UPGRADE = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("framing", ["length", "chunked", "none"])
def test_a_request_that_offers_another_protocol_is_served_with_its_body(
    server: Server, raw: socket.socket, framing: str, at_once: bool
) -> None:
    # The HTTP client of Java does so in every request. The body must not be taken for a request of its own.
    token = server.client("produce", "read").token
    head = HEAD + UPGRADE + f"Authorization: Bearer {token}\r\n".encode()
    body = b'{"kind":"offered","payload":"GET /v1/kinds HTTP/1.1\\r\\n\\r\\n"}'
    if framing == "length":
        parts = [head + b"Content-Length: %d\r\n\r\n" % len(body), body]
    elif framing == "chunked":
        parts = [head + b"Transfer-Encoding: chunked\r\n\r\n", b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)]
    else:
        parts = [head.replace(b"POST", b"GET") + b"\r\n"]
    following = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    for part in [b"".join([*parts, following])] if at_once else [*parts, following]:
        raw.sendall(part)
        time.sleep(0 if at_once else 0.05)
    answer = read_all(raw)

    assert re.findall(rb"HTTP/1.1 (\d+) ", answer) == [b"200" if framing == "none" else b"201", b"200"]
    if framing != "none":
        assert b'"kind":"offered"' in answer


def test_many_offers_of_another_protocol_in_one_packet_are_ignored(server: Server, raw: socket.socket) -> None:
    offer = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
    raw.sendall(offer * 1_500 + b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")

    assert read_all(raw).count(b"HTTP/1.1 200 ") == 1_501


@pytest.mark.service_settings(body_seconds=0.3)
def test_a_stalled_body_after_an_offer_of_another_protocol_is_cut_off(server: Server, raw: socket.socket) -> None:
    token = server.client("produce").token
    raw.sendall(HEAD + UPGRADE + f"Authorization: Bearer {token}\r\nContent-Length: 100\r\n\r\n".encode() + b"{")

    assert read_all(raw).startswith(b"HTTP/1.1 408 ")
