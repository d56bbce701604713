"""The entries of a turn, kept and lost together: renewed leases, lost leases, workers that stop, stores that fail."""

from __future__ import annotations

from contextlib import suppress

import pytest

from holdfast import OutcomeUnknown, Queue
from tests.chaos.threads import wait_until
from tests.support.stores import Harness
from tests.worker.chats import Chat, all_ended
from tests.worker.timers import MovableTimer
from tests.worker.workers import Outage, Time, in_state, running_worker, wait_finished, wait_for_event

COLOURS = pytest.mark.parametrize("awaited", [False, True], ids=["blocking", "awaited"])


# --- leases --------------------------------------------------------------------------------------------------------


@COLOURS
def test_a_long_turn_keeps_all_of_its_entries(harness: Harness, awaited: bool) -> None:
    moving = Time(harness)
    chat = Chat(harness.open(), awaited=awaited, checkpoints=2)
    chat.halt()
    ids = chat.say("one", "two")
    with running_worker(chat.queue, lease=600, timer=moving.timer):
        chat.halts()
        ids += chat.say("three")
        moving.pass_leases(chat.queue, ids[1], 600, 3)
        # Another claim finds the session held.
        assert chat.queue.sessions.claim_next() is None
        chat.proceed.set()
        jobs = all_ended(chat.queue, ids)

    assert [(job.result, job.attempt, job.epoch) for job in jobs] == [(["one", "two", "three"], 1, 1)] * 3


@COLOURS
def test_a_turn_that_is_lost_stops_its_handler(harness: Harness, awaited: bool) -> None:
    queue, timer = harness.open(), MovableTimer()
    chat = Chat(queue, awaited=awaited)
    chat.halt()
    [job_id] = chat.say("one")
    with running_worker(queue, lease=600, timer=timer) as working:
        chat.halts()
        harness.clock.advance(600)
        timer.advance(300)
        wait_for_event(chat.stopped)
        chat.proceed.set()
        assert wait_finished(queue, job_id).attempt == 2
        wait_until(lambda: working.worker.status().ended == {"lost": 1, "done": 1})

    assert chat.tokens == [1, 2]


@COLOURS
def test_an_entry_cancelled_in_a_turn_stops_it_and_the_others_come_again(queue: Queue, awaited: bool) -> None:
    chat = Chat(queue, awaited=awaited)
    chat.halt()
    first, second, third = chat.say("one", "two", "three")
    with running_worker(queue):
        chat.halts()
        queue.cancel(second)
        wait_for_event(chat.stopped)
        in_state(queue, second, "cancelled")
        chat.proceed.set()
        jobs = all_ended(queue, [first, third])

    assert [(job.result, job.attempt) for job in jobs] == [(["one", "three"], 1)] * 2


def test_an_entry_taken_away_by_force_gives_the_others_back_at_once(queue: Queue) -> None:
    chat = Chat(queue)
    chat.halt()
    first, second = chat.say("one", "two")
    with running_worker(queue):
        chat.halts()
        queue.cancel(first, force=True)
        wait_for_event(chat.stopped)
        chat.proceed.set()
        # Its lease would have expired after half a minute of the manual clock.
        job = wait_finished(queue, second)

    assert (job.result, job.attempt) == (["two"], 1)


# --- stopping ------------------------------------------------------------------------------------------------------


@COLOURS
def test_a_worker_that_stops_gives_the_whole_turn_back_without_spending_attempts(queue: Queue, awaited: bool) -> None:
    chat = Chat(queue, awaited=awaited)
    chat.halt()
    ids = chat.say("one", "two")
    with running_worker(queue, grace=0) as working:
        chat.halts()
        working.worker.stop()
        working.end()
    wait_for_event(chat.stopped)

    assert [(queue.get(job_id).state, queue.get(job_id).attempt) for job_id in ids] == [("ready", 0)] * 2
    assert working.worker.status().ended == {"released": 1}


def test_a_worker_that_stops_lets_a_turn_end_within_its_grace(queue: Queue) -> None:
    chat = Chat(queue)
    chat.halt()
    ids = chat.say("one")
    with running_worker(queue) as working:
        chat.halts()
        ids += chat.say("two")
        working.worker.stop()
        chat.proceed.set()
        working.end()

    assert [queue.get(job_id).result for job_id in ids] == [["one", "two"]] * 2


# --- a store that fails --------------------------------------------------------------------------------------------


@COLOURS
def test_a_checkpoint_whose_answer_is_lost_is_asked_for_again(harness: Harness, awaited: bool) -> None:
    outage = Outage(harness)
    chat = Chat(harness.open(), awaited=awaited)
    chat.halt()
    ids = chat.say("one")
    with running_worker(chat.queue):
        chat.halts()
        ids += chat.say("two", "three")
        outage.lose_answers(2)
        chat.proceed.set()
        wait_until(lambda: outage.answers_lost)
        jobs = all_ended(chat.queue, ids)

    assert chat.calls == [["one"], ["two", "three"]]
    assert {job.attempt for job in jobs} == {1}


def test_a_claim_whose_answer_is_lost_is_asked_for_again(harness: Harness) -> None:
    outage = Outage(harness)
    chat = Chat(harness.open())
    ids = chat.say("one", "two")
    chat.queue.lanes.set("default", state="paused")
    with running_worker(chat.queue):
        wait_until(lambda: bool(chat.queue.admin.workers()))
        # The answer to the resume of the lane is lost first.
        outage.lose_answers(3)
        with suppress(OutcomeUnknown):
            chat.queue.lanes.set("default", state="active")
        wait_until(lambda: outage.answers_lost)
        jobs = all_ended(chat.queue, ids)

    assert [(job.attempt, job.epoch) for job in jobs] == [(1, 1)] * 2


def test_a_settlement_survives_a_store_that_is_away_for_a_while(harness: Harness) -> None:
    outage = Outage(harness)
    chat = Chat(harness.open(), checkpoints=0)
    chat.halt()
    ids = chat.say("one", "two")
    with running_worker(chat.queue):
        chat.halts()
        with outage:
            chat.proceed.set()
            outage.wait_struck(2)
        jobs = all_ended(chat.queue, ids)

    assert [(job.result, job.attempt) for job in jobs] == [(["one", "two"], 1)] * 2
