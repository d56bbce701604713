"""Jobs run inline as in a worker: claimed, decoded, run, settled, with their follow-ups; errors are raised."""

from __future__ import annotations

import asyncio
import threading
from datetime import date, timedelta
from typing import Any

import pytest

import holdfast
from holdfast import Backoff, Context, Defer, Fail, Misconfigured, NewJob, Retry, testing
from holdfast.testing import drain, run_job
from tests.support.assertions import failure_of
from tests.support.clock import ManualClock
from tests.support.stores import Harness


def test_it_runs_everything_and_what_follows_from_it(queue: holdfast.Queue) -> None:
    @queue.task("first")
    def first(context: Context, n: int) -> None:
        context.follow_up(second, {"n": n + 1})

    @queue.task("second", lane="other")
    def second(n: int) -> int:
        return n

    first.enqueue(1)
    first.enqueue(5)

    drained = drain(queue)

    assert drained.counts == {"done": 4}
    assert len(drained) == 4
    assert sorted(job.result for job in drained.jobs if job.kind == "second") == [2, 6]
    assert queue.counts() == {"done": 4}


def test_arguments_and_results_go_through_the_serializer_and_the_store(queue: holdfast.Queue) -> None:
    given: list[object] = []

    @queue.task("task")
    def task(day: date, names: tuple[str, ...]) -> dict[str, date]:
        given.extend([day, names])
        return {"next": date(2026, 1, 2)}

    job = run_job(queue, task.new(date(2026, 1, 1), ("a", "b")))

    assert given == [date(2026, 1, 1), ("a", "b")]
    assert job.payload == {"day": "2026-01-01", "names": ["a", "b"]}
    assert job.result == {"next": "2026-01-02"}


def test_a_blocking_handler_runs_in_the_tests_own_thread(queue: holdfast.Queue) -> None:
    queue.task("task")(lambda: threading.current_thread().name)
    queue.enqueue("task", {})

    [ran] = drain(queue)

    assert ran.job.result == threading.current_thread().name


def test_an_awaited_handler_runs_in_a_loop_of_its_own(queue: holdfast.Queue) -> None:
    @queue.task("task")
    async def task() -> str:
        await asyncio.sleep(0)
        return "awaited"

    task.enqueue()

    assert [ran.job.result for ran in drain(queue)] == ["awaited"]


def test_within_a_running_loop_it_says_what_to_call_instead(queue: holdfast.Queue) -> None:
    @queue.task("task")
    async def task() -> None: ...

    async def main() -> None:
        run_job(queue, task.new())

    with pytest.raises(Misconfigured, match="await drain_async"):
        asyncio.run(main())


def test_the_awaited_face_drains_handlers_of_both_colours(harness: Harness) -> None:
    queue = harness.open_async()
    loops: list[object] = []

    @queue.task("awaited")
    async def awaited() -> None:
        loops.append(asyncio.get_running_loop())

    @queue.task("blocking")
    def blocking() -> None:
        loops.append(None)

    async def main() -> tuple[testing.Drained, holdfast.Job]:
        await awaited.enqueue()
        await blocking.enqueue()
        drained = await testing.drain_async(queue)
        job = await testing.run_job_async(queue, awaited.new())
        assert loops == [asyncio.get_running_loop(), None, asyncio.get_running_loop()]
        await queue.close()
        return drained, job

    drained, job = asyncio.run(main())

    assert drained.counts == {"done": 2}
    assert job.state == "done"


# --- errors --------------------------------------------------------------------------------------------------------


def test_what_a_handler_raises_is_raised_once_its_attempt_is_settled(queue: holdfast.Queue) -> None:
    @queue.task("task")
    def task() -> None:
        raise ZeroDivisionError("oh")

    enqueued = task.enqueue()
    with pytest.raises(ZeroDivisionError, match="oh") as caught:
        drain(queue)

    assert caught.value.__notes__ == [
        f"attempt 1 of job {enqueued.id} (task); pass raises=False to settle it and continue"
    ]
    assert queue.get(enqueued.id).state == "scheduled"
    assert failure_of(queue.attempts(enqueued.id)[0]).reason == "zero_division_error"


def test_without_raising_a_failure_is_settled_and_the_rest_goes_on(queue: holdfast.Queue) -> None:
    @queue.task("task", max_attempts=2, backoff=Backoff(base=0))
    def task() -> None:
        raise ValueError

    enqueued = task.enqueue()

    drained = drain(queue, raises=False)

    assert drained.counts == {"failed": 2}
    assert all(isinstance(ran.error, ValueError) for ran in drained)
    assert queue.get(enqueued.id).state == "failed"


@pytest.mark.parametrize("asked", [Fail("no"), Defer(after=60), Retry(after=60)])
def test_an_outcome_that_a_handler_asks_for_is_no_error(queue: holdfast.Queue, asked: Exception) -> None:
    @queue.task("task")
    def task() -> None:
        raise asked

    job = run_job(queue, task.new())

    assert job.state == ("failed" if isinstance(asked, Fail) else "scheduled")


