"""Pick-up across processes: from the call of enqueue in one process to the start of the handler in another.

A candidate without notifications polls every millisecond. Each job contains a monotonic timestamp; processes of one
machine share this clock.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import holdfast
from bench.candidates import (
    Candidate,
    CandidateFailedError,
    Durability,
    Engine,
    Location,
    PythonSession,
    Session,
)
from bench.child import ChildSession
from bench.failures import Failures, measure_or_record_failure
from bench.holdfast_candidates import HoldfastSession
from bench.peer_candidates import HueySession, LiteQueueSession, PersistQueueSession
from bench.rounds import Fresh
from bench.statement_cost import StatementsSession

ROOT = Path(__file__).resolve().parents[1]
_POLL_SECONDS = 0.001
_PATIENCE_SECONDS = 60
Note = Callable[[int], None]


class Latency(NamedTuple):
    """The seconds from call to handler of each job, over all rounds."""

    candidate: str
    durability: Durability
    seconds: list[float]

    def percentile(self, part: float) -> float:
        """Return the value below which the fraction *part* of all values lies."""
        ranked = sorted(self.seconds)
        return ranked[min(len(ranked) - 1, int(part * len(ranked)))]


class Transport(Protocol):
    """The calls that a pick-up needs from a Python candidate."""

    def send(self, stamp: int) -> None:
        """Enqueue one job with the timestamp."""

    def receive(self, note: Note) -> bool:
        """Take one job, record its timestamp and settle it; return False if there was none."""


class HoldfastTransport:
    """Claims that wait for a job."""

    def __init__(self, session: HoldfastSession) -> None:
        self._queue = session.queue

    def send(self, stamp: int) -> None:
        """Enqueue one job."""
        self._queue.enqueue("pickup", stamp)

    def receive(self, note: Note) -> bool:
        """Claim, waiting for up to a second."""
        claim = self._queue.claim(wait=1.0)
        if claim is None:
            return False
        note(claim.job.payload)
        self._queue.settle(claim, holdfast.Done())
        return True


class HueyTransport:
    """Polls huey's queue."""

    def __init__(self, session: HueySession) -> None:
        self._huey = session.huey
        self._noted: list[int] = []
        self._task = self._huey.task(name="pickup")(self._noted.append)

    def send(self, stamp: int) -> None:
        """Enqueue one task."""
        self._task(stamp)

    def receive(self, note: Note) -> bool:
        """Take and run one task."""
        task = self._huey.dequeue()
        if task is None:
            return False
        self._huey.execute(task)
        note(self._noted.pop())
        return True


class LiteQueueTransport:
    """Polls litequeue."""

    def __init__(self, session: LiteQueueSession) -> None:
        self._queue = session.queue

    def send(self, stamp: int) -> None:
        """Put one message."""
        self._queue.put(str(stamp))

    def receive(self, note: Note) -> bool:
        """Pop one message and mark it done."""
        message = self._queue.pop()
        if message is None:
            return False
        note(int(message.data))
        self._queue.done(message.message_id)
        return True


class PersistQueueTransport:
    """Polls persist-queue."""

    def __init__(self, session: PersistQueueSession) -> None:
        self._queue = session.queue

    def send(self, stamp: int) -> None:
        """Put one item."""
        self._queue.put(stamp)

    def receive(self, note: Note) -> bool:
        """Get one item and acknowledge it."""
        try:
            item = self._queue.get(block=False, raw=True)
        except import_module("persistqueue").Empty:
            return False
        note(item["data"])
        self._queue.ack(id=item["pqid"])
        return True


def _ignored(stamp: int) -> None:
    del stamp


def _transport(session: Session) -> Transport:
    match session:
        case HoldfastSession():
            return HoldfastTransport(session)
        case HueySession():
            return HueyTransport(session)
        case LiteQueueSession():
            return LiteQueueTransport(session)
        case PersistQueueSession():
            return PersistQueueTransport(session)
        case StatementsSession():
            return session
        case _:
            raise TypeError(f"{type(session).__name__} has no transport")


