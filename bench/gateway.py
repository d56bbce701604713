"""`python -m bench.gateway`: the model gateway beside direct calls to the same scripted model server, in one run.

Client, gateway and model server share the cores. The rounds alternate between direct calls and calls through the
gateway, so that both meet the same machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from bench.model_server import MODELS
from bench.postgres.server import Arena
from bench.service import Figure

STREAMS = 64
CHUNKS_PER_SECOND = 200
BACKLOG = 60
LENGTHS = (2_048, 4_096, 8_192)
IDLE_MS_MAX = 10.0
CHUNK_MS_MAX = 20.0
THROUGHPUT_MIN = 0.9
SWAPS_MAX = 2
_AT = re.compile(rb'"at":(\d+)')
_START_SECONDS = 30.0


class Answer(NamedTuple):
    """A response: its body, and the delay of each chunk that has a time, in milliseconds."""

    content: bytes
    delays: list[float]
    seconds: float


class Request(asyncio.Protocol):
    """One request on a connection of its own."""

    def __init__(self, path: str, body: Any) -> None:
        content = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: "
        self._sent = f"{head}{len(content)}\r\n\r\n".encode() + content
        self._parts: list[bytes] = []
        self._length: int | None = None
        self._received = 0
        self.delays: list[float] = []
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101  # of a stream connection
        transport.write(self._sent)

    def data_received(self, data: bytes) -> None:
        """Note the delay of each chunk."""
        now = time.monotonic_ns()
        self.delays += [(now - int(at)) / 1e6 for at in _AT.findall(data)]
        if not self._parts:
            head, _, data = data.partition(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 200"):
                self.ended.set_exception(RuntimeError(f"{head!r} {data!r}"))
                return
            found = re.search(rb"content-length: (\d+)", head.lower())
            self._length = None if found is None else int(found[1])
        self._parts.append(data)
        self._received += len(data)
        complete = data.endswith(b"0\r\n\r\n") if self._length is None else self._received >= self._length
        if complete and not self.ended.done():
            self.ended.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # of asyncio
        """End a request whose answer is not complete."""
        if not self.ended.done():
            self.ended.set_exception(ConnectionError("the connection was closed"))

    @property
    def content(self) -> bytes:
        """The body, with the sizes of its chunks if it is a stream."""
        return b"".join(self._parts)


async def ask(port: int, body: Any, path: str = "/api/chat") -> Answer:
    """Send a request and return the response."""
    started = time.perf_counter()
    transport, request = await asyncio.get_running_loop().create_connection(
        lambda: Request(path, body), "127.0.0.1", port
    )
    try:
        await request.ended
    finally:
        transport.close()
    return Answer(request.content, request.delays, time.perf_counter() - started)


def body_of(model: str = MODELS[0], **extra: Any) -> dict[str, Any]:
    """Return a request to `/api/chat`."""
    return {"model": model, "messages": [{"role": "user", "content": "hello"}], "stream": False, **extra}


# --- processes -----------------------------------------------------------------------------------------------------


@contextmanager
def model_server(load_seconds: float = 0.0, run_seconds: float = 0.0) -> Iterator[int]:
    """Run a model server for a block and give its port."""
    arguments = ["-m", "bench.model_server", "0", str(load_seconds), str(run_seconds)]
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE)  # noqa: S603
    assert process.stdout is not None  # noqa: S101  # piped
    try:
        yield int(process.stdout.readline())
    finally:
        _end(process)


@contextmanager
def gateway(url: str, upstream: int, *arguments: str) -> Iterator[int]:
    """Run a gateway for a block and give its port."""
    command = [sys.executable, "-m", "holdfast", "--url", url, "gateway", "--json", "--port", "0"]
    process = subprocess.Popen(  # noqa: S603
        [*command, "--upstream", f"http://127.0.0.1:{upstream}", *arguments], stdout=subprocess.PIPE
    )
    assert process.stdout is not None  # noqa: S101  # piped
    try:
        if not select.select([process.stdout], [], [], _START_SECONDS)[0]:
            raise TimeoutError("the gateway does not start")
        yield int(json.loads(process.stdout.readline())["url"].rpartition(":")[2])
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


# --- measurements --------------------------------------------------------------------------------------------------


async def idle(url: str, requests: int, folder: Path) -> Figure:
    """Measure what the gateway adds to one request at a time, and how long the disk takes for a sync in between."""
    times: dict[str, list[float]] = {"direct": [], "through": [], "sync": []}
    with model_server() as upstream, gateway(url, upstream) as port, (folder / "sync").open("wb") as file:
        for number in range(requests + 10):
            for name, target in (("direct", upstream), ("through", port)):
                answer = await ask(target, body_of())
                if number >= 10:
                    times[name].append(answer.seconds * 1_000)
            times["sync"].append(_sync_ms(file.fileno()))
    direct, through, sync = (statistics.median(times[name]) for name in ("direct", "through", "sync"))
    detail = f"p50 {direct:.2f} ms direct, {through:.2f} ms through, {requests} requests in turn"
    detail += f"; the disk syncs in {sync:.2f} ms"
    added = through - direct
    return Figure("one idle request: added p50", added, "ms", f"< {IDLE_MS_MAX:g} ms", added < IDLE_MS_MAX, detail)


def _sync_ms(descriptor: int) -> float:
    """Write a page and wait for the disk; return the time of the sync."""
    os.write(descriptor, b"x" * 4_096)
    started = time.perf_counter()
    os.fdatasync(descriptor)
    return (time.perf_counter() - started) * 1_000


async def streams(url: str, count: int, seconds: float, rounds: int) -> list[Figure]:
    """Measure what the gateway adds to each chunk of many streams, and their throughput."""
    chunks = round(seconds * CHUNKS_PER_SECOND)
    p99: dict[str, list[float]] = {"direct": [], "through": []}
    rates: dict[str, list[float]] = {"direct": [], "through": []}
    with model_server() as upstream, gateway(url, upstream, "--concurrency", str(count)) as port:
        await ask(port, body_of())
        for _ in range(rounds):
            for name, target in (("direct", upstream), ("through", port)):
                started = time.perf_counter()
                answers = await asyncio.gather(
                    *(ask(target, body_of(stream=True, chunks=chunks)) for _ in range(count))
                )
                taken = time.perf_counter() - started
                delays = sorted(delay for answer in answers for delay in answer.delays)
                assert len(delays) == count * chunks, (name, len(delays))  # noqa: S101  # nothing is lost
                p99[name].append(delays[int(len(delays) * 0.99)])
                rates[name].append(len(delays) / taken)
    direct, through = (statistics.median(p99[name]) for name in ("direct", "through"))
    added, share = through - direct, statistics.median(rates["through"]) / statistics.median(rates["direct"])
    about = f"{count} streams of {CHUNKS_PER_SECOND} chunks a second for {seconds:g} s, {rounds} rounds"
    shown = f"{statistics.median(rates['direct']):,.0f} chunks/s direct; {about}"
    return [
        Figure(
            "streams: added p99 of each chunk",
            added,
            "ms",
            f"< {CHUNK_MS_MAX:g} ms",
            added < CHUNK_MS_MAX,
            f"p99 {direct:.1f} ms direct, {through:.1f} ms through; {about}",
        ),
        Figure("streams: throughput", share, "of direct", f">= {THROUGHPUT_MIN}", share >= THROUGHPUT_MIN, shown),
    ]


async def backlog(url: str, seed: int = 7) -> list[Figure]:
    """Count the loads of a mixed backlog with varying context lengths, direct and through the gateway."""
    rng = random.Random(seed)  # noqa: S311  # no secret
    requests = [
        body_of(model, options={"num_ctx": rng.choice(LENGTHS)}) for model in MODELS for _ in range(BACKLOG // 3)
    ]
    rng.shuffle(requests)
    found: dict[str, tuple[int, float]] = {}
    pinned = [one for model in MODELS for one in ("--num-ctx", f"{model}=8192")]
    for name, arguments in (("direct", None), ("through", []), ("pinned", pinned)):
        with model_server(load_seconds=0.2, run_seconds=0.02) as upstream:
            if arguments is None:
                found[name] = await _drain(upstream, upstream, requests)
            else:
                with gateway(f"{url}-{name}" if "://" not in url else url, upstream, *arguments) as port:
                    found[name] = await _drain(port, upstream, requests)
    shown = ", ".join(f"{name} {loads} loads in {seconds:.1f} s" for name, (loads, seconds) in found.items())
    swaps = found["pinned"][0] - 1
    return [
        Figure(
            "mixed backlog: swaps with pinned lengths",
            swaps,
            "swaps",
            f"<= {SWAPS_MAX}",
            swaps <= SWAPS_MAX,
            f"{BACKLOG} requests, 3 models, 3 lengths, 0.2 s to load, 0.02 s to run: {shown}",
        )
    ]


async def _drain(port: int, upstream: int, requests: Sequence[Any]) -> tuple[int, float]:
    started = time.perf_counter()
    asked = []
    for body in requests:
        asked.append(asyncio.ensure_future(ask(port, body)))
        await asyncio.sleep(0)
    await asyncio.gather(*asked)
    taken = time.perf_counter() - started
    count = await ask(upstream, {}, "/count")
    return json.loads(count.content)["loads"], taken


async def large(url: str, megabytes: int) -> Figure:
    """Measure a request with images."""
    body = body_of(images=["i" * (megabytes << 20)])
    with model_server() as upstream, gateway(url, upstream) as port:
        await ask(port, body_of())
        direct, through = [(await ask(target, body)).seconds for target in (upstream, port)]
    detail = f"{direct:.2f} s direct, stored and sent in {through:.2f} s"
    return Figure(f"a request of {megabytes} MiB", through, "s", "", None, detail)


# --- the command ---------------------------------------------------------------------------------------------------


@contextmanager
def _store(engine: str, folder: Path) -> Iterator[str]:
    if engine == "sqlite":
        yield str(folder / "gateway.db")
        return
    with Arena(folder) as arena, arena.fresh() as url:
        yield str(url)


async def measure(url: str, options: argparse.Namespace, folder: Path) -> list[Figure]:
    """Return the figures of the chosen parts."""
    figures: list[Figure] = []
    if "idle" in options.only:
        figures.append(await idle(url, options.requests, folder))
    if "streams" in options.only:
        figures += await streams(url, options.streams, options.seconds, options.rounds)
    if "backlog" in options.only:
        figures += await backlog(url)
    if "large" in options.only:
        figures.append(await large(url, 20))
    return figures


def main(arguments: list[str] | None = None) -> list[Figure]:
    """Run the bench, print the figures, and return them."""
    parts = ("idle", "streams", "backlog", "large")
    parser = argparse.ArgumentParser(prog="python -m bench.gateway", description=__doc__)
    parser.add_argument("--engine", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--only", choices=parts, action="append", help="one part; repeatable")
    parser.add_argument("--requests", type=int, default=200, help="idle requests (default 200)")
    parser.add_argument("--streams", type=int, default=STREAMS)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each stream (default 3)")
    parser.add_argument("--rounds", type=int, default=5, help="of the streams (default 5)")
    parser.add_argument("--folder", type=Path, help="directory for the store")
    parser.add_argument("--json", type=Path, help="file for the figures as JSON")
    options = parser.parse_args(arguments)
    options.only = options.only or parts
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=options.folder) as name:
        folder = Path(name).resolve()
        with _store(options.engine, folder) as url:
            figures = asyncio.run(measure(url, options, folder))
    for one in figures:
        verdict = {None: "", True: "met", False: "MISSED"}[one.met]
        value = f"{one.value:,.2f} {one.unit}"
        sys.stdout.write(f"{options.engine}  {one.name:42} {value:18} {one.target:10} {verdict:7} {one.detail}\n")
    if options.json is not None:
        found: list[dict[str, Any]] = [one._asdict() for one in figures]
        options.json.write_text(json.dumps({options.engine: found}, indent=1) + "\n", encoding="utf-8")
    return figures


if __name__ == "__main__":
    main()
