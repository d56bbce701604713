"""A gateway on a loopback port, in a thread of the test process or in a process of its own."""

from __future__ import annotations

import asyncio
import http.client
import json
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import holdfast
from holdfast.gateway import server as gateway_server
from holdfast.gateway.gateway import Gateway
from holdfast.gateway.settings import GatewaySettings
from holdfast.service import server
from holdfast.service.settings import ServiceSettings
from tests.support.service import TIMEOUT, Answer, Client, wait_until

GENERATING = ("/api/chat", "/api/generate", "/v1/chat/completions", "/v1/completions", "/v1/messages")


def body_of(
    path: str, model: str = "llama:8b", text: str = "hi", *, stream: bool = False, **extra: Any
) -> dict[str, Any]:
    """Return the body of a request to generate."""
    prompt = {"prompt": text} if path in {"/api/generate", "/v1/completions"} else {}
    messages = {} if prompt else {"messages": [{"role": "user", "content": text}]}
    needed = {"max_tokens": 100} if path == "/v1/messages" else {}
    return {"model": model, **prompt, **messages, **needed, "stream": stream, **extra}


class RunningGateway:
    """A gateway in a thread, and a queue on its store."""

    def __init__(
        self, url: str, settings: GatewaySettings, *, schema: str = "holdfast", tokens: bool = False
    ) -> None:
        self.url = url
        self.schema = schema
        self.settings = settings
        self.service = ServiceSettings(tokens=tokens)
        self.queue = holdfast.connect(url, schema=schema)
        self.port = 0
        self.gateway: Gateway
        self._stop: Callable[[], object] | None = None
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._answers: list[OpenAnswer] = []

    @property
    def on_server(self) -> bool:
        """Whether its store is on PostgreSQL."""
        return self.url.startswith("postgres")

    def start(self) -> None:
        """Start it and wait until it serves."""
        ready = threading.Event()
        listener = server.listen("127.0.0.1", self.port)
        self.port = listener.getsockname()[1]

        def started(stop: Callable[[], object], gateway: Gateway) -> None:
            self._stop, self.gateway = stop, gateway
            ready.set()

        def run() -> None:
            try:
                asyncio.run(
                    gateway_server.serve(
                        self.url, listener, self.settings, schema=self.schema, service=self.service, started=started
                    )
                )
            except BaseException as error:  # raised in the test
                self._failure = error
            finally:
                ready.set()

        self._thread = threading.Thread(target=run, name="gateway")
        self._thread.start()
        assert ready.wait(TIMEOUT)
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Close the connections of the test, and stop it as SIGTERM does."""
        for answer in self._answers:
            answer.leave()
        self.stop_only()

    def stop_only(self) -> None:
        """Stop it as SIGTERM does."""
        if self._stop is not None and self._thread is not None and self._thread.is_alive():
            self._stop()
            self._thread.join(TIMEOUT)
            assert not self._thread.is_alive(), "the gateway does not stop"
        if self._failure is not None:
            raise self._failure

    @property
    def client(self) -> Client:
        """A client without a token."""
        return Client(self.port, None)

    def token_client(self, tenant: str | None = None, **options: Any) -> Client:
        """Return a client with a new token."""
        roles = options.pop("roles", ["produce", "read"])
        return Client(self.port, self.queue.admin.tokens.create("test", roles=roles, tenant=tenant, **options).text)

    def generate(self, path: str = "/api/chat", client: Client | None = None, **options: Any) -> Answer:
        """Send a request to generate and return its answer."""
        headers = {name.replace("_", "-"): value for name, value in options.pop("headers", {}).items()}
        return (client or self.client).request("POST", path, body_of(path, **options), headers)

    def open(self, path: str = "/api/chat", client: Client | None = None, **options: Any) -> OpenAnswer:
        """Send a request to generate without waiting for its answer."""
        headers = {name.replace("_", "-"): value for name, value in options.pop("headers", {}).items()}
        answer = OpenAnswer(client or self.client, path, body_of(path, **options), headers)
        self._answers.append(answer)
        return answer

    def jobs(self, *states: str) -> list[holdfast.Job]:
        """Return the jobs of the gateway, newest first."""
        found = self.queue.jobs(limit=1_000)
        return [job for job in found if job.lane.startswith("models") and (not states or job.state in states)]

    def wait_for_job(self, *states: str) -> holdfast.Job:
        """Wait until there is a job in one of *states*, and return it."""
        wait_until(lambda: self.jobs(*states))
        return self.jobs(*states)[0]


class OpenAnswer:
    """A request whose answer is read part by part."""

    def __init__(self, client: Client, path: str, body: Any, headers: dict[str, str] | None = None) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=TIMEOUT)
        content, sent = client.encoded(body, headers)
        self._connection.request("POST", path, content, sent)
        self._response: http.client.HTTPResponse | None = None

    @property
    def response(self) -> http.client.HTTPResponse:
        """The response; waits for its headers."""
        if self._response is None:
            self._response = self._connection.getresponse()
        return self._response

    def line(self) -> bytes:
        """Return the next line of the body."""
        return self.response.readline()

    def rest(self) -> bytes:
        """Return the rest of the body."""
        return self.response.read()

    @property
    def answered(self) -> bool:
        """Whether a part of the answer can be read."""
        sock: socket.socket | None = self._connection.sock
        return sock is not None and bool(select.select([sock], [], [], 0)[0])

    @property
    def cut_off(self) -> bool:
        """Whether the server has closed the connection without an answer; waits for it."""
        sock: socket.socket | None = self._connection.sock
        try:
            return sock is not None and sock.recv(1) == b""
        except ConnectionError:
            return True

    def leave(self) -> None:
        """Close the connection."""
        if self._response is not None:
            self._response.close()
        self._connection.close()


@contextmanager
def running_gateway(
    url: str, upstream: str, *, schema: str = "holdfast", tokens: bool = False, **settings: Any
) -> Iterator[RunningGateway]:
    """Run a gateway for a block, with a short backoff, and a grace that only a hang exceeds."""
    chosen: dict[str, Any] = {"backoff": 0.02, "grace": 60.0, **settings}
    running = RunningGateway(url, GatewaySettings(upstream=upstream, **chosen), schema=schema, tokens=tokens)
    running.start()
    try:
        yield running
    finally:
        running.stop()
        running.queue.close()


class StorePlace(NamedTuple):
    """Where a store is; *path* is its file, or names the files of the test beside it."""

    url: str
    schema: str
    path: Path

    def connect(self) -> holdfast.Queue:
        """Return a queue on the store."""
        return holdfast.connect(self.url, schema=self.schema)

    def gateway(self, upstream: str, **settings: Any) -> AbstractContextManager[RunningGateway]:
        """Run a gateway on the store for a block."""
        return running_gateway(self.url, upstream, schema=self.schema, **settings)

    def process(self, upstream: str, *arguments: str, port: int = 0) -> GatewayProcess:
        """Start a gateway on the store in a process of its own."""
        store = ("--url", self.url, "--schema", self.schema)
        return GatewayProcess(self.path, upstream, *arguments, port=port, store=store)


class GatewayProcess:
    """A gateway in a process of its own."""

    def __init__(self, path: Path, upstream: str, *arguments: str, port: int = 0, store: Sequence[str] = ()) -> None:
        """Start it on the file at *path*, or with the arguments *store* for another one."""
        self.log = path.with_suffix(".log")
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "holdfast", *(store or ("--url", str(path))), "gateway", "--json"),
                    *("--upstream", upstream, "--port", str(port), *arguments),
                ],
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], TIMEOUT)[0], "the gateway does not start"
        line = self.process.stdout.readline()
        assert line, self.log.read_text()
        self.port = int(json.loads(line)["url"].rpartition(":")[2])

    @property
    def client(self) -> Client:
        """A client without a token."""
        return Client(self.port, None)

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


class ModelServerProcess:
    """A scripted model server in a process of its own."""

    def __init__(self, port: int = 0) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.model_server", str(port)], stdout=subprocess.PIPE
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())
        self.url = f"http://127.0.0.1:{self.port}"

    def script(self, **values: Any) -> None:
        """Change how it behaves."""
        assert Client(self.port, None).post("/script", values).status == 200

    def events(self, what: str) -> list[dict[str, Any]]:
        """Return what happened, of one type."""
        return [one for one in Client(self.port, None).get("/log").json if one["event"] == what]

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
