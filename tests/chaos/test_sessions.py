"""Processes that claim sessions are killed and stopped: every entry is processed once, in order, by one holder.

Each turn writes to the caller's table in the transaction of its settlement; the test checks that table.
"""

from __future__ import annotations

import os
import random
import time
from collections import defaultdict
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import pytest

from holdfast import Done, LeaseLost, Queue, Released
from holdfast.domain.job import row_of
from holdfast.types import SessionClaim
from tests.chaos.engines import Engine, open_engine
from tests.chaos.processes import Child, say

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


def process_until_killed(_pipe: Connection, url: str, name: str) -> None:
    """Process any ready session, sometimes too slowly, until killed."""
    engine, chance = open_engine(url), random.Random(name)
    while True:
        claim = engine.queue.sessions.claim_next(worker=name, limit=4, lease=LEASE, wait=0.2)
        if claim is not None:
            with suppress(LeaseLost):
                serve(engine, claim, chance)


def serve(engine: Engine, turn: SessionClaim, chance: random.Random) -> None:
    if chance.random() < 0.1:
        # Too slow: another process may have claimed it.
        time.sleep(LEASE * 1.2)
    if chance.random() < 0.3:
        more = engine.queue.sessions.checkpoint(turn)
        turn = turn if more is None else turn.joined(more)
    if chance.random() < 0.1:
        engine.queue.sessions.settle(turn, Released())
        return
    with engine.queue.transaction() as tx:
        for job in turn.entries:
            engine.write_ledger(tx, f"{turn.session}:{row_of(job).enqueue_seq}", turn.fencing_token)
        tx.sessions.settle(turn, Done())


def disturb(engine: Engine, url: str, seconds: float, seed: int) -> int:
    """Kill and stop processes for *seconds*, and until each session may have entries; return the number of kills."""
    chance, killed = random.Random(seed), 0
    started = SERVERS
    speaker = Child(enqueue_until_stopped, url, f"speaker{os.getpid()}")
    servers = [Child(process_until_killed, url, f"w{number}") for number in range(SERVERS)]
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
                servers[place] = Child(process_until_killed, url, f"w{started}")
                started, killed = started + 1, killed + 1
        speaker.tell("end")
        speaker.end()
    finally:
        for child in [speaker, *servers]:
            child.kill()
    return killed


def drain(engine: Engine, queue: Queue) -> None:
    """Process the remaining entries; those of killed processes are ready after their lease has expired."""
    while queue.counts().keys() - {"done"}:
        claim = queue.sessions.claim_next(limit=100, lease=60, wait=LEASE * 2)
        if claim is not None:
            serve(engine, claim, random.Random(1))


def run(url: str, seconds: float) -> None:
    engine = open_engine(url)
    engine.prepare()
    killed = disturb(engine, url, seconds, seed=7)
    drain(engine, engine.queue)
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
    assert engine.damage() == []
    engine.queue.close()


def test_every_entry_is_processed_once_and_in_order_despite_kills(store_url: str) -> None:
    run(store_url, 3)


@pytest.mark.long
def test_every_entry_is_processed_once_and_in_order_for_a_minute(store_url: str) -> None:
    run(store_url, 60)
