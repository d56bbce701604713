"""Receivers of webhooks, and a sender in this process."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TypeAlias

from holdfast import Queue
from holdfast.client.queue_state import state_of
from holdfast.domain import webhook_urls
from holdfast.webhooks.connections import Connections, Resolve
from holdfast.webhooks.sender import WebhookSender

TIMEOUT = 50.0
LOCAL = webhook_urls.parse_networks("127.0.0.0/8", "allow")


@dataclass
class Received:
    """One request to a receiver."""

    path: str
    headers: dict[str, str]
    body: bytes
    names: list[str]
    """The names of the headers as they were sent."""
    at: float = field(default_factory=time.monotonic)

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]


Answering: TypeAlias = Callable[[BaseHTTPRequestHandler, Received], None]


def status(code: int, body: bytes = b"", **headers: str) -> Answering:
    """Answer with a status."""

    def answer(handler: BaseHTTPRequestHandler, _received: Received) -> None:
        handler.send_response(code)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return answer


NO_CONTENT = status(204)


class Receiver(ThreadingHTTPServer):
    """A receiver on this machine that counts."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, answering: Answering, context: ssl.SSLContext | None, address: tuple[str, int]) -> None:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length", 0))
                body = self.rfile.read(length)
                if len(body) < length:
                    # The sender was killed before it had sent the body.
                    return
                headers = {name.lower(): value for name, value in self.headers.items()}
                received = Received(self.path, headers, body, [*self.headers])
                with receiver.arrived:
                    receiver.requests.append(received)
                    receiver.arrived.notify_all()
                with suppress(OSError):
                    receiver.answering(self, received)

            def log_message(self, *_args: object) -> None:
                pass

        self.requests: list[Received] = []
        self.arrived = threading.Condition()
        self.answering = answering
        super().__init__(address, Handler)
        self.scheme = "http" if context is None else "https"
        if context is not None:
            self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that leave."""

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}/hook"

    def wait(self, count: int) -> list[Received]:
        """Wait for this many requests and return all."""
        with self.arrived:
            assert self.arrived.wait_for(lambda: len(self.requests) >= count, TIMEOUT), len(self.requests)
            return list(self.requests)


@contextmanager
def receiver(
    answering: Answering = NO_CONTENT, context: ssl.SSLContext | None = None, host: str = "127.0.0.1", port: int = 0
) -> Iterator[Receiver]:
    """Run a receiver during the block."""
    running = Receiver(answering, context, (host, port))
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield running
    finally:
        running.shutdown()
        thread.join()
        running.server_close()


@contextmanager
def sender(
    queue: Queue,
    *,
    allowed: Sequence[webhook_urls.Network] = LOCAL,
    resolve: Resolve | None = None,
    ssl_context: ssl.SSLContext | None = None,
    timeout: float = 15.0,
) -> Iterator[WebhookSender]:
    """Run a sender in another thread during the block, and give it."""
    loop = asyncio.new_event_loop()
    options = {"resolve": resolve, "ssl_context": ssl_context, "timeout_seconds": timeout}
    one = WebhookSender(state_of(queue).store, lambda: Connections(allowed, **options))  # type: ignore[arg-type]
    task = loop.create_task(one.run())

    def run() -> None:
        with suppress(asyncio.CancelledError):
            loop.run_until_complete(task)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield one
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join(TIMEOUT)
        assert not thread.is_alive()
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition of the store is true."""
    ends_at = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < ends_at, "the condition did not become true"
        time.sleep(0.02)


def certificate(folder: Path, name: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return contexts of a server and of a client that trusts it, with a certificate for *name* only."""
    key, cert = folder / f"{name}.key", folder / f"{name}.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", str(key), "-out", str(cert), "-days", "2", "-subj", f"/CN={name}"]
    subprocess.run([*command, "-addext", f"subjectAltName=DNS:{name}"], check=True, capture_output=True)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(cert, key)
    return server, ssl.create_default_context(cafile=str(cert))
