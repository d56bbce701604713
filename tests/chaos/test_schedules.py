"""Eight processes fire the schedules of one store while its clock jumps: each tick has one job.

The clock passes through the nights of a year in which clocks change in five zones, and jumps from one to the next.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import Synchronized

import pytest

import holdfast
from holdfast import Done
from holdfast.client.connect import queue_on
from holdfast.domain import cron
from holdfast.domain.clock import Now
from holdfast.domain.validation import datetime_of, milliseconds_of
from holdfast.storage.postgres.store import PostgresStore
from holdfast.storage.sqlite.store import SqliteStore
from tests.chaos.engines import open_engine
from tests.chaos.processes import PATIENCE_SECONDS, PROCESSES as CONTEXT, Child, say

pytestmark = pytest.mark.slow("eight processes compete for some seconds")

PROCESSES = 8
ZONES = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Santiago", "Africa/Cairo")
BEGIN = datetime(2026, 3, 1, tzinfo=UTC)
AROUND, STEP = timedelta(hours=3), timedelta(minutes=15)
FOLLOWING, FIXED = "15,45 */2 * * *", "15,45 0-3,23 * * *"
"""One that follows the clock into both of two equal hours, and one that runs once a day at its times."""


def nights(zone: str) -> list[datetime]:
    """Return when the clocks of a zone change within a year."""
    tz, found = cron.zone_of(zone), []
    times = [BEGIN + timedelta(minutes=30 * n) for n in range(2 * 24 * 365)]
    for before, after in pairwise(times):
        if before.astimezone(tz).utcoffset() != after.astimezone(tz).utcoffset():
            found.append(after)
    return found


class JumpingClock:
    """A clock that the test moves, and that is for each process ahead of or behind those of the others."""

    def __init__(self, base: Synchronized[int], seed: int) -> None:
        self._base = base
        self._seed = seed

    def now(self) -> Now:
        real = time.time()
        # Each process is up to an hour off, and jumps ten times a second.
        off_ms = random.Random(self._seed + int(real * 10)).randrange(-3_600_000, 3_600_000)
        return Now(self._base.value + off_ms, round(real * 1000))


def queue_with_clock(url: str, clock: JumpingClock) -> holdfast.Queue:
    if url.startswith("postgresql:"):
        return queue_on(PostgresStore(url, clock=clock))
    return queue_on(SqliteStore(url, clock=clock))


def claim_until_stopped(pipe: Connection, url: str, base: Synchronized[int], seed: int) -> None:
    """Claim and settle jobs, which fires schedules, until stopped. An exception ends the process without a report."""
    queue = queue_with_clock(url, JumpingClock(base, seed))
    say(pipe)
    while not pipe.poll():
        claims = queue.claim_many(worker=f"w{seed}", lease=600)
        queue.settle_many([(claim, Done()) for claim in claims])
    queue.close()
    pipe.send("ended")


def test_each_tick_has_one_job_however_many_processes_fire(store_url: str) -> None:
    engine = open_engine(store_url)
    engine.prepare()
    base: Synchronized[int] = CONTEXT.Value("q", milliseconds_of(BEGIN))
    setter = queue_with_clock(store_url, JumpingClock(base, 0))
    for zone in ZONES:
        for number, expression in enumerate((FOLLOWING, FIXED)):
            setter.schedules.set(_name(zone, number), kind="report", cron=expression, zone=zone)
    setter.schedules.set("interval", kind="report", every=3600)
    children = [Child(claim_until_stopped, store_url, base, 1_000 * (seed + 1)) for seed in range(PROCESSES)]
    try:
        for child in children:
            child.hear()
        for child in children:
            child.tell()
        changes = sorted((night, zone) for zone in ZONES for night in nights(zone))
        assert len(changes) == 2 * len(ZONES)
        for place, (night, zone) in enumerate(changes):
            _pass(setter, base, night, zone)
            if place == len(changes) // 2:
                children.pop().kill()
        for child in children:
            child.tell("end")
        assert [child.hear() for child in children] == ["ended"] * (PROCESSES - 1)
    finally:
        for child in children:
            child.kill()
    _check_ticks(engine.queue)
    assert engine.damage() == []
    setter.close()
    engine.queue.close()


def _name(zone: str, number: int) -> str:
    return f"{zone.replace('/', '.')}-{number}"


def _pass(queue: holdfast.Queue, base: Synchronized[int], night: datetime, zone: str) -> None:
    """Move the clock through a night, and wait until both schedules of the zone have fired after the change."""
    # Two zones may change in the same night: the clock does not go back.
    at = max(night - AROUND, datetime_of(base.value))
    while at < night + AROUND:
        at += STEP
        base.value = milliseconds_of(at)
        time.sleep(0.01)  # the duration of the competition; nothing is measured by it
    until = time.monotonic() + PATIENCE_SECONDS
    for number in range(2):
        while (last := queue.schedules.get(_name(zone, number)).last_at) is None or last < night:
            assert time.monotonic() < until, (zone, night, last)
            time.sleep(0.01)


def _check_ticks(queue: holdfast.Queue) -> None:
    page = queue.jobs(limit=1000)
    jobs = list(page)
    while page.cursor is not None:
        page = queue.jobs(after=page.cursor, limit=1000)
        jobs += page
    ticks = Counter((job.headers["holdfast-schedule"], job.headers["holdfast-tick"]) for job in jobs)
    assert max(ticks.values()) == 1
    for zone in ZONES:
        tz = cron.zone_of(zone)
        for number, expression in enumerate((FOLLOWING, FIXED)):
            fired = sorted(datetime.fromisoformat(tick) for name, tick in ticks if name == _name(zone, number))
            parsed = cron.parse(expression)
            for tick in fired:
                just_before = datetime_of(milliseconds_of(tick) - 1)
                assert next(cron.times_after(parsed, tz, just_before)) == tick
            for night in nights(zone):
                assert any(night <= tick <= night + AROUND + timedelta(hours=1) for tick in fired), (zone, night)
            if expression == FIXED:
                local = Counter(tick.astimezone(tz).strftime("%m-%d %H:%M") for tick in fired)
                assert max(local.values()) == 1, local
