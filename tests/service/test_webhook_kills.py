"""A sender that is killed at every statement: each event of each subscription arrives, twice with the same id."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

import holdfast
from holdfast import Done, Queue
from tests.support.job_states import start
from tests.support.postgres_server import fresh_database
from tests.support.receivers import NO_CONTENT, TIMEOUT, receiver, until
from tests.support.webhook_process import AheadClock

# Before the endpoint is written, before the position and the deliveries are, before and after their commit, before
# and after the commit of a claim, and before and after that of an outcome, when the receiver has the delivery. On a
# server, those that matter most; there a commit may be that of a transaction which runs at the same time.
STAGES = {
    "sqlite": (
        "webhook_write",
        "webhook_position_write",
        "job_insert",
        "job_insert>commit",
        "job_insert>committed",
        "job_claim>commit",
        "job_claim>committed",
        "job_done_held>commit",
        "job_done_held>committed",
    ),
    "postgres": (
        "webhook_position_write",
        "job_insert>commit",
        "ready_lease|job_claim|plain_claim>committed",
        "jobs_succeed|plain_settle",
    ),
}
AN_HOUR = 3_600


@pytest.fixture(params=STAGES)
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def url(engine: str, tmp_path: Path) -> Iterator[str]:
    """An empty store that several processes open."""
    with fresh_database() if engine == "postgres" else nullcontext(str(tmp_path / "jobs.db")) as url:
        with holdfast.connect(url) as queue:
            queue.migrate()
        yield url


@contextmanager
def run(url: str, hours: int, stage: str = "") -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "tests.support.webhook_process", url, str(hours * AN_HOUR), stage]
    with subprocess.Popen(command) as process:
        try:
            yield process
        finally:
            process.kill()


def finish(queue: Queue) -> str:
    job = queue.enqueue("mail").job
    queue.settle(start(queue, job), Done())
    return job.id


@pytest.mark.slow("it starts up to ten processes")
def test_each_event_of_each_subscription_arrives_wherever_the_sender_is_killed(url: str, engine: str) -> None:
    expected: set[tuple[str, str]] = set()
    with receiver() as target:
        with holdfast.connect(url) as queue:
            hooks = [queue.webhooks.add(f"{target.url}/{number}").webhook for number in range(2)]
        for hour, stage in enumerate(STAGES[engine]):
            # Each round is an hour later: the leases of the process that was killed have expired.
            with holdfast.connect(url, clock=AheadClock(hour * AN_HOUR)) as queue:
                expected |= {(job_id, hook.id) for job_id in (finish(queue), finish(queue)) for hook in hooks}
            with run(url, hour, stage) as process:
                assert process.wait(TIMEOUT) == -9, stage
        with run(url, len(STAGES[engine])), holdfast.connect(url) as queue:
            done = ["done"] * len(expected)
            until(lambda: [one.state for one in queue.jobs(lane="holdfast.webhooks", limit=1000)] == done)

    bodies: dict[str, bytes] = {}
    for one in target.requests:
        assert bodies.setdefault(one.id, one.body) == one.body
    arrived = {(json.loads(body)["data"]["job_id"], one.split("_", 2)[2]) for one, body in bodies.items()}
    assert arrived == expected
    assert len(bodies) == len(expected)


@pytest.mark.slow("it starts two processes")
def test_a_sender_killed_while_the_receiver_answers_sends_again_with_the_same_id(url: str) -> None:
    with receiver() as target:
        with holdfast.connect(url) as queue:
            queue.webhooks.add(target.url)
            finish(queue)
        with run(url, 0) as process:
            target.answering = lambda _handler, _received: process.kill()
            target.wait(1)
            assert process.wait(TIMEOUT) == -9
        target.answering = NO_CONTENT
        with run(url, 1), holdfast.connect(url) as queue:
            first, second = target.wait(2)[:2]
            until(lambda: [one.state for one in queue.jobs(lane="holdfast.webhooks")] == ["done"])

    assert (first.id, first.body) == (second.id, second.body)
