"""`python -m bench.service`: the HTTP service beside the same server with an empty handler, one server process.

All figures are ratios of one run, or beside the disk's sync time: client and server share the cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import select
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from bench.postgres.server import Arena

CONNECTIONS = 64
WAITERS = 1_000
STREAMS = 100
EVENTS = 2_000
_BATCH = 500
_SYNCS = 200
_BODY = b'{"kind":"email.send","payload":{"to":"ada@example.org","subject":"hello","number":12345}}'

SHARE_MIN = 0.6
WAITED_MS_MAX = 50.0
DELIVERIES_MIN = 10_000


class Figure(NamedTuple):
    """One measured value beside its target."""

    name: str
    value: float
    unit: str
    target: str
    met: bool | None
    detail: str


# --- a client that costs little ------------------------------------------------------------------------------------


class Connection(asyncio.Protocol):
    """One connection: sends a request, returns the body of the response."""

    def __init__(self, headers: bytes) -> None:
        self._head = headers
        self._buffer = b""
        self._answer: asyncio.Future[bytes] | None = None
        self._transport: Any = None
        self._stream: Stream | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Complete the response, or count the events of a stream."""
        if self._stream is not None:
            self._stream.add(data)
            return
        if self._answer is None:
            raise RuntimeError(f"an answer without a request: {data!r}")
        self._buffer += data
        head, separator, body = self._buffer.partition(b"\r\n\r\n")
        if not separator:
            return
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        if len(body) >= length:
            if not head.startswith(b"HTTP/1.1 20"):
                raise RuntimeError(body.decode())
            self._buffer, answer, self._answer = b"", self._answer, None
            answer.set_result(body)

    def connection_lost(self, error: Exception | None) -> None:
        """Fail the request that waits."""
        closed = error or ConnectionError("the server has closed the connection")
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(closed)
        if self._stream is not None:
            self._stream.fail(closed)

    def send(self, method: bytes, path: bytes, body: bytes = b"") -> asyncio.Future[bytes]:
        """Send a request and return the body of its response."""
        self._answer = asyncio.get_running_loop().create_future()
        head = b"%s %s HTTP/1.1\r\nContent-Length: %d\r\n%s\r\n" % (method, path, len(body), self._head)
        self._transport.write(head + body)
        return self._answer

    def follow(self, path: bytes, expected: int) -> Stream:
        """Open a stream that ends after this number of events."""
        self._stream = Stream(expected)
        self._transport.write(b"GET %s HTTP/1.1\r\nAccept: text/event-stream\r\n%s\r\n" % (path, self._head))
        return self._stream

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()


class Stream:
    """One stream of server-sent events: whether it is open, and whether all events have arrived."""

    _EVENT = b"\ndata: "

    def __init__(self, expected: int) -> None:
        loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[None] = loop.create_future()
        self.delivered: asyncio.Future[None] = loop.create_future()
        self._expected = expected
        self._count = 0
        self._rest = b""

    def add(self, data: bytes) -> None:
        """Count the events of *data*, which may begin and end anywhere."""
        found = self._rest + data
        if b"event: lagged" in found or (not self.opened.done() and not found.startswith(b"HTTP/1.1 200")):
            self.fail(RuntimeError(found[:500].decode()))
            return
        if not self.opened.done():
            if b"retry: " not in found:
                self._rest = found
                return
            self.opened.set_result(None)
        self._count += found.count(self._EVENT)
        self._rest = found[-len(self._EVENT) + 1 :]
        if self._count >= self._expected and not self.delivered.done():
            self.delivered.set_result(None)

    def fail(self, error: Exception) -> None:
        """Raise in those that wait for the stream."""
        for future in (self.opened, self.delivered):
            if not future.done():
                future.set_exception(error)


