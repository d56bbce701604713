"""Dependencies, groups and limits: whatever waits is found again, by any sequence of calls and under kills."""

from __future__ import annotations

import contextlib
import random
import time
from multiprocessing.connection import Connection
from typing import Any

import pytest

import holdfast
from holdfast import Conflict, Done, Failed, LeaseLost, Queue
from holdfast.client.queue_state import state_of
from holdfast.errors import KindRetired
from holdfast.operations import flow_limits
from holdfast.storage.runners import SyncRunner
from tests.chaos.engines import Engine, open_engine
from tests.chaos.processes import PATIENCE_SECONDS, Child

# Whatever waits has a wake row, or something that appends one in its own commit.
STUCK = """
    select 'end was not counted', e.parent, e.child from {edge} e join {job} p on p.seq = e.parent
     where e.ended is null and p.finished_at_ms is not null
       and (e.child < 0 or e.child in (select seq from {row} where state = 'dependent'))
       and not exists (select 1 from {wake} where target = 'parent' and number = e.parent)
       and not exists (select 1 from {wake} where target = 'child' and number = e.child)
    union all
    select 'parent is not awaited', e.parent, e.child from {edge} e join {job} p on p.seq = e.parent
     where e.ended is null and p.finished_at_ms is null and p.awaited = 0
       and (e.child < 0 or e.child in (select seq from {row} where state = 'dependent'))
       and not exists (select 1 from {wake} where target = 'child' and number = e.child)
    union all
    select 'job depends on none', seq, 0 from {row}
     where state = 'dependent'
       and not exists (select 1 from {edge} where child = seq and ended is null)
       and not exists (select 1 from {wake} where target = 'child' and number = seq)
    union all
    select 'group has not ended', number, 0 from {group}
     where sealed = 1 and ended_at_ms is null and done + failed + cancelled + retired >= members
       and not exists (select 1 from {wake} where target = 'group' and number = {group}.number)
    union all
    select 'schedule has no tick', number, 0 from {schedule}
     where paused = 0 and not exists (select 1 from {wake} where target = 'schedule' and number = {schedule}.number)
"""
TABLES = ("edge", "job", "wake", "schedule")


def check(engine: Engine) -> None:
    """Assert that nothing waits without a wake row."""
    prefix = "holdfast_" if engine.one_writer else "holdfast."
    names = {name: prefix + name for name in TABLES}
    names |= {"row": f"{prefix}job_row", "group": f"{prefix}{'group' if engine.one_writer else 'job_group'}"}
    with engine.queue.transaction() as transaction:
        assert list(transaction.execute(STUCK.format(**names))) == []


def check_gates(queue: Queue) -> None:
    """Assert that gates count every running job, and that no job is parked where nothing looks."""
    [finding] = SyncRunner(state_of(queue).store).read(flow_limits.findings)
    assert finding.status == "ok", finding


def settle(queue: Queue, chance: random.Random, worker: str, lease: float = 30.0) -> None:
    for claim in queue.claim_many(worker=worker, limit=chance.randint(1, 4), lease=lease):
        # A process that was stopped for longer than its lease is refused.
        with contextlib.suppress(LeaseLost):
            queue.settle(claim, Done() if chance.random() < 0.8 else Failed("no", permanent=True))


def add(queue: Queue, chance: random.Random, number: int) -> None:
    """Enqueue a group, whose members depend on each other and on others."""
    known = [job.id for job in queue.jobs(limit=20) if not job.id.startswith("holdfast:")]
    callbacks: Any = {event: {"kind": event} for event in ("on_end", "on_first_failure")}
    with queue.group(f"g{number}", **callbacks, seal=chance.random() < 0.8) as group:
        for place in range(chance.randint(0, 5)):
            after: list[Any] = chance.sample(known, min(len(known), chance.randint(0, 2)))
            after += [chance.randrange(place)] if place and chance.random() < 0.5 else []
            options: Any = {"after": after, "on_failed": chance.choice(["cancel", "run"])} if after else {}
            group.enqueue(f"k{chance.randrange(3)}", **options)


@pytest.mark.slow("it makes some hundred calls")
@pytest.mark.parametrize("seed", range(2))
def test_nothing_waits_without_a_wake_row_after_any_call(store_url: str, seed: int) -> None:
    engine, chance = open_engine(store_url), random.Random(seed)
    engine.prepare()
    queue = engine.queue
    queue.schedules.set("often", every=3600, kind="k0")
    queue.limits.set("one", kinds=["k0"], concurrency=1)
    queue.limits.set("rate", kinds=["k1"], key="tenant", rate=1_000, per=1, burst=2)
    for step in range(60):
        ids = [job.id for job in queue.jobs(limit=50)] or ["none"]
        match chance.randrange(8):
            case 0 | 1:
                add(queue, chance, step)
            case 2 | 3:
                settle(queue, chance, "w")
            case 4:
                with contextlib.suppress(holdfast.JobNotFound, Conflict):
                    queue.cancel(chance.choice(ids))
            case 5:
                ended = [job.id for job in queue.jobs(state=["failed", "cancelled"])]
                with contextlib.suppress(holdfast.JobNotFound, Conflict, KindRetired):
                    queue.requeue(chance.choice(ended or ids), with_children=chance.random() < 0.7)
            case 6 if queue.groups.list():
                queue.groups.cancel(chance.choice(queue.groups.list()).name)
            case 7 if step % 3 == 0:
                queue.limits.set("one", kinds=["k0"], concurrency=chance.randint(1, 3))
            case _:
                queue.kinds.retire("k2")
                queue.kinds.restore("k2")
                queue.admin.prune(older_than=0)
        check(engine)
        check_gates(queue)
    _end(engine)
    check(engine)
    check_gates(queue)
    queue.close()


def work(pipe: Connection, url: str, seed: int) -> None:
    """Enqueue groups, claim and settle until killed."""
    chance = random.Random(seed)
    with holdfast.connect(url) as queue:
        pipe.send("ready")
        number = 0
        while True:
            settle(queue, chance, f"w{seed}", lease=0.4)
            if number < 5:
                with contextlib.suppress(holdfast.JobNotFound):
                    add(queue, chance, 100 * seed + number)
                number += 1


@pytest.mark.slow("processes are killed for some seconds")
@pytest.mark.parametrize("strikes", [8, pytest.param(80, marks=pytest.mark.long)])
def test_groups_and_dependencies_end_under_kills(store_url: str, strikes: int) -> None:
    engine, chance = open_engine(store_url), random.Random(strikes)
    engine.prepare()
    children = [Child(work, store_url, number) for number in range(3)]
    try:
        for strike in range(strikes):
            place = chance.randrange(3)
            children[place].hear()
            children[place].kill()
            children[place] = Child(work, store_url, 3 + strike)
            check(engine)
    finally:
        for child in children:
            child.kill()
    _end(engine)
    check(engine)
    assert engine.damage() == []
    engine.queue.close()


def _end(engine: Engine) -> None:
    """Run what is left, in one process, and assert that every group has ended with its callbacks, once each."""
    queue, until = engine.queue, time.monotonic() + PATIENCE_SECONDS
    for group in queue.groups.list(limit=1_000):
        if group.state == "open":
            queue.groups.cancel(group.name)
    while any(state not in {"done", "failed", "cancelled", "retired"} for state in queue.counts()):
        assert time.monotonic() < until, queue.counts()
        for claim in queue.claim_many(worker="last", limit=10):
            queue.settle(claim, Done())
    for group in queue.groups.list(limit=1_000):
        assert queue.groups.wait(group.name, timeout=PATIENCE_SECONDS).finished