def test_a_payload_that_cannot_be_read_is_raised_as_well(queue: holdfast.Queue) -> None:
    # Enqueue before the task is declared: a queue with the task refuses such a payload.
    queue.enqueue("task", {"n": "many"})

    @queue.task("task")
    def task(n: int) -> None: ...

    with pytest.raises(AssertionError, match=r"failed with payload_invalid: .*n"):
        drain(queue)


def test_a_result_that_cannot_be_stored_is_raised_as_well(queue: holdfast.Queue) -> None:
    queue.task("task")(lambda: [object()])

    with pytest.raises(AssertionError, match="failed with result_invalid"):
        run_job(queue, NewJob("task", {}))


def test_an_outcome_that_the_store_refuses_is_raised_and_fails_the_job(queue: holdfast.Queue) -> None:
    queue.lanes.set("closed", state="draining")

    @queue.task("task")
    def task(context: Context) -> None:
        context.follow_up(NewJob("more", lane="closed"))

    enqueued = task.enqueue()
    with pytest.raises(holdfast.errors.LaneDraining):
        drain(queue)

    assert failure_of(queue.get(enqueued.id)).reason == "lane_draining"


def test_a_lease_lost_on_the_way_is_told_and_harms_nobody(queue: holdfast.Queue) -> None:
    @queue.task("task")
    def task(context: Context) -> None:
        queue.cancel(context.job.id, force=True)

    task.enqueue()

    [ran] = drain(queue)

    assert (ran.outcome, ran.job.state) == ("lost", "cancelled")


def test_a_handlers_own_transaction_settles_its_job(queue: holdfast.Queue) -> None:
    @queue.task("task")
    def task(context: Context) -> str:
        with context.transaction() as transaction:
            transaction.enqueue("more")
        return "both"

    task.enqueue()

    [ran] = drain(queue)

    assert (ran.outcome, ran.job.result) == ("done", "both")
    testing.assert_enqueued(queue, "more")


# --- time ----------------------------------------------------------------------------------------------------------


def test_without_a_clock_what_is_not_due_stays(queue: holdfast.Queue) -> None:
    queue.task("task")(lambda: None)
    queue.enqueue("task", {}, delay=60)

    assert len(drain(queue)) == 0


def test_with_the_clock_time_moves_on_through_delays_and_backoffs(queue: holdfast.Queue, clock: ManualClock) -> None:
    start = clock.time
    times: list[float] = []

    @queue.task("task", max_attempts=3, backoff=Backoff(base=100, factor=2))
    def task() -> None:
        times.append((clock.time - start).total_seconds())
        raise ValueError

    task.using(delay=60).enqueue()

    assert drain(queue, clock=clock, raises=False).counts == {"failed": 3}
    assert times == [60, 160, 360]


def test_a_horizon_bounds_how_far_time_moves(queue: holdfast.Queue, clock: ManualClock) -> None:
    start = clock.time
    ran: list[int] = []

    @queue.task("every.hour")
    def every_hour(context: Context, n: int) -> None:
        ran.append(n)
        context.follow_up(every_hour.using(delay=3600).new(n + 1))

    every_hour.enqueue(0)
    drain(queue, clock=clock, horizon=24 * 3600)

    assert ran == list(range(25))
    assert (clock.time - start).total_seconds() == 24 * 3600


def test_a_horizon_without_a_clock_is_refused(queue: holdfast.Queue) -> None:
    queue.task("task")(lambda: None)
    with pytest.raises(Misconfigured, match="horizon requires clock"):
        drain(queue, horizon=1)


def test_a_drain_that_would_never_end_says_so(queue: holdfast.Queue) -> None:
    @queue.task("again")
    def again(context: Context) -> None:
        context.follow_up(again.new())

    again.enqueue()

    with pytest.raises(AssertionError, match=r"7 attempts were run and there is still work, the next is <Job .* aga"):
        drain(queue, attempts_max=7)


def test_due_jobs_of_others_do_not_keep_it_busy(queue: holdfast.Queue, clock: ManualClock) -> None:
    queue.task("task")(lambda: None)
    queue.enqueue("unknown", delay=5)
    queue.enqueue("task", {}, delay=10)

    assert drain(queue, clock=clock).counts == {"done": 1}


# --- which jobs ----------------------------------------------------------------------------------------------------


def test_the_words_of_a_claim_say_which_jobs(queue: holdfast.Queue) -> None:
    for kind in ("one", "two"):
        queue.task(kind)(lambda: None)
        queue.enqueue(kind, {})

    assert [ran.job.kind for ran in drain(queue, kinds=["two"])] == ["two"]


