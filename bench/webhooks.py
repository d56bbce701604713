"""Webhooks: `python -m bench.webhooks` measures deliveries to a fast local receiver.

It prints the deliveries a second of one sender with its processor time, the statements that read the log with one and
with many subscriptions, and the latency of fast receivers beside one that hangs. `--profile` shows where the time
goes.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import pstats
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import count
from pathlib import Path
from statistics import median
from typing import NamedTuple

import holdfast
from bench.postgres.server import Arena
from holdfast import Done, NewJob, Queue
from holdfast.client import queue_state
from holdfast.domain import webhook_urls
from holdfast.operations import webhooks as operations
from holdfast.storage.runners import SyncRunner
from holdfast.storage.sqlite.store import SqliteStore
from holdfast.storage.store import Store
from holdfast.webhooks.connections import Connections
from holdfast.webhooks.sender import WebhookSender

ANSWER = b"HTTP/1.1 204 No Content\r\n\r\n"
LOCAL = webhook_urls.parse_networks("127.0.0.0/8", "allow")
ENDPOINTS = 100
DELIVERIES_MIN = 1_000
SHARE_MAX = 1.2


class Rate(NamedTuple):
    """Deliveries of one sender."""

    deliveries: int
    seconds: float
    cpu_seconds: float
    """Of the sender's process: reading the log, storing, claiming, sending and settling."""

    @property
    def per_second(self) -> float:
        """Deliveries a second."""
        return self.deliveries / self.seconds

    @property
    def cpu_us(self) -> float:
        """Microseconds of processor time for each delivery."""
        return 1_000_000 * self.cpu_seconds / self.deliveries


# --- the receiver --------------------------------------------------------------------------------------------------


class FastReceiver(asyncio.Protocol):
    """Answers each request as soon as its body has arrived; requests to `/hang` get no answer."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the connection."""
        self._transport = transport
        self._buffer = b""

    def data_received(self, data: bytes) -> None:
        """Answer every complete request."""
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:end].lower()
            start = head.index(b"content-length:") + 15
            length = int(head[start : head.index(b"\r\n", start)])
            if len(self._buffer) < end + 4 + length:
                return
            self._buffer = self._buffer[end + 4 + length :]
            if not head.startswith(b"post /hang"):
                self._transport.write(ANSWER)  # type: ignore[attr-defined]


async def receive() -> None:
    """Serve until this process is killed; print the port."""
    server = await asyncio.get_running_loop().create_server(FastReceiver, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)  # noqa: T201
    await server.serve_forever()


@contextmanager
def receiving() -> Iterator[int]:
    """Run a receiver in a process of its own; yield its port."""
    command = [sys.executable, "-m", "bench.webhooks", "--receive"]
    folder = Path(__file__).parents[1]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder) as process:  # noqa: S603
        try:
            assert process.stdout is not None  # noqa: S101
            yield int(process.stdout.readline())
        finally:
            process.kill()


# --- measurements --------------------------------------------------------------------------------------------------


def finish_jobs(queue: Queue, count: int, **options: str) -> None:
    """Finish jobs, one event each."""
    left = count
    while left:
        size = min(left, 500)
        queue.enqueue_many([NewJob("mail", **options) for _ in range(size)])  # type: ignore[arg-type]
        queue.settle_many([(claim, Done()) for claim in queue.claim_many(limit=size)])
        left -= size


async def send_until_done(store: Store, queue: Queue, count: int) -> Rate:
    """Run a sender until this many deliveries are done."""
    sender = WebhookSender(store, lambda: Connections(LOCAL))
    started, cpu_started = time.perf_counter(), time.process_time()
    task = asyncio.create_task(sender.run())
    while True:
        tallies = await asyncio.to_thread(queue.admin.tally, lane="holdfast.webhooks", state="done")
        if sum(one.jobs for one in tallies) >= count:
            break
        await asyncio.sleep(0.2)
    found = Rate(count, time.perf_counter() - started, time.process_time() - cpu_started)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    return found


