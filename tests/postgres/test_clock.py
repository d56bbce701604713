"""The server's clock decides: a client whose own clock is hours off changes nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Done, LeaseLost
from tests.chaos.processes import PATIENCE_SECONDS
from tests.chaos.threads import wait_until
from tests.support.job_states import claimed

# A machine whose wall clock is *hours* off. It runs each program it is sent and prints what the program returns.
SHIFTED = """
import sys, time
hours = float(sys.argv[1])
seconds, nanoseconds = time.time, time.time_ns
time.time = lambda: seconds() + hours * 3600
time.time_ns = lambda: nanoseconds() + int(hours * 3600 * 1_000_000_000)
import datetime, json, threading
class Shifted(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return datetime.datetime.fromtimestamp(time.time(), tz)
datetime.datetime = Shifted
import holdfast
for line in sys.stdin:
    program, url, schema = json.loads(line)
    with holdfast.connect(url, schema=schema) as queue:
        known = {"queue": queue, "holdfast": holdfast, "threading": threading, "result": None}
        exec(program, known)
    print(json.dumps(known["result"]), flush=True)
"""
HOURS = [-6.0, 6.0]


class Machine:
    """Runs programs, which use `queue` and set `result`."""

    def __init__(self, hours: float) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", SHIFTED, str(hours)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, program: str, url: str, schema: str) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([program, url, schema]) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


@pytest.fixture(scope="module", params=HOURS)
def machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    made = Machine(request.param)
    with made.process:
        yield made


class TestAMachineWhoseClockIsOff:
    def test_its_jobs_are_due_when_they_should_be(
        self, queue: holdfast.Queue, url: str, schema: str, machine: Machine
    ) -> None:
        program = 'queue.enqueue("mail", job_id="now"); queue.enqueue("mail", job_id="later", delay=3600)'
        machine.run(program, url, schema)
        assert [claim.job.id for claim in queue.claim_many()] == ["now"]
        now, later = queue.get("now"), queue.get("later")
        assert later.state == "scheduled"
        assert abs(later.due_at - now.due_at - timedelta(hours=1)) < timedelta(minutes=10)

    def test_it_takes_no_job_from_a_living_holder(
        self, queue: holdfast.Queue, url: str, schema: str, machine: Machine
    ) -> None:
        queue.enqueue("mail", job_id="held")
        claim = claimed(queue, lease=600)
        program = "result = queue.claim() is None"
        assert machine.run(program, url, schema) is True
        assert queue.settle(claim, Done()).epoch == 1

    @pytest.mark.slow("a server or processes of its own are started")
    def test_its_own_lease_is_neither_shorter_nor_longer(
        self, queue: holdfast.Queue, url: str, schema: str, machine: Machine
    ) -> None:
        queue.enqueue("mail", job_id="short")
        machine.run("queue.claim(lease=0.2)", url, schema)
        # If the lease were hours too long, the claim would return nothing; the wait is for the lease alone.
        again = claimed(queue, wait=PATIENCE_SECONDS, lease=600)
        assert (again.job.id, again.epoch) == ("short", 2)

        queue.enqueue("mail", job_id="long")
        program = """
claim = queue.claim(lease=600)
queue.heartbeat(claim)
result = [claim.job.id, queue.settle(claim, holdfast.Done()).state]
"""
        assert machine.run(program, url, schema) == ["long", "done"]

    def test_its_late_holder_is_refused_like_any_other(
        self, queue: holdfast.Queue, url: str, schema: str, machine: Machine
    ) -> None:
        program = """
claim = queue.claim(lease=0.1)
result = None
while result is None:
    threading.Event().wait(0.05)
    try:
        queue.progress(claim, percent=1)
    except holdfast.LeaseLost as lost:
        result = lost.code
"""
        queue.enqueue("mail")
        assert machine.run(program, url, schema) == "lease_lost"

    def test_its_events_and_attempts_carry_the_servers_time(
        self, queue: holdfast.Queue, url: str, schema: str, machine: Machine
    ) -> None:
        before = queue.enqueue("mail", job_id="before").job.enqueued_at
        program = """
queue.enqueue("mail", job_id="theirs", events="all")
for claim in queue.claim_many():
    queue.settle(claim, holdfast.Done())
"""
        machine.run(program, url, schema)
        after = queue.enqueue("mail", job_id="after").job.enqueued_at
        theirs = queue.get("theirs")
        assert theirs.finished_at is not None
        assert before <= theirs.enqueued_at <= theirs.finished_at <= after


def test_a_lease_ends_by_the_servers_clock_although_ours_stands_still(
    queue: holdfast.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.enqueue("mail")
    claim = claimed(queue, lease=0.1)

    def expired() -> bool:
        return queue.claim(lease=600) is not None

    wait_until(expired)
    with pytest.raises(LeaseLost):
        queue.settle(claim, Done())