class Service:
    """A server process and connections to it."""

    def __init__(self, url: str) -> None:
        self._process = subprocess.Popen(  # noqa: S603  # our own server
            [sys.executable, "-m", "bench.service_server", url], stdout=subprocess.PIPE, text=True
        )
        port, token = (self._process.stdout or sys.stdin).readline().split()
        self._port, self._token = int(port), token.encode()

    @property
    def headers(self) -> bytes:
        """The headers of every request."""
        return b"Host: 127.0.0.1\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\n" % self._token

    def socket(self) -> socket.socket:
        """Open a connection."""
        connected = socket.create_connection(("127.0.0.1", self._port), timeout=60)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connected

    async def connect(self, count: int) -> list[Connection]:
        """Open connections."""
        loop = asyncio.get_running_loop()
        return [
            (await loop.create_connection(lambda: Connection(self.headers), "127.0.0.1", self._port))[1]
            for _ in range(count)
        ]

    def cpu_seconds(self) -> float:
        """Return the processor time of the server so far."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        """Stop the server."""
        self._process.terminate()
        self._process.communicate(timeout=30)


# --- throughput ----------------------------------------------------------------------------------------------------

_LENGTH = re.compile(rb"content-length: (\d+)\r\n")
_CLAIMED = re.compile(rb'"id":"([^"]+)".*"epoch":(\d+),"lease_token":"([^"]+)"')
_EMPTY = ("POST", "/v1/empty", _BODY)
_ENQUEUE = ("POST", "/v1/jobs", _BODY)
_CLAIM = ("POST", "/v1/claims", b'{"worker":"bench","limit":1}')
# More than are claimed in a second.
_CLAIMS_SECOND_MAX = 4_000


def _settle(answer: bytes) -> tuple[str, str, bytes]:
    """Return the settlement of the job that was claimed."""
    job_id, epoch, token = _CLAIMED.search(answer).groups()  # type: ignore[union-attr]
    body = b'{"epoch":%s,"lease_token":"%s","outcome":"done","result":{"ok":true}}' % (epoch, token)
    return "POST", f"/v1/claims/{job_id.decode()}/settle", body


class Rate(NamedTuple):
    """Requests per second of all connections together, and the server's processor time for each."""

    requests: float
    cpu_us: float


class Load:
    """Connections that each send a request when the answer to the one before has arrived.

    One thread and no event loop: the client must not be what is measured.
    """

    def __init__(self, service: Service, count: int) -> None:
        self._service = service
        self._head = service.headers
        self._sockets: dict[int, socket.socket] = {}
        self._poll = select.epoll()
        for _ in range(count):
            connected = service.socket()
            self._sockets[connected.fileno()] = connected
            self._poll.register(connected, select.EPOLLIN)

    def rate(self, name: str, seconds: float) -> Rate:
        """Send requests for some time: `empty`, `enqueue`, or `claim + settle`."""
        first = {"empty": _EMPTY, "enqueue": _ENQUEUE, "claim + settle": _CLAIM}[name]
        opening = self._request(*first)
        pairs = name == "claim + settle"
        claimed: set[int] = set()
        started, cpu_seconds = time.perf_counter(), self._service.cpu_seconds()
        until, requests = started + seconds, 0
        waiting = set(self._sockets)
        for descriptor in waiting:
            self._sockets[descriptor].sendall(opening)
        while waiting:
            for descriptor, _ in self._poll.poll():
                answer = _receive(self._sockets[descriptor])
                requests += 1
                if pairs and descriptor not in claimed:
                    claimed.add(descriptor)
                    self._sockets[descriptor].sendall(self._request(*_settle(answer)))
                    continue
                claimed.discard(descriptor)
                if time.perf_counter() < until:
                    self._sockets[descriptor].sendall(opening)
                else:
                    waiting.discard(descriptor)
        used = self._service.cpu_seconds() - cpu_seconds
        return Rate(requests / (time.perf_counter() - started), used / requests * 1_000_000)

    def fill(self, seconds: float) -> None:
        """Enqueue as many jobs as can be claimed in this time."""
        body = b'{"jobs":[%s]}' % b",".join([_BODY] * _BATCH)
        connection = next(iter(self._sockets.values()))
        for _ in range(0, int(_CLAIMS_SECOND_MAX * seconds), _BATCH):
            connection.sendall(self._request("POST", "/v1/jobs/batch", body))
            _receive(connection)

    def _request(self, method: str, path: str, body: bytes) -> bytes:
        return b"%s %s HTTP/1.1\r\nContent-Length: %d\r\n%s\r\n%s" % (
            method.encode(),
            path.encode(),
            len(body),
            self._head,
            body,
        )

    def close(self) -> None:
        """Close the connections."""
        self._poll.close()
        for one in self._sockets.values():
            one.close()


