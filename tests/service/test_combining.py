"""Requests that arrive together are carried out together, and each gets its own answer; what is known is not read."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import pytest

import holdfast
from holdfast import NewJob, errors
from holdfast.client import queue_state
from holdfast.domain.access import Grants
from holdfast.domain.claims import Claim
from holdfast.domain.job import Job
from holdfast.domain.outcomes import Done, check_outcome
from holdfast.operations.access import HeldSettlement
from holdfast.service import combining
from holdfast.service.combining import CombinedCalls, Combiner
from holdfast.service.waiters import JobWaiter
from holdfast.storage.runners import AsyncRunner
from tests.support.filesystems import quick_folder
from tests.support.stores import DURABLE_ENGINES, Harness


class TestCombiner:
    """Batches, without a store."""

    def run(self, calls: int, answer: Callable[[list[int]], list[Any]]) -> tuple[list[list[int]], list[Any]]:
        """Make calls at once; return the batches and the answers or errors."""
        batches: list[list[int]] = []

        async def carry_out(items: Sequence[int]) -> list[Any]:
            batches.append(list(items))
            await asyncio.sleep(0)
            return answer(list(items))

        async def main() -> list[Any]:
            combiner: Combiner[int, Any] = Combiner(carry_out)
            first = await asyncio.gather(*map(combiner.call, range(calls)), return_exceptions=True)
            # It works after whatever happened.
            return [*first, *await asyncio.gather(combiner.call(1_000), return_exceptions=True)]

        return batches, asyncio.run(main())

    def test_calls_that_arrive_together_are_one_batch(self) -> None:
        batches, answers = self.run(5, lambda items: [-item for item in items])
        assert batches == [[0, 1, 2, 3, 4], [1_000]]
        assert answers == [0, -1, -2, -3, -4, -1_000]

    def test_a_batch_is_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(combining, "TOGETHER_MAX", 2)
        batches, answers = self.run(5, lambda items: items)
        assert batches == [[0, 1], [2, 3], [4], [1_000]]
        assert answers == [0, 1, 2, 3, 4, 1_000]

    def batches_of(self, *rounds: Sequence[int]) -> list[list[int]]:
        """Make calls in rounds of the event loop; return the batches, the first of which does not end before."""
        begun: list[list[int]] = []

        async def main() -> None:
            hold = asyncio.Event()

            async def carry_out(items: Sequence[int]) -> Sequence[int]:
                begun.append(list(items))
                await hold.wait()
                return items

            combiner: Combiner[int, int] = Combiner(carry_out)
            answers = []
            for items in rounds:
                answers += [combiner.call(item) for item in items]
                await asyncio.sleep(0)
            hold.set()
            await asyncio.gather(*answers)

        asyncio.run(main())
        return begun

    def test_a_batch_begins_when_no_call_has_arrived_for_some_rounds(self) -> None:
        # The clients of the batch before send their next requests within three rounds.
        assert self.batches_of([1, 2], [], [], [3], [], [], [4]) == [[1, 2, 3, 4]]
        assert self.batches_of([1, 2], [], [], [], [], [], [3]) == [[1, 2], [3]]

    def test_a_call_without_company_waits_for_fewer_rounds(self) -> None:
        assert self.batches_of([1], [], [], [], [2]) == [[1], [2]]

    def test_a_batch_begins_although_calls_never_stop_arriving(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(combining, "TOGETHER_MAX", 3)
        assert self.batches_of(*([number] for number in range(10)))[0] == [0, 1, 2]

    def test_a_call_that_is_refused_does_not_affect_others(self) -> None:
        def answer(items: list[int]) -> list[int]:
            if 2 in items:
                raise errors.Conflict("no")
            return items

        batches, answers = self.run(4, answer)
        assert batches == [[0, 1, 2, 3], [0], [1], [2], [3], [1_000]]
        assert [type(one) for one in answers] == [int, int, errors.Conflict, int, int]

    def test_a_store_that_is_unavailable_is_asked_once(self) -> None:
        def answer(_items: list[int]) -> list[int]:
            raise errors.StoreUnreachable("away")

        batches, answers = self.run(3, answer)
        assert batches == [[0, 1, 2], [1_000]]
        assert all(isinstance(one, errors.StoreUnreachable) for one in answers)

    def test_calls_with_different_keys_do_not_wait_for_each_other(self) -> None:
        async def main() -> int:
            hold = asyncio.Event()

            async def carry_out(items: Sequence[int]) -> Sequence[int]:
                if 0 in items:
                    await hold.wait()
                return items

            combiner: Combiner[int, int] = Combiner(carry_out)
            held = asyncio.ensure_future(combiner.call(0, "a"))
            other = await combiner.call(1, "b")
            hold.set()
            return other + await held

        assert asyncio.run(main()) == 1

    def test_a_cancelled_caller_does_not_end_the_calls_of_others(self) -> None:
        async def main() -> int:
            async def carry_out(items: Sequence[int]) -> Sequence[int]:
                await asyncio.sleep(0)
                return items

            combiner: Combiner[int, int] = Combiner(carry_out)
            gone, stays = (asyncio.ensure_future(combiner.call(number)) for number in (1, 2))
            await asyncio.sleep(0)
            gone.cancel()
            return await stays

        assert asyncio.run(main()) == 2

    def test_a_call_whose_caller_is_cancelled_before_its_batch_begins_is_not_carried_out(self) -> None:
        begun: list[int] = []

        async def main() -> list[int]:
            started, hold = asyncio.Event(), asyncio.Event()

            async def carry_out(items: Sequence[int]) -> Sequence[int]:
                begun.extend(items)
                started.set()
                await hold.wait()
                return items

            combiner: Combiner[int, int] = Combiner(carry_out)
            first, gone, stays = (asyncio.ensure_future(combiner.call(number)) for number in (1, 2, 3))
            await started.wait()
            late = asyncio.ensure_future(combiner.call(4))
            alone = asyncio.ensure_future(combiner.call(5))
            await asyncio.sleep(0)
            late.cancel()
            gone.cancel()
            hold.set()
            return [await first, await stays, await alone]

        assert asyncio.run(main()) == [1, 3, 5]
        assert begun == [1, 2, 3, 5]


@pytest.fixture(params=DURABLE_ENGINES)
def durable(request: pytest.FixtureRequest) -> Iterator[Harness]:
    """A store of each engine."""
    with quick_folder() as folder:
        made = Harness(request.param, folder)
        made.open()
        yield made
        made.close()


def together(harness: Harness, calls: Callable[[CombinedCalls], Sequence[Awaitable[Any]]]) -> list[Any]:
    """Make calls at once and return their answers or errors."""

    async def main() -> list[Any]:
        queue = harness.open_async()
        combined = CombinedCalls(queue, AsyncRunner(queue_state.state_of(queue).store))
        try:
            return await asyncio.gather(*calls(combined), return_exceptions=True)
        finally:
            await queue.close()

    return asyncio.run(main())


def settlement(claim: Claim, result: int, *, kept: bool = True, grants: Grants | None = None) -> HeldSettlement:
    """Return a success of a claimed job."""
    checked = check_outcome(Done(result), tenant="default", fresh_id=str)
    return HeldSettlement(claim if kept else claim.lease, checked, grants or Grants(("work",)))


def test_enqueues_together_are_stored_and_a_refused_one_alone_is_not(durable: Harness) -> None:
    with durable.open() as queue:
        queue.lanes.set("closed", state="draining")
        queue.enqueue("mail", 0, job_id="taken")
        jobs = [
            *(NewJob("mail", number, tags={"n": str(number)}) for number in range(5)),
            NewJob("mail", 5, lane="closed"),
            NewJob("", 6),
            NewJob("mail", 0, job_id="taken"),
            NewJob("mail", 1, job_id="taken"),
        ]
        answers = together(durable, lambda combined: [combined.enqueue(new) for new in jobs])

        stored = [(one.job.payload, one.created) for one in answers if not isinstance(one, Exception)]
        assert stored == [(0, True), (1, True), (2, True), (3, True), (4, True), (0, False)]
        refused = [one for one in answers if isinstance(one, Exception)]
        draining, invalid, conflict = refused
        # Errors name the field of the job itself.
        assert isinstance(draining, errors.LaneDraining)
        assert draining.path is None
        assert isinstance(invalid, errors.InvalidInput)
        assert invalid.field == "kind"
        assert isinstance(conflict, errors.Conflict)
        assert queue.counts() == {"ready": 6}


def test_claims_together_get_different_jobs_up_to_their_limits(durable: Harness) -> None:
    with durable.open() as queue:
        queue.enqueue_many([NewJob("mail", number) for number in range(7)])
        options: dict[str, Any] = {"worker": "w", "lanes": ("default",), "acknowledged": 0, "lease": 10}
        answers = together(
            durable,
            lambda combined: [combined.claim("token:a", limit, dict(options)) for limit in (1, 3, 2, 5, 1)],
        )

        assert [len(claims) for claims in answers] == [1, 3, 2, 1, 0]
        claims = [claim for answer in answers for claim in answer]
        assert sorted(claim.job.payload for claim in claims) == list(range(7))
        assert [type(one.error) for one in queue.settle_many([(claim, Done()) for claim in claims])] == [
            type(None)
        ] * 7


def test_claims_of_other_callers_or_with_other_options_share_no_lease_token(durable: Harness) -> None:
    with durable.open() as queue:
        queue.enqueue_many([NewJob("mail", number) for number in range(5)])

        def claims(combined: CombinedCalls) -> list[Awaitable[list[Claim]]]:
            return [
                combined.claim("token:a", 1, {"worker": "w"}),
                combined.claim("token:b", 1, {"worker": "w"}),
                combined.claim("token:a", 1, {"worker": "v"}),
                combined.claim("token:a", 1, {"worker": "w", "lease_token": "chosen"}),
                combined.claim("token:a", 1, {"worker": "w", "affinity": "x"}),
            ]

        found = together(durable, claims)
        tokens = [claim.lease_token for [claim] in found]
        assert len(set(tokens)) == 5
        assert "chosen" in tokens


def test_settlements_together_are_decided_one_by_one(durable: Harness) -> None:
    with durable.open() as queue:
        queue.enqueue_many([NewJob("mail", number) for number in range(7)])
        a, b, stale, c, d, hidden, double = queue.claim_many(limit=7)
        queue.settle(stale, holdfast.Released())
        settlements = [
            settlement(a, 1),
            settlement(b, 2, kept=False),
            settlement(stale, 3),
            settlement(c, 4),
            settlement(d, 5, kept=False, grants=Grants(("work",), lanes=("other",))),
            settlement(hidden, 6, kept=False),
            settlement(double, 7),
            settlement(double, 7),
            settlement(double, 8, kept=False),
        ]
        hidden_lease = holdfast.Lease(hidden.job.id, hidden.epoch, hidden.lease_token, "other tenant")
        settlements[5] = settlements[5]._replace(held=hidden_lease)
        answers = together(durable, lambda combined: [combined.settle(one) for one in settlements])

        results = [one.result if isinstance(one, Job) else type(one) for one in answers]
        missing, lost = errors.JobNotFound, errors.LeaseLost
        assert results == [1, 2, lost, 4, missing, missing, 7, 7, lost]
        assert queue.counts() == {"ready": 1, "running": 2, "done": 4}


def test_jobs_are_read_together_by_one_statement(durable: Harness) -> None:
    with durable.open() as queue:
        queue.enqueue_many([NewJob("mail", number, job_id=f"job-{number}") for number in range(20)])
        durable.faults.seen.clear()
        ids = [*(f"job-{number}" for number in range(20)), "missing", "job-3"]
        answers = together(durable, lambda combined: [combined.job(job_id) for job_id in ids])

        assert durable.faults.seen.count("jobs_by_id") == 1
        assert [one.payload if isinstance(one, Job) else type(one) for one in answers] == [
            *range(20),
            errors.JobNotFound,
            3,
        ]


def test_a_job_that_this_process_has_settled_is_not_read_for_the_requests_that_wait() -> None:
    # Settled in another store, so that no query can find it finished.
    with holdfast.connect(":memory:") as elsewhere:
        elsewhere.enqueue("mail", job_id="one")
        claim = elsewhere.claim()
        assert claim is not None
        settled = elsewhere.settle(claim, Done("sent"))

    async def main() -> list[Job | None]:
        async with holdfast.connect_async(":memory:") as queue:
            await queue.enqueue("mail", job_id="one")
            store = queue_state.state_of(queue).store
            waiter = JobWaiter(AsyncRunner(store), store.notifier)
            waiting = [asyncio.create_task(waiter.wait("one", 30)) for _ in range(2)]
            await asyncio.sleep(0)
            waiter.answer([settled])
            answers = await asyncio.gather(*waiting)
            await waiter.close()
            return answers

    assert asyncio.run(main()) == [settled, settled]
