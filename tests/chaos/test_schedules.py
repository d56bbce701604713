"""Eight processes fire the schedules of one store while its clock jumps: each tick has one job."""

from __future__ import annotations

import time
from collections import Counter
from datetime import UTC, datetime
from multiprocessing.connection import Connection

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
from tests.chaos.processes import Child, say

pytestmark = pytest.mark.slow("eight processes compete for some seconds")

PROCESSES = 8
ZONES = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Santiago", "Africa/Cairo")
# A moment before the clocks change in Berlin; the others change within the year that passes.
BEGIN = datetime(2026, 3, 28, 20, tzinfo=UTC)
# How much faster the clock of the store runs.
SPEED = 200_000


class JumpingClock:
    """A clock that runs fast, and for each process ahead of or behind those of the others."""

    def __init__(self, began: float, seed: int) -> None:
        self._began = began
        self._seed = seed

    def now(self) -> Now:
        real = time.time()
        passed_ms = round((real - self._began) * 1000 * SPEED)
        # Each process is up to an hour off, and jumps ten times a second.
        off_ms = hash((self._seed, int(real * 10))) % 7_200_000 - 3_600_000
        wall_ms = milliseconds_of(BEGIN) + passed_ms + off_ms
        return Now(wall_ms, round(real * 1000))


def queue_with_clock(url: str, clock: JumpingClock) -> holdfast.Queue:
    if url.startswith("postgresql:"):
        return queue_on(PostgresStore(url, clock=clock))
    return queue_on(SqliteStore(url, clock=clock))


def claim_until_stopped(pipe: Connection, url: str, began: float, seed: int) -> None:
    """Claim and settle jobs, which fires schedules, until stopped. An exception ends the process without a report."""
    queue = queue_with_clock(url, JumpingClock(began, seed))
    say(pipe)
    while not pipe.poll():
        claims = queue.claim_many(worker=f"w{seed}", lease=600)
        queue.settle_many([(claim, Done()) for claim in claims])
    queue.close()
    pipe.send("ended")


def test_each_tick_has_one_job_however_many_processes_fire(store_url: str) -> None:
    engine = open_engine(store_url)
    engine.prepare()
    began = time.time()
    setter = queue_with_clock(store_url, JumpingClock(began, 0))
    for zone in ZONES:
        setter.schedules.set(zone.replace("/", "."), kind="report", cron="15,45 */2 * * *", zone=zone)
    setter.schedules.set("interval", kind="report", every=3600)
    children = [Child(claim_until_stopped, store_url, began, seed) for seed in range(PROCESSES)]
    try:
        for child in children:
            child.hear()
        for child in children:
            child.tell()
        time.sleep(1.5)  # the duration of the competition; nothing is measured by it
        killed, *others = children
        killed.kill()
        time.sleep(0.5)  # as above
        for child in others:
            child.tell("end")
        assert [child.hear() for child in others] == ["ended"] * (PROCESSES - 1)
    finally:
        for child in children:
            child.kill()
    _check_ticks(engine.queue)
    assert engine.damage() == []
    setter.close()
    engine.queue.close()


def _check_ticks(queue: holdfast.Queue) -> None:
    page = queue.jobs(limit=1000)
    jobs = list(page)
    while page.cursor is not None:
        page = queue.jobs(after=page.cursor, limit=1000)
        jobs += page
    ticks = Counter((job.headers["holdfast-schedule"], job.headers["holdfast-tick"]) for job in jobs)
    assert max(ticks.values()) == 1
    for zone in ZONES:
        fired = sorted(datetime.fromisoformat(tick) for name, tick in ticks if name == zone.replace("/", "."))
        assert len(fired) > 10, zone
        parsed, tz = cron.parse("15,45 */2 * * *"), cron.zone_of(zone)
        for tick in fired:
            just_before = datetime_of(milliseconds_of(tick) - 1)
            assert next(cron.times_after(parsed, tz, just_before)) == tick