def _receive(connection: socket.socket) -> bytes:
    """Return the body of one response."""
    received = connection.recv(65_536)
    while not (separator := received.find(b"\r\n\r\n")) > 0:
        received += connection.recv(65_536)
    found = _LENGTH.search(received)
    if found is None or not received.startswith(b"HTTP/1.1 20"):
        raise RuntimeError(received.decode())
    end = separator + 4 + int(found[1])
    while len(received) < end:
        received += connection.recv(65_536)
    return received[separator + 4 :]


def _throughput(service: Service, count: int, seconds: float, rounds: int) -> dict[str, list[Rate]]:
    load = Load(service, count)
    rates: dict[str, list[Rate]] = {"empty": [], "enqueue": [], "claim + settle": []}
    load.fill((rounds + 1 / 4) * seconds)
    for name in rates:
        load.rate(name, seconds / 4)
    for _ in range(rounds):
        for name, found in rates.items():
            found.append(load.rate(name, seconds))
    load.close()
    return rates


def _median(rates: list[Rate]) -> Rate:
    return Rate(*(statistics.median(values) for values in zip(*rates, strict=True)))


def _shares(rates: dict[str, list[Rate]], where: str) -> Iterator[Figure]:
    for name in ("enqueue", "claim + settle"):
        pairs = list(zip(rates[name], rates["empty"], strict=True))
        share = statistics.median(own.requests / empty.requests for own, empty in pairs)
        own, empty = _median(rates[name]), _median(rates["empty"])
        detail = f"{own.requests:,.0f} of {empty.requests:,.0f} requests/s, server {own.cpu_us:.0f} of "
        detail += f"{empty.cpu_us:.0f} CPU us/request"
        target = f"at least {SHARE_MIN}" if where.startswith("64") else ""
        yield Figure(f"{where}: {name}", share, "x empty", target, share >= SHARE_MIN if target else None, detail)


def _sync_ms(folder: Path) -> float:
    """Return the median time to write and sync one page."""
    times = []
    with (folder / "sync").open("wb") as file:
        for _ in range(_SYNCS):
            started = time.perf_counter()
            file.write(b"x" * 4_096)
            file.flush()
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - started)
    return statistics.median(times) * 1_000


# --- waiting and streams -------------------------------------------------------------------------------------------


async def _waiters(service: Service, count: int) -> Figure:
    [control] = await service.connect(1)
    lane = b"waiters"
    body = json.dumps({"jobs": [{"kind": "wait", "lane": lane.decode()}] * _BATCH}).encode()
    ids: list[str] = []
    while len(ids) < count:
        ids += [one["job"]["id"] for one in json.loads(await control.send(b"POST", b"/v1/jobs/batch", body))["jobs"]]
    waiters = await service.connect(count)
    answered: dict[str, float] = {}

    async def wait(connection: Connection, job_id: str) -> None:
        await connection.send(b"GET", f"/v1/jobs/{job_id}?wait=60".encode())
        answered[job_id] = time.perf_counter()

    waiting = [asyncio.create_task(wait(one, job_id)) for one, job_id in zip(waiters, ids, strict=False)]
    await asyncio.sleep(1)
    settled: dict[str, float] = {}
    while len(settled) < len(ids):
        claimed = await control.send(b"POST", b"/v1/claims", b'{"worker":"bench","lanes":["waiters"],"limit":1}')
        [claim] = json.loads(claimed)["claims"]
        proof = {"epoch": claim["epoch"], "lease_token": claim["lease_token"], "outcome": "done"}
        path, job_id = f"/v1/claims/{claim['job']['id']}/settle", claim["job"]["id"]
        settled[job_id] = time.perf_counter()
        await control.send(b"POST", path.encode(), json.dumps(proof).encode())
    await asyncio.gather(*waiting)
    times = sorted((answered[job_id] - settled[job_id]) * 1_000 for job_id in answered)
    for connection in (control, *waiters):
        connection.close()
    p99 = times[int(len(times) * 0.99) - 1]
    detail = f"median {statistics.median(times):.1f} ms, slowest {times[-1]:.1f} ms"
    name = f"{len(times):,} waiters: p99 from settle to answer"
    return Figure(name, p99, "ms", f"under {WAITED_MS_MAX:g} ms", p99 < WAITED_MS_MAX, detail)


