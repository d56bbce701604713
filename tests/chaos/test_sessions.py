"""Processes that claim sessions are killed and stopped: every entry is processed once, in order, by one holder.

Each turn writes to the caller's table in the transaction of its settlement; the test checks that table. Claims and
settlements are recorded, and the history is checked; with a limit, also how many turns ran at once.
"""

from __future__ import annotations

import os
import random
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from holdfast import Done, Job, LeaseLost, Outcome, Released
from holdfast.domain.job import row_of
from holdfast.types import SessionClaim
from tests.chaos.actor import claimed, settled
from tests.chaos.checker import History, breaches
from tests.chaos.engines import Engine, open_engine
from tests.chaos.history import Act, Recorder, acts_in
from tests.chaos.processes import Child, say
from tests.chaos.test_limits import recount
from tests.support.job_states import all_events

pytestmark = pytest.mark.slow("processes are killed at random for some seconds")

SESSIONS = 6
SERVERS = 4
LEASE = 0.3
OFTEN = 1_000


def enqueue_until_stopped(pipe: Connection, url: str, name: str) -> None:
    """Enqueue into random sessions, each entry twice with its message id, until stopped."""
    queue, chance, made = open_engine(url).queue, random.Random(name), 0
    say(pipe)
    while not pipe.poll():
        made += 1
        fields: Any = {
            "session": f"s{chance.randrange(SESSIONS)}",
            "join": chance.choice([True, True, False]),
        }
        for _ in range(chance.choice([1, 2])):
            queue.enqueue("say", made, message_id=f"{name}-{made}", max_attempts=OFTEN, **fields)
        time.sleep(0.002)
    queue.close()


def process_until_killed(_pipe: Connection, url: str, folder: Path, name: str) -> None:
    """Process any ready session, sometimes too slowly, until killed."""
    server = Server(open_engine(url), folder, name)
    while True:
        server.serve_any(LEASE, 0.2)


class Server:
    """Processes turns and records claims and settlements."""

    def __init__(self, engine: Engine, folder: Path, name: str) -> None:
        self._engine = engine
        self._name = name
        self._chance = random.Random(name)
        self._recorder = Recorder(folder / f"{name}.log", name)

    def serve_any(self, lease: float, wait: float) -> None:
        """Process a turn, if there is one."""
        call = self._recorder.announce([])
        turn = self._engine.queue.sessions.claim_next(worker=self._name, limit=4, lease=lease, wait=wait)
        self._recorder.acknowledge(call, [] if turn is None else _claimed(turn))
        if turn is not None:
            with suppress(LeaseLost):
                self._serve(turn)

    def _serve(self, turn: SessionClaim) -> None:
        if self._chance.random() < 0.1:
            # Too slow: another process may have claimed it.
            time.sleep(LEASE * 1.2)
        first = turn
        if self._chance.random() < 0.3:
            more = self._engine.queue.sessions.checkpoint(turn)
            turn = turn if more is None else turn.joined(more)
        outcome: Outcome = Released() if self._chance.random() < 0.1 else Done()
        name = type(outcome).__name__.lower()
        call = self._recorder.announce(
            [Act(operation="settle", job=one.job.id, epoch=one.epoch, outcome=name) for one in first.claims]
        )
        try:
            jobs = {job.id: job for job in self._settle(turn, outcome)}
        except LeaseLost as lost:
            self._recorder.refused(call, lost.code)
            raise
        # What was taken at a checkpoint has no claim of its own in the history.
        self._recorder.acknowledge(
            call, [act for one in first.claims for act in settled(one, outcome, jobs[one.job.id])]
        )

    def _settle(self, turn: SessionClaim, outcome: Outcome) -> list[Job]:
        if isinstance(outcome, Released):
            return self._engine.queue.sessions.settle(turn, outcome)
        with self._engine.queue.transaction() as tx:
            for job in turn.entries:
                self._engine.write_ledger(tx, f"{turn.session}:{row_of(job).enqueue_seq}", turn.fencing_token)
            return tx.sessions.settle(turn, outcome)


