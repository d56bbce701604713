"""A real server on a loopback port, in a thread of the test process, and a small HTTP client."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Unpack

import holdfast
from holdfast.client.queue_state import state_of
from holdfast.dashboard import application as dashboard
from holdfast.domain.access import Role, TokenOptions
from holdfast.service import server
from holdfast.service.settings import ServiceSettings
from holdfast.storage.notifications import lane_topic
from tests.support.clock import ManualClock
from tests.support.stores import Harness

TIMEOUT = 50.0
"""Only a hang takes so long. Less than the longest long poll: one that ends late fails its test."""


class Answer:
    """A response."""

    def __init__(self, response: http.client.HTTPResponse, content: bytes) -> None:
        self.status = response.status
        self.headers = response.headers
        self.content = content

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.content)

    @property
    def code(self) -> str:
        """The code of a problem document."""
        assert self.headers["content-type"] == "application/problem+json", self
        assert self.json["status"] == self.status
        return str(self.json["code"])

    def __repr__(self) -> str:
        return f"<{self.status} {self.content[:500]!r}>"


class Client:
    """Sends requests with one token, each on a connection of its own unless `keep` is used."""

    def __init__(self, port: int, token: str | None) -> None:
        self.port = port
        self.token = token

    def headers(self, given: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the headers of a request."""
        own = {} if self.token is None else {"Authorization": f"Bearer {self.token}"}
        return {**own, **(given or {})}

    def request(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Answer:
        """Send a request, with *body* as JSON unless it is bytes, and return the response."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT)
        try:
            content, sent = self.encoded(body, headers)
            connection.request(method, path, content, sent)
            response = connection.getresponse()
            return Answer(response, response.read())
        finally:
            connection.close()

    def encoded(self, body: Any, headers: Mapping[str, str] | None) -> tuple[bytes | None, dict[str, str]]:
        """Return body and headers as they are sent."""
        sent = self.headers(headers)
        if body is None or isinstance(body, bytes):
            return body, sent
        sent.setdefault("Content-Type", "application/json")
        return json.dumps(body).encode(), sent

    def get(self, path: str, **headers: str) -> Answer:
        """Send a GET request."""
        return self.request("GET", path, None, headers)

    def post(self, path: str, body: Any = None, **headers: str) -> Answer:
        """Send a POST request."""
        return self.request("POST", path, body, {name.replace("_", "-"): value for name, value in headers.items()})

    def open(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> socket.socket:
        """Send a request and return the socket, without reading the response."""
        content, sent = self.encoded(body, headers)
        sent = {"Host": f"127.0.0.1:{self.port}", "Content-Length": str(len(content or b"")), **sent}
        head = "".join(f"{name}: {value}\r\n" for name, value in sent.items())
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=TIMEOUT)
        connection.sendall(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + (content or b""))
        return connection

    @contextmanager
    def stream(self, path: str, receive_bytes: int | None = None, **headers: str) -> Iterator[Stream]:
        """Open a stream of events, with a receive buffer of this size."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT)
        try:
            connection.connect()
            if receive_bytes is not None:
                connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request("GET", path, headers=self.headers({"Accept": "text/event-stream", **named}))
            response = connection.getresponse()
            assert response.status == 200, response.read()
            yield Stream(response)
        finally:
            connection.close()


class Stream:
    """Server-sent events of one response."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.response = response
        self.last_id: str | None = None
        self.comments: list[str] = []

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """Yield the name and the data of each event, until the server ends the stream."""
        name, data = "message", ""
        while line := self.response.readline().decode():
            line = line.rstrip("\n")
            field, _, value = line.partition(": ")
            match field:
                case "event":
                    name = value
                case "data":
                    data = value
                case "id":
                    self.last_id = value
                case "":
                    if line.startswith(":"):
                        self.comments.append(value)
                    elif data:
                        yield name, json.loads(data)
                        name, data = "message", ""
                case _:
                    pass

    def next(self) -> tuple[str, Any]:
        """Return the next event."""
        return next(iter(self))


class _MovableLoop(asyncio.SelectorEventLoop):
    """An event loop whose time a test can move on, so that its timers expire."""

    ahead_seconds = 0.0

    def time(self) -> float:
        return super().time() + self.ahead_seconds


class Server:
    """A running server and a queue on the same store."""

    def __init__(self, harness: Harness, settings: ServiceSettings) -> None:
        self.harness = harness
        self.queue: holdfast.Queue = harness.open()
        self.settings = settings
        self.port = 0
        self._stop: Callable[[], object] | None = None
        self._thread: threading.Thread | None = None
        self._loop: _MovableLoop | None = None
        self._failure: BaseException | None = None

    @property
    def clock(self) -> ManualClock:
        """The clock of the store."""
        return self.harness.clock

    def start(self) -> None:
        """Start the server and wait until it serves."""
        ready = threading.Event()
        listener = server.listen("127.0.0.1", self.port)
        self.port = listener.getsockname()[1]

        def started(stop: Callable[[], object]) -> None:
            self._stop = stop
            ready.set()

        def run() -> None:
            try:
                with asyncio.Runner(loop_factory=self._new_loop) as runner:
                    runner.run(self._serve(listener, started))
            except BaseException as error:  # raised in the test
                self._failure = error
            finally:
                ready.set()

        self._thread = threading.Thread(target=run, name="server")
        self._thread.start()
        assert ready.wait(TIMEOUT)
        if self._failure is not None:
            raise self._failure

    async def _serve(self, listener: socket.socket, started: server.Started) -> None:
        await server.serve(self.harness.open_async(), listener, self.settings, started, dashboard.mounted())

    def _new_loop(self) -> _MovableLoop:
        self._loop = _MovableLoop()
        return self._loop

    def pass_time(self, seconds: float) -> None:
        """Move the time of the timers on, not that of the store."""
        loop = self._loop
        assert loop is not None

        def move() -> None:
            loop.ahead_seconds += seconds

        loop.call_soon_threadsafe(move)

    def stop(self) -> None:
        """Stop the server as SIGTERM does."""
        if self._stop is not None and self._thread is not None and self._thread.is_alive():
            self._stop()
            self._thread.join(TIMEOUT)
            assert not self._thread.is_alive(), "the server does not stop"
        if self._failure is not None:
            raise self._failure

    def client(self, *roles: Role, **options: Unpack[TokenOptions]) -> Client:
        """Return a client with a new token."""
        return Client(self.port, self.queue.admin.tokens.create("test", roles=roles, **options).text)

    @property
    def anonymous(self) -> Client:
        """A client without a token."""
        return Client(self.port, None)


def claim_waits(server: Server) -> bool:
    """Return whether a long poll of a claim listens to the default lane."""
    return lane_topic("default") in state_of(server.queue).store.notifier.topics()


def wait_until(condition: Callable[[], object], timeout: float = TIMEOUT) -> None:
    """Wait for a condition."""
    until = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < until, "the condition was never true"
        time.sleep(0.01)
