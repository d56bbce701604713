"""The cost of sessions as the store grows, and whether workers on many sessions delay each other.

Commits do not wait for the disk. Each claimed turn is settled and the same number of entries is enqueued into the
session again, which keeps the size of the store constant.

`python -m bench.sessions` measures how many turns per second one worker runs whose handler does nothing.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import holdfast
from bench.claim_cost import Cost, Log
from bench.postgres.server import Arena
from holdfast.worker.worker import Worker

ENTRIES_IN_SESSION = 10
TENANTS = 1_000
COMMANDS = 10
"""Sessions with a command first, at every size."""
_BULK = 10_000
_RUN = 8
_LONG = "long"


class Way(NamedTuple):
    """One set of options for claiming sessions."""

    name: str
    options: dict[str, Any]
    session: str | None = None
    finds: bool = True


WAYS = [
    Way("any session, one tenant", {"lanes": ["chat"], "only": "message"}),
    Way(f"any session, {TENANTS:,} tenants in turn", {"lanes": ["fair"]}),
    Way("any session of one tenant among them", {"lanes": ["fair"], "tenant": "tenant-7"}),
    Way("any session led by a command, ten of them", {"lanes": ["chat"], "only": "command"}),
    Way("any session, no such kind: nothing", {"lanes": ["chat"], "kinds": ["none"]}, finds=False),
    Way("a session by its name", {}, session="chat-40"),
    Way("a session with a tenth of all entries", {"lanes": ["long"]}),
]
SETTLED = "settling a run of eight"
ENQUEUED = "enqueueing one entry"


class WorkerProcesses(NamedTuple):
    """Turns per second of one worker and of several, with a fixed duration of each turn."""

    workers: int
    sessions: int
    turn_seconds: float
    one: float
    crew: float

    @property
    def share(self) -> float:
        """The share of the ideal rate, at which no worker waits for another."""
        return self.crew / (self.one * self.workers)


# --- filling -------------------------------------------------------------------------------------------------------


def fill(queue: holdfast.Queue, size: int) -> None:
    """Enqueue *size* entries: a tenth of them in one session, the others in sessions of equal length."""
    entries = _entries(size)
    while bulk := [entry for entry, _ in zip(entries, range(_BULK), strict=False)]:
        queue.enqueue_many(bulk)


def _entries(size: int) -> Iterator[dict[str, Any]]:
    long = size // 10
    sessions = (size - long) // ENTRIES_IN_SESSION
    for number in range(sessions * ENTRIES_IN_SESSION):
        yield _entry(number % sessions)
    for _ in range(long):
        yield {"kind": "chat.message", "session": _LONG, "lane": "long", "join": True, "payload": {"text": "hello"}}


def _entry(session: int) -> dict[str, Any]:
    options = {"kind": "chat.message", "session": f"chat-{session}", "payload": {"text": "hello"}}
    if session % 2:
        return {**options, "lane": "fair", "tenant": f"tenant-{session // 2 % TENANTS}", "join": True}
    if session < 2 * COMMANDS:
        return {**options, "lane": "chat", "entry_type": "command"}
    return {**options, "lane": "chat", "join": True}


# --- claims as the store grows -------------------------------------------------------------------------------------


def run_on_files(place: Path, *, sizes: Sequence[int], rounds: int, claims: int, log: Log) -> list[Cost]:
    """Measure all options on a file of every size."""
    with tempfile.TemporaryDirectory(dir=place) as folder:
        queues = {
            size: holdfast.connect(str(Path(folder) / f"sessions-{size}.db"), durability="relaxed") for size in sizes
        }
        return _measure(queues, rounds, claims, log)


def run_on_server(arena: Arena, *, sizes: Sequence[int], rounds: int, claims: int, log: Log) -> list[Cost]:
    """Measure all options on a database of every size."""
    names = {size: arena.make() for size in sizes}
    try:
        for name in names.values():
            arena.execute(f"alter database {name} set synchronous_commit = off")
        queues = {size: holdfast.connect(arena.url(name)) for size, name in names.items()}
        return _measure(queues, rounds, claims, log)
    finally:
        for name in names.values():
            arena.drop(name)


def _measure(queues: dict[int, holdfast.Queue], rounds: int, claims: int, log: Log) -> list[Cost]:
    try:
        for size, queue in queues.items():
            log(f"sessions: {size:,} entries")
            fill(queue, size)
        taken: dict[str, dict[int, list[float]]] = {}
        for number in range(rounds):
            log(f"sessions: round {number + 1} of {rounds}")
            for way in WAYS:
                # Alternate the sizes after each claim, so noise affects all of them.
                for _ in range(claims):
                    for size, queue in queues.items():
                        for name, seconds in _serve(queue, way).items():
                            taken.setdefault(name, {}).setdefault(size, []).append(seconds)
        return [Cost(name, {size: median(took) for size, took in found.items()}) for name, found in taken.items()]
    finally:
        for queue in queues.values():
            queue.close()


def _serve(queue: holdfast.Queue, way: Way) -> dict[str, float]:
    started = time.perf_counter()
    if way.session is None:
        claim = queue.sessions.claim_next(limit=_RUN, **way.options)
    else:
        claim = queue.sessions.claim(way.session, limit=_RUN, **way.options)
    took = {way.name: time.perf_counter() - started}
    if way.finds != (claim is not None):
        raise RuntimeError(f"{way.name}: {claim} was claimed")
    if claim is None:
        return took
    started = time.perf_counter()
    queue.sessions.settle(claim, holdfast.Done())
    if len(claim.entries) == _RUN:
        took[SETTLED] = time.perf_counter() - started
    for job in claim.entries:
        started = time.perf_counter()
        _enqueue_again(queue, job)
        took[ENQUEUED] = time.perf_counter() - started
    return took


def _enqueue_again(queue: holdfast.Queue, job: holdfast.Job) -> None:
    entry = job.entry
    if entry is None:
        raise RuntimeError("a job without a session was claimed")
    queue.enqueue(
        job.kind,
        job.payload,
        lane=job.lane,
        tenant=job.tenant,
        session=entry.session,
        entry_type=entry.entry_type,
        join=entry.join,
    )


# --- several workers -----------------------------------------------------------------------------------------------


def run_workers_on_server(arena: Arena, *, turns: int) -> WorkerProcesses:
    """Run one worker, then eight, on 64 sessions whose turns take 50 milliseconds each."""
    name = arena.make()
    try:
        arena.execute(f"alter database {name} set synchronous_commit = off")
        return _crew(lambda: holdfast.connect(arena.url(name)), turns)
    finally:
        arena.drop(name)


def run_workers_on_file(place: Path, *, turns: int) -> WorkerProcesses:
    """Run one worker, then eight, on 64 sessions of one file whose turns take 50 milliseconds each."""
    with tempfile.TemporaryDirectory(dir=place) as folder:
        path = str(Path(folder) / "crew.db")
        return _crew(lambda: holdfast.connect(path, durability="relaxed"), turns)


def _crew(connect: Any, turns: int) -> WorkerProcesses:
    workers, sessions, turn_seconds = 8, 64, 0.05
    rates = []
    for crew in (1, workers):
        queues = [connect() for _ in range(crew)]
        rates.append(_served_by(queues, sessions, turns if crew > 1 else max(1, turns // workers), turn_seconds))
        for queue in queues:
            queue.close()
    return WorkerProcesses(workers, sessions, turn_seconds, *rates)


def _served_by(queues: Sequence[holdfast.Queue], sessions: int, turns: int, turn_seconds: float) -> float:
    """Return the turns per second of these workers, until no entry is left."""
    options = {"kind": "chat.message", "payload": {"text": "hello"}}
    queues[0].enqueue_many([{**options, "session": f"crew-{n % sessions}"} for n in range(sessions * turns)])

    def serve(queue: holdfast.Queue, worker: str) -> None:
        while claim := queue.sessions.claim_next(worker=worker, limit=1):
            time.sleep(turn_seconds)
            queue.sessions.settle(claim, holdfast.Done())

    threads = [threading.Thread(target=serve, args=(queue, f"w{n}")) for n, queue in enumerate(queues)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    left = queues[0].counts().get("ready", 0)
    if left:
        raise RuntimeError(f"{left} batches were left")
    return sessions * turns / (time.perf_counter() - started)


# --- one worker ----------------------------------------------------------------------------------------------------


def turns_by_worker(queue: holdfast.Queue, turns: int) -> float:
    """Return the turns per second of a worker in 64 sessions, each turn one entry and a handler that does nothing."""
    ended = threading.Event()
    left = iter(range(turns - 1, -1, -1))

    @queue.session_task("chat.message")
    async def answer(context: holdfast.AsyncSessionContext[Any], messages: list[dict[str, str]]) -> None:
        del context, messages
        if not next(left):
            ended.set()

    entry = {"kind": "chat.message", "payload": {"text": "hello"}}
    queue.enqueue_many([{**entry, "session": f"chat-{number % 64}"} for number in range(turns)])
    worker = Worker(queue, concurrency=8)
    thread = threading.Thread(target=worker.run)
    started = time.perf_counter()
    thread.start()
    ended.wait()
    while worker.status().ended.get("done", 0) < turns:
        time.sleep(0.0005)
    seconds = time.perf_counter() - started
    worker.stop()
    thread.join()
    return turns / seconds


def main() -> None:
    """Measure a worker on both engines and print its rates."""
    parser = argparse.ArgumentParser(prog="python -m bench.sessions", description="Measure turns by a worker.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--turns", type=int, default=2_000)
    options = parser.parse_args()
    rates: dict[str, list[float]] = {"SQLite": [], "PostgreSQL": []}
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder, Arena(Path(folder)) as arena:
        for number in range(options.rounds):
            with holdfast.connect(str(Path(folder) / f"turns-{number}.db")) as queue:
                rates["SQLite"].append(turns_by_worker(queue, options.turns))
            with arena.fresh() as name, holdfast.connect(name) as queue:
                rates["PostgreSQL"].append(turns_by_worker(queue, options.turns))
    for engine, found in rates.items():
        print(f"{engine}: {median(found):,.0f} turns/s by a worker")  # noqa: T201  # the result


if __name__ == "__main__":
    main()
