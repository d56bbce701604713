"""A claim may wait for jobs: it returns when there is one, or after the timeout.

Every store must pass this file unchanged.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

import holdfast
from holdfast import Claim, Done, InvalidInput, Queue
from tests.support.claims import claim_one
from tests.support.clock import ManualClock
from tests.support.stores import Harness

LONG = 60.0


def claim_while(act: Callable[[], object], queue: Queue, **options: object) -> list[Claim]:
    """Start a claim that waits, call *act*, and return the claimed jobs."""
    got: list[Claim] = []
    waiting = threading.Thread(target=lambda: got.extend(queue.claim_many(wait=LONG, **options)))  # type: ignore[arg-type]
    waiting.start()
    act()
    waiting.join(LONG / 2)
    assert not waiting.is_alive(), "the claim was not woken"
    return got


def test_it_does_not_wait_if_there_are_jobs(queue: Queue) -> None:
    enqueued = queue.enqueue("mail")
    assert claim_one(queue, wait=LONG).job.id == enqueued.id


def test_without_jobs_it_returns_nothing_after_the_timeout(queue: Queue) -> None:
    assert queue.claim(wait=0.01) is None


def test_a_job_enqueued_during_the_wait_is_taken(queue: Queue, harness: Harness) -> None:
    other = harness.open()
    got = claim_while(lambda: other.enqueue("mail", job_id="a"), queue)
    assert [claim.job.id for claim in got] == ["a"]


def test_a_job_released_during_the_wait_is_taken(queue: Queue, harness: Harness) -> None:
    queue.enqueue("mail", job_id="a")
    held = claim_one(queue)
    other = harness.open()
    got = claim_while(lambda: other.settle(held, holdfast.Released()), queue)
    assert [claim.epoch for claim in got] == [2]


def test_a_lane_that_is_resumed_is_claimed_from(queue: Queue, harness: Harness) -> None:
    queue.enqueue("mail", job_id="a")
    queue.lanes.set("default", state="paused")
    other = harness.open()
    got = claim_while(lambda: other.lanes.set("default", state="active"), queue)
    assert [claim.job.id for claim in got] == ["a"]


def test_work_in_another_lane_is_not_taken(queue: Queue) -> None:
    queue.enqueue("mail", lane="other")
    assert queue.claim(wait=0.05) is None


def test_a_job_that_falls_due_during_the_wait_is_taken(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("mail", job_id="a", delay=30)
    got = claim_while(lambda: clock.advance(30), queue)
    assert [claim.job.id for claim in got] == ["a"]


def test_a_job_whose_lease_expires_during_the_wait_is_taken(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("mail", job_id="a")
    claim_one(queue, lease=30)
    got = claim_while(lambda: clock.advance(30), queue)
    assert [claim.epoch for claim in got] == [2]


def test_settle_and_claim_may_wait_too(queue: Queue, harness: Harness) -> None:
    queue.enqueue("mail")
    held = claim_one(queue)
    other = harness.open()
    answers: list[holdfast.types.SettledAndClaimed] = []
    waiting = threading.Thread(target=lambda: answers.append(queue.settle_and_claim([(held, Done())], wait=LONG)))
    waiting.start()
    assert other.wait(held.job.id, timeout=LONG).state == "done"
    other.enqueue("mail", job_id="b")
    waiting.join(LONG / 2)
    [answer] = answers
    assert answer.settlements[0].ok
    assert [claim.job.id for claim in answer.claims] == ["b"]


def test_several_callers_that_wait_for_one_job_do_not_share_it(queue: Queue) -> None:
    got: list[Claim] = []
    threads = [threading.Thread(target=lambda: got.extend(queue.claim_many(wait=0.5))) for _ in range(8)]
    for thread in threads:
        thread.start()
    queue.enqueue("mail")
    for thread in threads:
        thread.join()
    assert len(got) == 1


def test_async_claims_wait_too(harness: Harness) -> None:
    async def scenario() -> None:
        queue = harness.open_async()
        waiting = asyncio.create_task(queue.claim(wait=LONG))
        await asyncio.sleep(0)
        await queue.enqueue("mail", job_id="a")
        claim = await asyncio.wait_for(waiting, LONG)
        assert claim is not None
        assert claim.job.id == "a"
        await queue.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("wait", [-1, float("nan"), "soon", 86_401])
def test_an_invalid_wait_is_refused(queue: Queue, wait: float) -> None:
    with pytest.raises(InvalidInput, match=r"^wait: "):
        queue.claim(wait=wait)
