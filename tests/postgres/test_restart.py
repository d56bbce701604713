"""The server crashes and restarts under load: nothing acknowledged is lost, nothing is settled twice."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import TypeVar

import pytest

import holdfast
from holdfast import Done, LeaseLost, Unavailable
from tests.chaos.processes import Child, say
from tests.chaos.test_writers import all_jobs
from tests.chaos.threads import wait_until
from tests.postgres.conftest import drop_schema
from tests.support.job_states import all_events
from tests.support.postgres_server import Server

SCHEMA = "holdfast_restart"

T = TypeVar("T")


class Busy:
    """Enqueues, claims and settles, repeats unanswered calls, and stores the results."""

    def __init__(self, url: str, name: str) -> None:
        self.queue = holdfast.connect(url, schema=SCHEMA)
        self.name = name
        self.made: list[str] = []
        self.settled: list[str] = []
        self.troubles: Counter[str] = Counter()

    def work(self) -> None:
        job_id = f"{self.name}-{len(self.made)}"
        self._insist(lambda: self.queue.enqueue("task", job_id=job_id))
        self.made.append(job_id)
        token = uuid.uuid4().hex
        claims = self._insist(lambda: self.queue.claim_many(limit=2, lease=600, lease_token=token))
        for claim in claims:
            try:
                self._insist(partial(self.queue.settle, claim, Done({"by": self.name})))
            except LeaseLost as lost:
                self.troubles[lost.code] += 1
            else:
                self.settled.append(claim.job.id)

    def _insist(self, call: Callable[[], T]) -> T:
        while True:
            try:
                return call()
            except Unavailable as trouble:
                self.troubles[trouble.code] += 1
                time.sleep(0.01)  # as a caller that retries with a pause


def be_busy(pipe: Connection, url: str, name: str) -> None:
    busy = Busy(url, name)
    say(pipe)
    while not pipe.poll():
        busy.work()
    busy.queue.close()
    pipe.send((busy.made, busy.settled, dict(busy.troubles)))


def _wait_for_work(queue: holdfast.Queue, more: int) -> None:
    """Wait until *more* further jobs are done."""

    def done() -> int:
        while True:
            try:
                return queue.counts().get("done", 0)
            except Unavailable:
                time.sleep(0.01)

    wanted = done() + more
    wait_until(lambda: done() >= wanted)


def _crash_under_load(server: Server, *, restarts: int, count: int) -> None:
    drop_schema(server.url, SCHEMA)
    queue = holdfast.connect(server.url, schema=SCHEMA)
    queue.migrate()
    children = [Child(be_busy, server.url, f"w{number}") for number in range(count)]
    try:
        for child in children:
            child.hear()
        for child in children:
            child.tell()
        for _ in range(restarts):
            _wait_for_work(queue, 5 * count)
            server.restart(immediate=True)
        _wait_for_work(queue, 5 * count)
        for child in children:
            child.tell("end")
        reports = [child.hear() for child in children]
    finally:
        for child in children:
            child.kill()
    queue.close()
    made = [job_id for made, _, _ in reports for job_id in made]
    settled = [job_id for _, settled, _ in reports for job_id in settled]
    troubles = sum((Counter(troubles) for _, _, troubles in reports), Counter())
    print(len(made), len(settled), dict(troubles))
    jobs = all_jobs(queue)
    assert set(made) <= jobs.keys()
    assert len(settled) == len(set(settled))
    assert {job.state for job in jobs.values() if job.id in set(settled)} == {"done"}
    ends = Counter(event.job_id for event in all_events(queue, limit=1000) if event.name == "done")
    assert set(ends.values()) == {1}
    assert ends.keys() == {job.id for job in jobs.values() if job.state == "done"}
    # Otherwise the run proved nothing; a lease of ten minutes does not expire within a few seconds.
    assert sum(troubles.values()) >= restarts
    assert troubles["lease_lost"] == 0
    queue.close()


@pytest.mark.slow("a server or processes of its own are started")
def test_crashes_under_load_lose_nothing_and_settle_nothing_twice(server: Server) -> None:
    _crash_under_load(server, restarts=3, count=4)


@pytest.mark.long
def test_many_crashes_under_load_lose_nothing_and_settle_nothing_twice(server: Server) -> None:
    _crash_under_load(server, restarts=40, count=8)


def test_the_doctor_finds_nothing_wrong_with_a_server_that_syncs(server: Server) -> None:
    with holdfast.connect(server.url, schema=SCHEMA) as queue:
        findings = {finding.name: finding.status for finding in queue.admin.report().findings}
    assert findings["PostgreSQL"] == findings["disk"] == findings["durability"] == findings["schema"] == "ok"
