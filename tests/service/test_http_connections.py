"""How a client reaches its server: certificates, and messages that name the server and the remedy."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

import holdfast
from holdfast.client.queue_state import state_of
from holdfast.domain.backoff import RetryPolicy
from holdfast.errors import Misconfigured, StoreUnreachable, Unavailable
from holdfast.remote import connection
from tests.support.service import Server, claim_waits, wait_until
from tests.support.tls import tls_proxy, write_certificate


@pytest.fixture(autouse=True)
def _one_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "RETRIES", RetryPolicy(first=0.001, last=0.001, calls=2))
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)


def failure(url: str) -> str:
    """Return the message of a call to a server that cannot be reached, which is the same for sync and async."""
    with holdfast.connect(url) as queue, pytest.raises(StoreUnreachable) as sync:
        queue.counts()

    async def call() -> None:
        async with holdfast.connect_async(url) as queue:
            await queue.counts()

    with pytest.raises(StoreUnreachable) as in_loop:
        asyncio.run(call())
    assert str(in_loop.value).partition(":")[0] == str(sync.value).partition(":")[0]
    return str(in_loop.value)


def test_a_certificate_that_signs_itself_is_refused_until_it_is_trusted(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tls_proxy(server.port, tmp_path) as url:
        assert failure(url) == (
            f"cannot connect to {url}: its certificate is not trusted: self-signed certificate; "
            "SSL_CERT_FILE names a file of those to trust"
        )
        monkeypatch.setenv("SSL_CERT_FILE", str(write_certificate(tmp_path)))
        with holdfast.connect(url, token=server.client("admin").token) as queue:
            enqueued = queue.enqueue("mail", {"to": "ada"})
            claim = queue.claim(wait=5)
            assert claim is not None
            queue.settle(claim, holdfast.Done("sent"))
            assert enqueued.result(timeout=10) == "sent"


@pytest.mark.parametrize("text", [None, "no certificate"], ids=["missing", "invalid"])
def test_certificates_that_cannot_be_read_are_an_error_of_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None
) -> None:
    path = tmp_path / "certificates.pem"
    if text is not None:
        path.write_text(text)
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    with holdfast.connect("https://127.0.0.1:1") as queue, pytest.raises(Misconfigured, match="SSL_CERT_FILE"):
        queue.counts()


def test_a_server_without_tls_is_told_from_one_that_is_away(server: Server) -> None:
    url = f"https://127.0.0.1:{server.port}"
    assert failure(url) == f"cannot connect to {url}: it does not use TLS; its URL may begin with http://"


def test_a_server_that_cannot_be_reached_is_named_with_the_reason() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    message = failure(f"http://127.0.0.1:{port}")
    assert message.startswith(f"cannot connect to http://127.0.0.1:{port}: [Errno 111]"), message
    assert message.endswith("; check that `holdfast serve` runs there, and the port"), message


def test_another_http_server_is_told_from_one_of_holdfast() -> None:
    with web_page() as url, holdfast.connect(url) as queue, pytest.raises(Misconfigured) as other:
        queue.counts()
    assert str(other.value) == f"{url} is not a Holdfast server: it answers with text/html"


@pytest.mark.parametrize("tls", [False, True])
def test_an_interrupted_store_ends_calls_that_wait_for_the_server(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tls: bool
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(write_certificate(tmp_path)))
    with ExitStack() as stack:
        url = stack.enter_context(tls_proxy(server.port, tmp_path)) if tls else f"http://127.0.0.1:{server.port}"
        queue = stack.enter_context(holdfast.connect(url, token=server.client("admin").token))
        failures: list[Exception] = []

        def wait() -> None:
            try:
                queue.claim(wait=60)
            except Unavailable as error:
                failures.append(error)

        waiting = threading.Thread(target=wait)
        waiting.start()
        wait_until(lambda: claim_waits(server))
        state_of(queue).store.interrupt()
        waiting.join(20)
        assert not waiting.is_alive()
        assert len(failures) == 1
        # The store opens again.
        assert queue.counts() == {}


@contextmanager
def web_page() -> Iterator[str]:
    """Serve a page that answers every request with success."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<p>Welcome")

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # signature of the base class
            pass

    with HTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.slow("starts an interpreter")
def test_a_process_forked_while_a_thread_opens_a_connection_can_use_the_queue() -> None:
    program = """
import os, signal, holdfast
from holdfast.client.queue_state import state_of
store = state_of(holdfast.connect("http://127.0.0.1:9")).store
with store._lock:  # as a thread that the child does not have
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        store._http()
        os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert ran.stdout == "0\n"
