"""What sessions cost as the store grows, and whether workers that serve many of them hold each other up.

Commits do not wait for the disk here. A claimed run is settled and as many batches are enqueued into the same session
again, so that the store keeps its size while the claims go round its sessions.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import holdfast
from bench.claim_cost import Cost, Say
from bench.postgres.server import Arena

BATCHES_IN_SESSION = 10
TENANTS = 1_000
COMMANDS = 10
"""Sessions led by a command, at every size."""
_BULK = 10_000
_RUN = 8
_LONG = "long"


class Way(NamedTuple):
    """One way of asking for sessions' work."""

    name: str
    words: dict[str, Any]
    session: str | None = None
    finds: bool = True


WAYS = [
    Way("any session, one tenant", {"lanes": ["chat"], "work": "turn"}),
    Way(f"any session, {TENANTS:,} tenants in turn", {"lanes": ["fair"]}),
    Way("any session of one tenant among them", {"lanes": ["fair"], "tenant": "tenant-7"}),
    Way("any session led by a command, ten of them", {"lanes": ["chat"], "work": "command"}),
    Way("any session, no such kind: nothing", {"lanes": ["chat"], "kinds": ["none"]}, finds=False),
    Way("a session by its name", {}, session="chat-40"),
    Way("a session with a tenth of all entries", {"lanes": ["long"]}),
]
SETTLED = "settling a run of eight"
ENQUEUED = "enqueueing one entry"


class WorkerProcesses(NamedTuple):
    """Turns for each second that one worker served, and a crew of them, where each turn takes its time."""

    workers: int
    sessions: int
    turn_seconds: float
    one: float
    crew: float

    @property
    def share(self) -> float:
        """Of what so many workers could serve if none of them ever waited for another."""
        return self.crew / (self.one * self.workers)


# --- filling -------------------------------------------------------------------------------------------------------


def fill(queue: holdfast.Queue, size: int) -> None:
    """Store *size* batches in a tenth as many sessions, as many again as a tenth of them in one."""
    batches = _batches(size)
    while bulk := [batch for batch, _ in zip(batches, range(_BULK), strict=False)]:
        queue.enqueue_many(bulk)


def _batches(size: int) -> Iterator[dict[str, Any]]:
    long = size // 10
    sessions = (size - long) // BATCHES_IN_SESSION
    for number in range(sessions * BATCHES_IN_SESSION):
        yield _batch(number % sessions)
    for _ in range(long):
        yield {"kind": "chat.message", "session": _LONG, "lane": "long", "slot": "join", "payload": {"text": "hello"}}


def _batch(session: int) -> dict[str, Any]:
    words = {"kind": "chat.message", "session": f"chat-{session}", "payload": {"text": "hello"}}
    if session % 2:
        return {**words, "lane": "fair", "tenant": f"tenant-{session // 2 % TENANTS}", "slot": "join"}
    if session < 2 * COMMANDS:
        return {**words, "lane": "chat", "work_class": "command"}
    return {**words, "lane": "chat", "slot": "join"}


# --- claims as the store grows -------------------------------------------------------------------------------------


def run_on_files(place: Path, *, sizes: Sequence[int], rounds: int, claims: int, say: Say) -> list[Cost]:
    """Measure every way on a file of every size."""
    with tempfile.TemporaryDirectory(dir=place) as folder:
        queues = {
            size: holdfast.connect(str(Path(folder) / f"sessions-{size}.db"), durability="relaxed") for size in sizes
        }
        return _measure(queues, rounds, claims, say)


def run_on_server(arena: Arena, *, sizes: Sequence[int], rounds: int, claims: int, say: Say) -> list[Cost]:
    """Measure every way on a database of every size."""
    names = {size: arena.make() for size in sizes}
    try:
        for name in names.values():
            arena.ask(f"alter database {name} set synchronous_commit = off")
        queues = {size: holdfast.connect(arena.url(name)) for size, name in names.items()}
        return _measure(queues, rounds, claims, say)
    finally:
        for name in names.values():
            arena.drop(name)


def _measure(queues: dict[int, holdfast.Queue], rounds: int, claims: int, say: Say) -> list[Cost]:
    try:
        for size, queue in queues.items():
            say(f"sessions: {size:,} batches")
            fill(queue, size)
        taken: dict[str, dict[int, list[float]]] = {}
        for number in range(rounds):
            say(f"sessions: round {number + 1} of {rounds}")
            for way in WAYS:
                # The sizes take turns claim by claim, so that a noisy moment hits them all.
                for _ in range(claims):
                    for size, queue in queues.items():
                        for name, seconds in _serve(queue, way).items():
                            taken.setdefault(name, {}).setdefault(size, []).append(seconds)
        return [Cost(name, {size: median(took) for size, took in found.items()}) for name, found in taken.items()]
    finally:
        for queue in queues.values():
            queue.close()


def _serve(queue: holdfast.Queue, way: Way) -> dict[str, float]:
    begun = time.perf_counter()
    if way.session is None:
        claim = queue.claim_any_session(limit=_RUN, **way.words)
    else:
        claim = queue.claim_session(way.session, limit=_RUN, **way.words)
    took = {way.name: time.perf_counter() - begun}
    if way.finds != (claim is not None):
        raise RuntimeError(f"{way.name}: {claim} was claimed")
    if claim is None:
        return took
    begun = time.perf_counter()
    queue.settle(claim, holdfast.Done())
    if len(claim.entries) == _RUN:
        took[SETTLED] = time.perf_counter() - begun
    for job in claim.entries:
        begun = time.perf_counter()
        _enqueue_again(queue, job)
        took[ENQUEUED] = time.perf_counter() - begun
    return took


def _enqueue_again(queue: holdfast.Queue, job: holdfast.Job) -> None:
    batch = job.entry
    if batch is None:
        raise RuntimeError("a job that is no batch was claimed")
    queue.enqueue(
        job.kind,
        job.payload,
        lane=job.lane,
        tenant=job.tenant,
        session=batch.session,
        work_class=batch.work_class,
        slot=batch.slot,
    )


# --- a crew --------------------------------------------------------------------------------------------------------


def run_crew_on_server(arena: Arena, *, turns: int) -> WorkerProcesses:
    """Let one worker and then eight serve 64 sessions, each turn of which takes 50 milliseconds."""
    name = arena.make()
    try:
        arena.ask(f"alter database {name} set synchronous_commit = off")
        return _crew(lambda: holdfast.connect(arena.url(name)), turns)
    finally:
        arena.drop(name)


def run_crew_on_file(place: Path, *, turns: int) -> WorkerProcesses:
    """Let one worker and then eight serve 64 sessions of one file, each turn of which takes 50 milliseconds."""
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
    """Return how many turns a second these workers serve, until nothing is left."""
    words = {"kind": "chat.message", "payload": {"text": "hello"}}
    queues[0].enqueue_many([{**words, "session": f"crew-{n % sessions}"} for n in range(sessions * turns)])

    def serve(queue: holdfast.Queue, worker: str) -> None:
        while claim := queue.claim_any_session(worker=worker, limit=1):
            time.sleep(turn_seconds)
            queue.settle(claim, holdfast.Done())

    threads = [threading.Thread(target=serve, args=(queue, f"w{n}")) for n, queue in enumerate(queues)]
    begun = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    left = queues[0].counts().get("ready", 0)
    if left:
        raise RuntimeError(f"{left} batches were left")
    return sessions * turns / (time.perf_counter() - begun)
