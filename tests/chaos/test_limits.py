"""Processes that are killed and stopped at random never exceed a limit by key, and no job is left behind."""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import Any

import pytest

import holdfast
from holdfast import Done, Failed, LeaseLost
from holdfast.errors import StoreBusy
from tests.chaos.engines import open_engine
from tests.chaos.processes import PATIENCE_SECONDS, Child

pytestmark = pytest.mark.slow("processes are killed and stopped for some seconds")

PROCESSES, STRIKES, JOBS, AT_ONCE = 3, 14, 25, 2
TENANTS = ("a", "b", "c")
KINDS = ("call", "shared", "later")
SET, CHANGED, REMOVED = STRIKES // 4, STRIKES // 2, 3 * STRIKES // 4
"""When a limit is set on the backlog of a kind, when another is lowered and raised, when the first is removed."""


def work(pipe: Connection, url: str, seed: int) -> None:
    """Claim and settle jobs until killed."""
    chance = random.Random(seed)
    with holdfast.connect(url) as queue:
        pipe.send("ready")
        while True:
            for claim in queue.claim_many(worker=f"w{seed}", limit=chance.randint(1, 4), lease=0.4):
                # A process that was stopped for longer than its lease is refused.
                with contextlib.suppress(LeaseLost):
                    # Ends without usage are plain, and append no wake row where none waits.
                    usage = {"tokens": chance.randint(0, 60)} if chance.random() < 0.5 else None
                    done = chance.random() < 0.8
                    queue.settle(claim, Done(usage=usage) if done else Failed("no", retry_after=0, usage=usage))


def test_limits_hold_under_kills_and_stops_and_all_jobs_end(store_url: str) -> None:
    engine = open_engine(store_url)
    engine.prepare()
    queue, chance = engine.queue, random.Random(1)
    queue.limits.set("tenant", kinds=["call"], key="tenant", concurrency=AT_ONCE)
    queue.limits.set("shared", kinds=["shared"], concurrency=1)
    queue.limits.set("rate", kinds=["call"], key="tag:model", rate=1_000, per=1, burst=50)
    queue.limits.set("tokens", kinds=["shared"], key="tenant", rate=3_000, per=1, burst=60, weight="tokens")
    queue.enqueue_many(
        [
            {
                "kind": kind,
                "payload": {"tokens": 1 + 40 * (n % 3)},
                "tenant": tenant,
                "tags": {"model": str(n % 2)},
                "max_attempts": 1_000,
            }
            for n in range(JOBS)
            for tenant in TENANTS
            for kind in KINDS
        ]
    )
    children = [Child(work, store_url, number) for number in range(PROCESSES)]
    try:
        for strike in range(STRIKES):
            _check(queue)
            place = chance.randrange(PROCESSES)
            if chance.random() < 0.5:
                children[place].kill()
                children[place] = Child(work, store_url, PROCESSES + strike)
            else:
                children[place].stop()
                _look(queue, chance.uniform(0.0, 0.6))
                children[place].resume()
            if strike == SET:
                _insist(partial(queue.limits.set, "later", kinds=["later"], concurrency=1))
                # What ran already runs on, until it ends or its lease expires.
                _look(queue, 1.0)
            elif strike == CHANGED:
                for concurrency in (1, AT_ONCE):
                    _insist(
                        partial(queue.limits.set, "tenant", kinds=["call"], key="tenant", concurrency=concurrency)
                    )
            elif strike == REMOVED:
                _insist(partial(queue.limits.remove, "later"))
            for _ in range(3):
                _look(queue, 0.03)
                if SET <= strike < REMOVED:
                    assert len(list(queue.jobs(state="running", kind="later"))) <= 1
    finally:
        for child in children:
            child.kill()
    _end(queue)
    assert queue.counts() == {"done": JOBS * len(TENANTS) * len(KINDS)}
    assert engine.damage() == []
    assert recount(queue) == ["ok"]
    queue.close()


def recount(queue: holdfast.Queue) -> list[str]:
    """Return what `doctor` says after it has counted the jobs at each gate."""
    return [finding.status for finding in queue.admin.report().findings if finding.name == "limits"]


def _insist(call: Callable[[], object]) -> None:
    """Call again while others hold the routing, as they may for long on a busy machine."""
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            call()
        except StoreBusy:
            assert time.monotonic() < until, "the routing is never free"
        else:
            return