def _claimed(turn: SessionClaim) -> list[Act]:
    """Return the acts of a claim, of which the first takes the room at a limit."""
    return [replace(claimed(claim), uncounted=place > 0) for place, claim in enumerate(turn.claims)]


def disturb(engine: Engine, url: str, folder: Path, seconds: float, seed: int) -> int:
    """Kill and stop processes for *seconds*, and until each session may have entries; return the number of kills."""
    chance, killed = random.Random(seed), 0
    started = SERVERS
    speaker = Child(enqueue_until_stopped, url, f"speaker{os.getpid()}")
    servers = [Child(process_until_killed, url, folder, f"w{number}") for number in range(SERVERS)]
    try:
        speaker.hear()
        speaker.tell()
        until = time.monotonic() + seconds
        while time.monotonic() < until or not killed or sum(engine.queue.counts().values()) <= 2 * SESSIONS:
            time.sleep(chance.uniform(0.1, 0.4))
            place = chance.randrange(SERVERS)
            if chance.random() < 0.4:
                servers[place].stop()
                time.sleep(LEASE * 1.5)
                servers[place].resume()
            else:
                servers[place].kill()
                servers[place] = Child(process_until_killed, url, folder, f"w{started}")
                started, killed = started + 1, killed + 1
        speaker.tell("end")
        speaker.end()
    finally:
        for child in [speaker, *servers]:
            child.kill()
    return killed


def drain(engine: Engine, folder: Path) -> None:
    """Process the remaining entries; those of killed processes are ready after their lease has expired."""
    server = Server(engine, folder, "last")
    while engine.queue.counts().keys() - {"done"}:
        server.serve_any(60, LEASE * 2)


def run(url: str, folder: Path, seconds: float, at_once: int | None) -> None:
    engine = open_engine(url)
    engine.prepare()
    if at_once is not None:
        engine.queue.limits.set("turns", kinds=["say"], key="tenant", concurrency=at_once)
    logs = folder / "logs"
    logs.mkdir()
    killed = disturb(engine, url, logs, seconds, seed=7)
    drain(engine, logs)
    served = defaultdict[str, list[tuple[int, int]]](list)
    for row, token in engine.ledger():
        session, _, place = row.rpartition(":")
        served[session].append((token, int(place)))
    made = engine.queue.counts().get("done", 0)

    assert killed > 0
    assert sum(map(len, served.values())) == made > SESSIONS
    for turns in served.values():
        places = [place for _, place in sorted(turns)]
        assert places == list(range(1, len(places) + 1))
    assert breaches(history(engine, logs, at_once)) == []
    assert engine.damage() == []
    if at_once is not None:
        # Nothing runs or waits at the limit.
        assert engine.queue.limits.show("default") == []
        assert recount(engine.queue) == ["ok"]
    engine.queue.close()


def history(engine: Engine, logs: Path, at_once: int | None) -> History:
    jobs: dict[str, Job] = {}
    page = engine.queue.jobs(limit=1000)
    jobs.update((job.id, job) for job in page)
    while page.cursor is not None:
        page = engine.queue.jobs(after=page.cursor, limit=1000)
        jobs.update((job.id, job) for job in page)
    events = all_events(engine.queue)
    return History(
        acts=[act for path in sorted(logs.glob("*.log")) for act in acts_in(path)],
        jobs=jobs,
        events=events,
        seen=[(event.job_id, event.number) for event in events],
        at_once={} if at_once is None else {"say": at_once},
        one_writer=engine.one_writer,
    )


@pytest.mark.parametrize("at_once", [None, 2])
def test_every_entry_is_processed_once_and_in_order_despite_kills(
    store_url: str, tmp_path: Path, at_once: int | None
) -> None:
    run(store_url, tmp_path, 3, at_once)


@pytest.mark.long
@pytest.mark.parametrize("at_once", [None, 2])
def test_every_entry_is_processed_once_and_in_order_for_a_minute(
    store_url: str, tmp_path: Path, at_once: int | None
) -> None:
    run(store_url, tmp_path, 60, at_once)