def rate(url: str, port: int, count: int, *, profiled: bool = False) -> Rate:
    """Measure one sender: read the log, store, claim, send and settle *count* deliveries to 100 endpoints."""
    with holdfast.connect(url) as queue:
        for number in range(ENDPOINTS):
            queue.webhooks.add(f"http://127.0.0.1:{port}/{number}", tenant=f"tenant-{number}")
        for number in range(ENDPOINTS):
            finish_jobs(queue, count // ENDPOINTS, tenant=f"tenant-{number}")
        store = queue_state.state_of(queue).store.clone()
        profile = cProfile.Profile()
        if profiled:
            profile.enable()
        found = asyncio.run(send_until_done(store, queue, count // ENDPOINTS * ENDPOINTS))
        if profiled:
            profile.disable()
            pstats.Stats(profile).sort_stats("tottime").print_stats(25)
        store.close()
    return found


def reads(folder: Path, subscriptions: int, events: int) -> Counter[str]:
    """Return how often each statement runs to read *events* for a number of subscriptions."""
    path = str(folder / f"reads-{subscriptions}.db")
    with holdfast.connect(path) as queue:
        for number in range(subscriptions):
            queue.webhooks.add("https://example.org/", kinds=[f"kind-{number}"])
        finish_jobs(queue, events)
    statements: Counter[str] = Counter()
    store = SqliteStore(path, observe=lambda name: statements.update([name]))
    runner = SyncRunner(store)
    after = None
    while (found := runner.read(operations.collect, "bench", after, 500).found) is not None:
        after = found.end
        if found.due:
            runner.write(operations.dispatch, "bench", found)
        if not found.more:
            break
    store.close()
    return statements


def latency_beside_a_hanging_one(url: str, port: int, count: int, *, hanging: bool) -> float:
    """Return the p99 of the milliseconds from event to answer of 99 fast endpoints, beside one more that may hang.

    Deliveries arrive all at once. A tenth more are for the last endpoint, which answers as fast as the others or
    hangs: then each of its tries ends after 15 seconds. So both cases send as much, and differ only in the hanging.
    """
    each, more = max(1, count // ENDPOINTS), count // 10
    with holdfast.connect(url) as queue:
        for number in range(ENDPOINTS - 1):
            queue.webhooks.add(f"http://127.0.0.1:{port}/{number}", tenant=f"tenant-{number}")
        path = "hang" if hanging else "last"
        last = queue.webhooks.add(f"http://127.0.0.1:{port}/{path}", tenant="last").webhook.id
        finish_jobs(queue, more, tenant="last")
        for number in range(ENDPOINTS - 1):
            finish_jobs(queue, each, tenant=f"tenant-{number}")
        store = queue_state.state_of(queue).store.clone()
        asyncio.run(send_until_done(store, queue, each * (ENDPOINTS - 1) + (0 if hanging else more)))
        store.close()
        found = [job for job in _all(queue) if job.tenant != f"webhook/{last}"]
        taken = sorted((job.finished_at - job.enqueued_at).total_seconds() for job in found if job.finished_at)
    return 1000 * taken[int(0.99 * len(taken))]


def _all(queue: Queue) -> Iterator[holdfast.Job]:
    after = None
    while True:
        page = queue.jobs(lane="holdfast.webhooks", state="done", after=after, limit=1000)
        yield from page
        after = page.cursor
        if after is None:
            return


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000, help="deliveries")
    parser.add_argument("--engine", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--rounds", type=int, default=3, help="of each latency (default 3)")
    parser.add_argument("--profile", action="store_true", help="profile the sender")
    parser.add_argument("--receive", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.receive:
        asyncio.run(receive())
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name, receiving() as port:
        folder = Path(name).resolve()
        with stores(options.engine, folder) as fresh:
            report(fresh, folder, port, options)


@contextmanager
def stores(engine: str, folder: Path) -> Iterator[Callable[[], AbstractContextManager[str]]]:
    """Yield a function that makes an empty store and yields its URL."""
    if engine == "sqlite":
        numbers = count()

        @contextmanager
        def fresh() -> Iterator[str]:
            yield str(folder / f"{next(numbers)}.db")

        yield fresh
        return
    with Arena(folder) as arena:
        yield arena.fresh


def report(
    fresh: Callable[[], AbstractContextManager[str]], folder: Path, port: int, options: argparse.Namespace
) -> None:
    """Measure and print the figures."""
    with fresh() as url:
        measured = rate(url, port, options.count, profiled=options.profile)
    text = f"{measured.per_second:,.0f} deliveries a second ({measured.deliveries:,}; at least {DELIVERIES_MIN:,})"
    print(f"{text}, {measured.cpu_us:,.0f} CPU us each")  # noqa: T201
    one, many = (reads(folder, number, options.count // 10) for number in (1, 1_000))
    print(f"statements to read the log: {one.total()} with 1 subscription, {many.total()} with 1,000")  # noqa: T201
    alone: list[float] = []
    beside: list[float] = []
    for _ in range(options.rounds):
        for hanging, found in ((False, alone), (True, beside)):
            with fresh() as url:
                found.append(latency_beside_a_hanging_one(url, port, options.count // 5, hanging=hanging))
    share = median(slow / fast for slow, fast in zip(beside, alone, strict=True))
    shown = f"{median(alone):.0f} ms beside another, {median(beside):.0f} ms beside one that hangs"
    print(f"p99 of 99 fast receivers: {shown}: {share:.2f}x (at most {SHARE_MAX}x)")  # noqa: T201


if __name__ == "__main__":
    main()