def _look(queue: holdfast.Queue, seconds: float) -> None:
    """Check the limits for a while."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        _check(queue)


def _check(queue: holdfast.Queue) -> None:
    jobs = list(queue.jobs(state="running", limit=1_000))
    by_tenant = Counter(job.tenant for job in jobs if job.kind == "call")
    assert max(by_tenant.values(), default=0) <= AT_ONCE
    assert sum(job.kind == "shared" for job in jobs) <= 1


def _end(queue: holdfast.Queue) -> None:
    """Run what is left, in one process; what the killed ones held ends when its lease expires."""
    until = time.monotonic() + PATIENCE_SECONDS
    while set(queue.counts()) - {"done"}:
        assert time.monotonic() < until, queue.counts()
        for claim in queue.claim_many(worker="last", limit=10, lease=30):
            queue.settle(claim, Done())
        if turn := queue.sessions.claim_next(worker="last", lease=30):
            queue.sessions.settle(turn, Done())


# --- changes under load --------------------------------------------------------------------------------------------

STEPS: tuple[dict[str, Any] | None, ...] = (
    None,
    {"key": "tenant", "concurrency": 2},
    {"key": "tenant", "concurrency": 5},
    {"key": "tenant", "concurrency": 1},
    {"concurrency": 3},
    None,
    {"key": "tenant", "concurrency": 2, "rate": 5_000, "per": 1},
    {"key": "tenant", "rate": 5_000, "per": 1},
    {"key": "tenant", "concurrency": 1},
)
"""The limit after each change: none, newly set on a backlog, raised, lowered, with another key, removed, set again,
without a number at once, and with one."""
EACH, WAITING = 30, 6
"""How many jobs end before the next change; how many turns of each tenant come with it, and twice as many jobs."""


def hold_and_settle(pipe: Connection, url: str, seed: int) -> None:
    """Claim jobs and turns, hold them for a moment and settle them, until told to end."""
    chance = random.Random(seed)
    with holdfast.connect(url) as queue:
        pipe.send("ready")
        while not pipe.poll():
            claims = queue.claim_many(worker=f"w{seed}", limit=chance.randint(1, 4), lease=60)
            turn = queue.sessions.claim_next(worker=f"w{seed}", lease=60)
            time.sleep(chance.uniform(0.0, 0.01))  # what a handler takes; nothing is measured by it
            if turn is not None:
                queue.sessions.settle(turn, Done())
            queue.settle_many([(claim, Done()) for claim in claims])
    pipe.send("ended")


def test_a_limit_that_changes_on_a_backlog_under_load_is_kept_and_leaves_nothing_behind(store_url: str) -> None:
    engine = open_engine(store_url)
    engine.prepare()
    queue = engine.queue
    made = 0
    children = [Child(hold_and_settle, store_url, number) for number in range(PROCESSES)]
    try:
        for before, step in pairwise((None, *STEPS)):
            queue.enqueue_many(
                [{"kind": "call", "tenant": tenant} for _ in range(2 * WAITING) for tenant in TENANTS]
                + [
                    {"kind": "say", "tenant": tenant, "session": f"{made + n}"}
                    for n in range(WAITING)
                    for tenant in TENANTS
                ]
            )
            made += 3 * WAITING * len(TENANTS)
            if step is not None:
                _insist(partial(queue.limits.set, "changing", kinds=["call", "say"], **step))
            elif queue.limits.list():
                _insist(partial(queue.limits.remove, "changing"))
            # Of what ran before a new limit, all is counted except jobs that were just ending.
            same = before is not None and step is not None and before.get("key") == step.get("key")
            _watch(queue, step or {}, time.time(), counts_all=same)
        for child in children:
            child.tell("end")
        for child in children:
            assert (child.hear(), child.hear()) == ("ready", "ended")
    finally:
        for child in children:
            child.kill()
    assert recount(queue) == ["ok"]
    _end(queue)
    assert queue.counts() == {"done": made}
    assert recount(queue) == ["ok"]
    assert [use for tenant in TENANTS for use in queue.limits.show(tenant) if use.running or use.parked] == []
    assert engine.damage() == []
    queue.close()


def _watch(queue: holdfast.Queue, limit: dict[str, Any], since: float, *, counts_all: bool) -> None:
    """Check a limit that has changed, until some jobs have ended, or all of them."""
    first = queue.counts().get("done", 0)
    until = time.monotonic() + PATIENCE_SECONDS
    while (counts := queue.counts()).get("done", 0) < min(first + EACH, sum(counts.values())):
        assert time.monotonic() < until, counts
        by_key: dict[str, list[holdfast.Job]] = {}
        for job in queue.jobs(state="running", limit=1_000):
            by_key.setdefault(job.tenant if "key" in limit else "all", []).append(job)
        for key, jobs in by_key.items():
            # What ran before the change runs on, and nothing starts beside it until there is room.
            started = [job for job in jobs if job.started_at is not None and job.started_at.timestamp() > since]
            running = jobs if counts_all and started else started
            assert len(running) <= limit.get("concurrency", len(jobs)), (key, limit, jobs)
