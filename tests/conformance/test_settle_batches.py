"""Settling many jobs, and settling together with the next claim: one result per claim, in one commit."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast import (
    Artifact,
    Claim,
    Conflict,
    Deferred,
    Done,
    Failed,
    InvalidInput,
    LeaseLost,
    NewJob,
    Outcome,
    Queue,
    Released,
)
from holdfast.errors import KindRetired, LaneDraining
from holdfast.types import Settlement
from tests.support.claims import changed_job, claim_one, known
from tests.support.clock import ManualClock
from tests.support.stores import Harness


def claimed(queue: Queue, count: int) -> list[Claim]:
    """Enqueue *count* jobs and claim them."""
    queue.enqueue_many([NewJob("mail") for _ in range(count)])
    return queue.claim_many(limit=count, kinds=["mail"])


def states(settlements: list[Settlement]) -> list[str]:
    """Return the resulting state of each settlement, or the name of the error."""
    return [one.job.state if one.job else type(one.error).__name__ for one in settlements]


def forged(claim: Claim) -> Claim:
    return Claim(changed_job(claim.job, lease_token="wrong"), claim.lease_ms)


class TestSettleMany:
    def test_each_claim_gets_its_own_result_in_order(self, queue: Queue) -> None:
        claims = claimed(queue, 5)
        outcomes: list[Outcome] = [
            Released(),
            Done(1),
            Failed("no"),
            Deferred(after=5),
            Failed("no", permanent=True),
        ]
        answers = queue.settle_many(list(zip(claims, outcomes, strict=True)))
        assert states(answers) == ["ready", "done", "scheduled", "scheduled", "failed"]
        assert [answer.claim for answer in answers] == claims
        assert [answer.ok for answer in answers] == [True] * 5
        assert [answer.job for answer in answers] == [queue.get(claim.job.id) for claim in claims]

    def test_the_results_have_the_order_of_the_call(self, queue: Queue) -> None:
        claims = claimed(queue, 6)
        shuffled = [claims[place] for place in (4, 0, 5, 2, 1, 3)]
        answers = queue.settle_many([(claim, Done(claim.job.number)) for claim in shuffled])
        assert [answer.job.result for answer in answers if answer.job] == [claim.job.number for claim in shuffled]

    def test_jobs_of_several_claims_and_epochs_get_their_own_results(self, queue: Queue) -> None:
        queue.settle_many([(claim, Released()) for claim in claimed(queue, 2)])
        claims = [*queue.claim_many(limit=2), *claimed(queue, 2)]
        assert [claim.epoch for claim in claims] == [2, 2, 1, 1]
        answers = queue.settle_many([(claim, Done(claim.job.number)) for claim in claims])
        assert states(answers) == ["done"] * 4
        assert [queue.get(claim.job.id).result for claim in claims] == [claim.job.number for claim in claims]

    def test_an_empty_list_returns_an_empty_list(self, queue: Queue) -> None:
        assert queue.settle_many([]) == []

    def test_a_refused_settle_does_not_affect_the_others(self, queue: Queue) -> None:
        claims = claimed(queue, 4)
        queue.cancel(claims[2].job.id, force=True)
        batch: list[tuple[Claim, Outcome]] = [
            (claims[0], Done(0)),
            (forged(claims[1]), Done(1)),
            (claims[2], Done(2)),
            (claims[3], Done(3)),
        ]
        answers = queue.settle_many(batch)
        assert states(answers) == ["done", "LeaseLost", "LeaseLost", "done"]
        assert [answer.ok for answer in answers] == [True, False, False, True]
        assert [queue.get(claim.job.id).state for claim in claims] == ["done", "running", "cancelled", "done"]

    def test_all_may_be_refused(self, queue: Queue, clock: ManualClock) -> None:
        claims = claimed(queue, 3)
        clock.advance(30)
        answers = queue.settle_many([(claim, Done()) for claim in claims])
        assert states(answers) == ["LeaseLost"] * 3
        assert queue.counts() == {"running": 3}

    def test_one_claim_settled_twice_in_a_batch_has_one_outcome(self, queue: Queue) -> None:
        [claim] = claimed(queue, 1)
        answers = queue.settle_many([(claim, Done(1)), (claim, Done(1)), (claim, Failed("no"))])
        assert states(answers) == ["done", "done", "LeaseLost"]
        assert [event.name for event in queue.events()] == ["done"]

    def test_a_repeated_batch_has_the_same_results(self, queue: Queue) -> None:
        claims = claimed(queue, 4)
        outcomes: list[Outcome] = [Done(1), Failed("no"), Released(), Done(follow_ups=[NewJob("next")])]
        batch = list(zip(claims, outcomes, strict=True))
        first = queue.settle_many(batch)
        counts, events = queue.counts(), queue.events().events
        assert queue.settle_many(batch) == first
        assert (queue.counts(), queue.events().events) == (counts, events)

    def test_an_invalid_outcome_refuses_the_call_and_is_named(self, queue: Queue) -> None:
        claims = claimed(queue, 2)
        with pytest.raises(InvalidInput) as refused:
            queue.settle_many([(claims[0], Done()), (claims[1], Done(float("nan")))])
        assert refused.value.field.startswith("settlements[1].result")
        assert queue.counts() == {"running": 2}

    def test_a_thousand_are_settled_in_one_call(self, queue: Queue) -> None:
        claims = claimed(queue, 1000)
        answers = queue.settle_many([(claim, Done(claim.job.number)) for claim in claims])
        assert all(answer.ok for answer in answers)
        assert queue.counts() == {"done": 1000}
        with pytest.raises(InvalidInput):
            queue.settle_many([(claims[0], Done())] * 1001)

    def test_a_job_that_another_worker_holds_by_now_is_left_to_it(self, queue: Queue, clock: ManualClock) -> None:
        queue.enqueue_many([NewJob("mail") for _ in range(20)])
        claims = queue.claim_many(limit=20, lease=10, worker="first")
        clock.advance(6)
        for claim in claims[:-1]:
            queue.heartbeat(claim, lease=10)
        clock.advance(6)
        taken = claim_one(queue, worker="second")
        answers = queue.settle_many([(claim, Done()) for claim in claims])
        assert states(answers) == ["done"] * 19 + ["LeaseLost"]
        assert queue.settle(taken, Done("second")).result == "second"

    def test_the_successors_of_many_become_ready(self, queue: Queue) -> None:
        keys = [f"key {number}" for number in range(20)]
        queue.enqueue_many([NewJob("mail", dedupe_key=key) for key in keys])
        claims = queue.claim_many(limit=20)
        successors = [queue.enqueue("mail", dedupe_key=key, on_duplicate="run_again") for key in keys]
        assert {queue.get(made.id).state for made in successors} == {"blocked"}
        queue.settle_many([(claim, Done()) for claim in claims])
        assert {queue.get(made.id).state for made in successors} == {"ready"}

    def test_jobs_of_several_tenants_are_separate(self, queue: Queue) -> None:
        queue.enqueue_many([NewJob("mail", tenant=tenant) for tenant in ("ada", "zoe")])
        claims = queue.claim_many()
        queue.settle_many([(claim, Done(follow_ups=[NewJob("next")])) for claim in claims])
        assert sorted(job.tenant for job in queue.jobs(kind="next")) == ["ada", "zoe"]


class TestFollowUpsInABatch:
    def test_a_refused_follow_up_refuses_only_its_own_settle(self, queue: Queue) -> None:
        queue.lanes.set("closed", state="draining")
        queue.kinds.retire("old")
        queue.enqueue("other", job_id="taken", delay=60)
        refused = [NewJob("next", lane="closed"), NewJob("old"), NewJob("next", job_id="taken")]
        claims = claimed(queue, 5)
        follow_ups = [[NewJob("next", 0)], *([NewJob("lost"), one] for one in refused), [NewJob("next", 4)]]
        batch = [
            (claim, Done(follow_ups=jobs, artifacts=[Artifact("log", b"x")]))
            for claim, jobs in zip(claims, follow_ups, strict=True)
        ]
        answers = queue.settle_many(batch)
        assert [type(answer.error) for answer in answers] == [
            type(None),
            LaneDraining,
            KindRetired,
            Conflict,
            type(None),
        ]
        assert [queue.get(claim.job.id).state for claim in claims] == ["done", *["running"] * 3, "done"]
        assert sorted(str(job.payload) for job in queue.jobs(kind="next")) == ["0", "4"]
        assert len(queue.jobs(kind="lost")) == 0
        assert [len(queue.artifacts(claim.job.id)) for claim in claims] == [1, 0, 0, 0, 1]

    def test_a_stale_holders_follow_ups_and_artifacts_are_not_stored(self, queue: Queue) -> None:
        live, stale = claimed(queue, 2)
        outcome = Done(follow_ups=[NewJob("next")], artifacts=[Artifact("log", b"x")])
        answers = queue.settle_many([(forged(stale), outcome), (live, outcome)])
        assert states(answers) == ["LeaseLost", "done"]
        assert len(queue.jobs(kind="next")) == 1
        assert queue.artifacts(stale.job.id) == []

    def test_follow_ups_that_share_a_key_make_one_job(self, queue: Queue) -> None:
        claims = claimed(queue, 3)
        outcome = Done(follow_ups=[NewJob("next", dedupe_key="k")])
        assert states(queue.settle_many([(claim, outcome) for claim in claims])) == ["done"] * 3
        assert len(queue.jobs(kind="next")) == 1

    def test_follow_ups_that_share_an_id_with_other_content_refuse_the_second(self, queue: Queue) -> None:
        first, second = claimed(queue, 2)
        answers = queue.settle_many(
            [
                (first, Done(follow_ups=[NewJob("next", 1, job_id="same")])),
                (second, Done(follow_ups=[NewJob("next", 2, job_id="same")])),
            ]
        )
        assert states(answers) == ["done", "Conflict"]
        assert queue.get("same").payload == 1


class TestSettleAndClaim:
    def test_outcomes_are_recorded_and_the_next_jobs_leased(self, queue: Queue) -> None:
        queue.enqueue_many([NewJob("mail", number) for number in range(6)])
        claims = queue.claim_many(limit=2)
        both = queue.settle_and_claim([(claim, Done()) for claim in claims], limit=3, lease=60)
        assert states(both.settlements) == ["done", "done"]
        assert [claim.job.payload for claim in both.claims] == [2, 3, 4]
        assert {claim.lease_ms for claim in both.claims} == {60_000}
        assert queue.counts() == {"done": 2, "running": 3, "ready": 1}

    def test_nothing_to_settle_is_a_plain_claim_and_nothing_to_claim_a_plain_settle(self, queue: Queue) -> None:
        queue.enqueue("mail")
        first = queue.settle_and_claim([], limit=5)
        assert (first.settlements, len(first.claims)) == ([], 1)
        second = queue.settle_and_claim([(first.claims[0], Done())], limit=5)
        assert (states(second.settlements), second.claims) == (["done"], [])

    def test_a_refused_settle_does_not_prevent_the_claim(self, queue: Queue) -> None:
        stale, live = claimed(queue, 2)
        waiting = queue.enqueue("mail")
        both = queue.settle_and_claim([(forged(stale), Done()), (live, Done())], limit=5)
        assert states(both.settlements) == ["LeaseLost", "done"]
        assert [claim.job.id for claim in both.claims] == [waiting.id]

    def test_a_follow_up_can_be_claimed_in_the_same_call(self, queue: Queue) -> None:
        [claim] = claimed(queue, 1)
        both = queue.settle_and_claim([(claim, Done(follow_ups=[NewJob("next", 7)]))], limit=5)
        assert [found.job.payload for found in both.claims] == [7]

    def test_a_job_released_can_be_claimed_in_the_same_call(self, queue: Queue) -> None:
        [claim] = claimed(queue, 1)
        both = queue.settle_and_claim([(claim, Released())], limit=5)
        assert [(found.job.id, found.epoch) for found in both.claims] == [(claim.job.id, claim.epoch + 1)]

    def test_a_successor_can_be_claimed_in_the_same_call(self, queue: Queue) -> None:
        queue.enqueue("mail", dedupe_key="k")
        claim = claim_one(queue)
        successor = queue.enqueue("mail", dedupe_key="k", on_duplicate="run_again")
        both = queue.settle_and_claim([(claim, Done())], limit=5)
        assert [found.job.id for found in both.claims] == [successor.id]

    def test_repeated_with_its_token_it_returns_the_same_result(self, queue: Queue) -> None:
        claims = claimed(queue, 3)
        queue.enqueue_many([NewJob("mail") for _ in range(5)])
        batch: list[tuple[Claim, Outcome]] = [(claims[0], Done(1)), (claims[1], Failed("no")), (claims[2], Done())]
        first = queue.settle_and_claim(batch, limit=2, lease_token="t1")
        before = known(queue, claims[0].job.id)
        assert queue.settle_and_claim(batch, limit=2, lease_token="t1") == first
        assert known(queue, claims[0].job.id) == before

    def test_an_invalid_claim_settles_nothing(self, queue: Queue) -> None:
        [claim] = claimed(queue, 1)
        with pytest.raises(InvalidInput):
            queue.settle_and_claim([(claim, Done())], limit=0)
        assert queue.get(claim.job.id).state == "running"

    def test_repeated_settle_and_claim_calls_run_every_job_once(self, harness: Harness) -> None:
        queues = [harness.open() for _ in range(3)]
        queues[0].enqueue_many([NewJob("mail") for _ in range(150)])

        def work(queue: Queue) -> list[str]:
            ran: list[str] = []
            claims = queue.claim_many(limit=4)
            while claims:
                both = queue.settle_and_claim([(claim, Done()) for claim in claims], limit=4)
                ran += [settled.claim.job.id for settled in both.settlements if settled.ok]
                claims = both.claims
            return ran

        with ThreadPoolExecutor(3) as pool:
            ran = [job_id for ids in pool.map(work, queues) for job_id in ids]
        assert len(ran) == len(set(ran)) == 150
        assert queues[0].counts() == {"done": 150}

    def test_a_refusal_has_the_type_that_a_single_settle_raises(self, queue: Queue) -> None:
        [claim] = claimed(queue, 1)
        [settlement] = queue.settle_and_claim([(forged(claim), Done())], limit=1).settlements
        assert isinstance(settlement.error, LeaseLost)
        assert settlement.error.job_id == claim.job.id