def test_one_job_is_run_before_all_others_and_no_other_is_touched(queue: holdfast.Queue) -> None:
    seen: list[Any] = []

    @queue.task("task", priority=3)
    def task(context: Context, n: int) -> None:
        seen.append((n, context.job.priority))

    others = [task.enqueue(n) for n in range(3)]
    mine = task.using(requires=["gpu"], tenant="t", lane="slow").enqueue(7)

    job = run_job(queue, mine)

    assert seen == [(7, 3)]
    assert (job.state, job.priority) == ("done", 3)
    assert [queue.get(other.id) for other in others] == [other.job for other in others]


def test_one_job_that_is_not_due_needs_the_clock(queue: holdfast.Queue, clock: ManualClock) -> None:
    queue.task("task")(lambda: None)
    enqueued = queue.enqueue("task", {}, delay=60)

    with pytest.raises(AssertionError, match="pass clock="):
        run_job(queue, enqueued)
    assert run_job(queue, enqueued.id, clock=clock).state == "done"


def test_one_job_that_has_ended_or_is_held_or_paused_is_not_run(queue: holdfast.Queue) -> None:
    queue.task("task")(lambda: None)
    enqueued = queue.enqueue("task", {})
    held = queue.claim()
    assert held is not None
    with pytest.raises(AssertionError, match="it is running in the lane 'default'"):
        run_job(queue, enqueued)
    queue.settle(held, holdfast.Done())
    with pytest.raises(AssertionError, match="it is already done"):
        run_job(queue, enqueued)
    queue.lanes.set("default", state="paused")
    with pytest.raises(AssertionError, match="is the lane paused"):
        run_job(queue, NewJob("task", {}))


def test_a_kind_without_a_task_is_refused_before_it_is_enqueued(queue: holdfast.Queue) -> None:
    with pytest.raises(holdfast.errors.UnknownKind):
        run_job(queue, NewJob("unknown"))

    assert queue.counts() == {}


def test_another_of_the_highest_priority_is_given_back(queue: holdfast.Queue) -> None:
    queue.task("task")(lambda: None)
    first = queue.enqueue("task", {}, priority=1000)
    second = queue.enqueue("task", {}, priority=1000)

    with pytest.raises(AssertionError, match="cannot be claimed"):
        run_job(queue, second)

    assert queue.get(first.id).state == "ready"


# --- the queue of a program ----------------------------------------------------------------------------------------


def test_a_programs_own_queue_uses_the_tests_store_for_a_block(queue: holdfast.Queue, tmp_path: Any) -> None:
    own = holdfast.connect(str(tmp_path / "production.db"))
    task = own.task("task")(lambda: None)

    with testing.redirected(own, to=queue):
        enqueued = task.enqueue()
        assert queue.get(enqueued.id) == enqueued.job
        assert drain(own).counts == {"done": 1}

    assert not (tmp_path / "production.db").exists()
    assert own.counts() == {}
    own.close()


def test_with_a_horizon_time_moves_from_tick_to_tick_of_schedules(queue: holdfast.Queue, clock: ManualClock) -> None:
    ran: list[str] = []

    @queue.task("report")
    def report(context: holdfast.Context) -> None:
        ran.append(context.job.headers["holdfast-schedule"])

    queue.schedules.set("hourly", kind="report", payload={}, cron="@hourly")
    queue.schedules.set("often", kind="report", payload={}, every=1200)
    before = clock.time
    drain(queue, clock=clock, horizon=3600)

    assert sorted(ran) == ["hourly", "often", "often", "often"]
    assert clock.time - before <= timedelta(hours=1)


def test_without_a_horizon_time_does_not_move_to_ticks(queue: holdfast.Queue, clock: ManualClock) -> None:
    @queue.task("report")
    def report() -> None: ...

    queue.schedules.set("hourly", kind="report", payload={}, cron="@hourly")

    assert len(drain(queue, clock=clock)) == 0


def test_jobs_of_a_full_key_run_one_after_the_other(queue: holdfast.Queue) -> None:
    running: list[int] = []

    @queue.task("call")
    def call() -> None:
        running.append(queue.counts()["running"])

    queue.limits.set("one", kinds=["call"], key="tenant", concurrency=1)
    queue.enqueue_many([call.new() for _ in range(4)])

    assert drain(queue).counts == {"done": 4}
    assert running == [1] * 4


def test_with_a_horizon_time_moves_to_when_a_key_has_room(queue: holdfast.Queue, clock: ManualClock) -> None:
    refused: list[str] = []

    @queue.task("call")
    def call(context: holdfast.Context) -> None:
        if not refused:
            refused.append(context.job.id)
            raise holdfast.Retry(after=300, closes=True)

    queue.limits.set("api", kinds=["call"], rate=2, per=60)
    queue.enqueue_many([call.new() for _ in range(5)])
    begun = clock.time

    assert drain(queue, clock=clock, horizon=200).counts == {"deferred": 1}
    assert queue.counts() == {"scheduled": 1, "parked": 4}
    assert drain(queue, clock=clock, horizon=600).counts == {"done": 5}
    assert clock.time - begun >= timedelta(seconds=300 + 2 * 30)