# --- the receiving process -----------------------------------------------------------------------------------------


def receive(candidate: Candidate, location: Location, count: int) -> list[float]:
    """Receive *count* jobs and return the seconds of each."""
    session = candidate.open(location)
    post = _transport(session)
    taken: list[float] = []
    # The receiver sends itself a first job; when it arrives, the receiver is warm.
    post.send(0)
    while not post.receive(_ignored):
        time.sleep(_POLL_SECONDS)
    print(json.dumps({"ready": True}), flush=True)  # noqa: T201  # the parent waits for this line
    patience = time.monotonic() + _PATIENCE_SECONDS
    while len(taken) < count and time.monotonic() < patience:
        if not post.receive(lambda stamp: taken.append((time.monotonic_ns() - stamp) / 1e9)):
            time.sleep(_POLL_SECONDS)
    session.close()
    return taken


# --- the sending process -------------------------------------------------------------------------------------------


def run_pickup(
    engine: Engine, candidates: Sequence[Candidate], fresh: Fresh, *, rounds: int, count: int, failures: Failures
) -> list[Latency]:
    """Measure each candidate in each round; a peer that fails is only listed in *failures*."""
    able = [one for one in candidates if "pick-up" in one.scenarios]
    latencies = {one.label: Latency(one.name, one.durability, []) for one in able}
    for _ in range(rounds):
        for candidate in candidates:
            if candidate.label in latencies:
                measure = partial(_one_round, engine, candidate, fresh, count)
                taken = measure_or_record_failure(candidate, "pick-up", failures, measure)
                if taken is None:
                    del latencies[candidate.label]
                else:
                    latencies[candidate.label].seconds.extend(taken)
    return list(latencies.values())


def _one_round(engine: Engine, candidate: Candidate, fresh: Fresh, count: int) -> list[float]:
    with fresh() as location:
        sender = candidate.open(location)
        try:
            if isinstance(sender, ChildSession):
                return _between_children(candidate, sender, location, count)
            assert isinstance(sender, PythonSession)  # noqa: S101  # there is no other
            return _between_pythons(engine, candidate, _transport(sender), location, count)
        finally:
            sender.close()


def _between_pythons(
    engine: Engine, candidate: Candidate, post: Transport, location: Location, count: int
) -> list[float]:
    options = [engine, candidate.name, candidate.durability, str(location), str(count)]
    command = [sys.executable, "-m", "bench.receiver", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as receiver:  # noqa: S603
        assert receiver.stdout is not None  # noqa: S101  # it has a pipe
        receiver.stdout.readline()
        _send_spread(count, lambda: post.send(time.monotonic_ns()))
        answer: dict[str, Any] = json.loads(receiver.stdout.readline())
    return _complete(candidate, answer, count)


def _between_children(candidate: Candidate, sender: ChildSession, location: Location, count: int) -> list[float]:
    receiver = candidate.open(location)
    assert isinstance(receiver, ChildSession)  # noqa: S101  # the same candidate opened it
    try:
        receiver.request("receive", count)
        receiver.answer()
        _send_spread(count, lambda: sender.ask("send", 1))
        return _complete(candidate, receiver.answer(), count)
    finally:
        receiver.close()


def _send_spread(count: int, send: Callable[[], object]) -> None:
    # Random gaps avoid synchronization with polling.
    gaps = random.Random(7)  # noqa: S311  # no secret
    for _ in range(count):
        time.sleep(gaps.uniform(0.004, 0.014))
        send()


def _complete(candidate: Candidate, answer: dict[str, Any], count: int) -> list[float]:
    taken: list[float] = answer["taken"]
    if len(taken) != count:
        raise CandidateFailedError(f"{candidate.label} delivered {len(taken)} of {count} jobs")
    return taken