async def _deliveries(service: Service, streams: int, events: int) -> Figure:
    [control] = await service.connect(1)
    connections = await service.connect(streams)
    following = [one.follow(b"/v1/events?lane=streams", events) for one in connections]
    await asyncio.gather(*(one.opened for one in following))
    job = {"kind": "event", "lane": "streams", "events": "all"}
    started = time.perf_counter()
    sent = 0
    while sent < events:
        count = min(_BATCH, events - sent)
        await control.send(b"POST", b"/v1/jobs/batch", json.dumps({"jobs": [job] * count}).encode())
        sent += count
    await asyncio.gather(*(one.delivered for one in following))
    seconds = time.perf_counter() - started
    for connection in (control, *connections):
        connection.close()
    rate = streams * events / seconds
    detail = f"{events:,} events to {streams} streams in {seconds:.2f} s, with the enqueues"
    return Figure("SSE deliveries", rate, "/s", f"at least {DELIVERIES_MIN:,}", rate >= DELIVERIES_MIN, detail)


# --- the run -------------------------------------------------------------------------------------------------------


async def measure(url: str, folder: Path, options: argparse.Namespace) -> list[Figure]:
    """Measure everything that is selected, against one server process."""
    service = Service(url)
    figures: list[Figure] = []
    try:
        if "connections" in options.only:
            rates = _throughput(service, CONNECTIONS, options.seconds, options.rounds)
            figures += _shares(rates, f"{CONNECTIONS} connections")
        if "single" in options.only:
            rates = _throughput(service, 1, options.seconds, options.rounds)
            sync = _sync_ms(folder)
            for name in ("empty", "enqueue", "claim + settle"):
                each = 1_000 / _median(rates[name]).requests
                detail = f"the disk syncs a page in {sync:.2f} ms"
                figures.append(Figure(f"1 connection: {name}", each, "ms/request", "", None, detail))
        if "waiters" in options.only:
            figures.append(await _waiters(service, options.waiters))
        if "streams" in options.only:
            figures.append(await _deliveries(service, options.streams, options.events))
    finally:
        service.close()
    return figures


@contextmanager
def _store(engine: str, folder: Path) -> Iterator[str]:
    if engine == "sqlite":
        yield str(folder / "jobs.db")
        return
    with Arena(folder) as arena, arena.fresh() as url:
        yield str(url)


def main(arguments: list[str] | None = None) -> list[Figure]:
    """Run the bench, print the figures, and return them."""
    parts = ("connections", "single", "waiters", "streams")
    parser = argparse.ArgumentParser(prog="python -m bench.service", description=__doc__)
    parser.add_argument("--engine", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--only", choices=parts, action="append", help="one part; repeatable")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement (default 3)")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each rate (default 5)")
    parser.add_argument("--waiters", type=int, default=WAITERS)
    parser.add_argument("--streams", type=int, default=STREAMS)
    parser.add_argument("--events", type=int, default=EVENTS)
    parser.add_argument("--folder", type=Path, help="directory for the store; its disk is measured")
    parser.add_argument("--json", type=Path, help="file for the figures as JSON")
    options = parser.parse_args(arguments)
    options.only = options.only or parts
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=options.folder) as name:
        folder = Path(name).resolve()
        with _store(options.engine, folder) as url:
            figures = asyncio.run(measure(url, folder, options))
    _show(options.engine, figures)
    if options.json is not None:
        found: list[dict[str, Any]] = [one._asdict() for one in figures]
        options.json.write_text(json.dumps({options.engine: found}, indent=1) + "\n", encoding="utf-8")
    return figures


def _show(engine: str, figures: list[Figure]) -> None:
    for one in figures:
        verdict = {None: "", True: "met", False: "MISSED"}[one.met]
        value = f"{one.value:,.2f} {one.unit}"
        sys.stdout.write(f"{engine}  {one.name:45} {value:20} {one.target:18} {verdict:7} {one.detail}\n")


if __name__ == "__main__":
    main()
