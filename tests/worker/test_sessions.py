"""Workers handle sessions: one call for each turn, in order; a turn is renewed, settled and released as a whole."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any

import pytest

from holdfast import (
    Backoff,
    Cancelled,
    Context,
    Defer,
    Fail,
    Misconfigured,
    Queue,
    Retry,
    SessionContext,
)
from holdfast.client.queue_state import state_of
from holdfast.storage import notifications
from holdfast.tasks.session_context import session_context_of
from holdfast.worker import claim_ahead
from holdfast.worker.events import EventQueue
from holdfast.worker.session_turn import Turn, offer_checkpoints
from tests.chaos.threads import registered, wait_until
from tests.support.stores import Harness
from tests.worker.chats import SESSION, Chat, Message, all_ended
from tests.worker.timers import MovableTimer
from tests.worker.workers import (
    Time,
    live,
    running_worker,
    wait_finished,
    wait_for_event,
    without_tasks,
)

COLOURS = pytest.mark.parametrize("awaited", [False, True], ids=["blocking", "awaited"])
SOON = Backoff(base=0.05, factor=1.0)


# --- turns ---------------------------------------------------------------------------------------------------------


@COLOURS
def test_joined_entries_are_one_call_and_end_with_its_result(queue: Queue, awaited: bool) -> None:
    chat = Chat(queue, awaited=awaited)
    ids = chat.say("one", "two")
    ids.append(chat.answer.enqueue(Message("three"), Message("four"), session=SESSION).id)
    with running_worker(queue) as working:
        jobs = all_ended(queue, ids)
        wait_until(lambda: working.worker.status().ended == {"done": 1})

    assert chat.calls == [["one", "two", "three", "four"]]
    assert [job.result for job in jobs] == [["one", "two", "three", "four"]] * 3
    assert chat.tokens == [1]


@COLOURS
def test_what_is_said_during_a_turn_joins_at_its_checkpoint(queue: Queue, awaited: bool) -> None:
    chat = Chat(queue, awaited=awaited)
    chat.halt()
    ids = chat.say("one")
    with running_worker(queue):
        chat.halts()
        ids += chat.say("two", "three")
        chat.proceed.set()
        jobs = all_ended(queue, ids)

    assert chat.calls == [["one"], ["two", "three"]]
    # The same turn: one fence, one result.
    assert chat.tokens == [1, 1]
    assert [job.result for job in jobs] == [["one", "two", "three"]] * 3


def test_without_a_checkpoint_it_waits_for_the_next_turn(queue: Queue) -> None:
    chat = Chat(queue, checkpoints=0)
    chat.halt()
    ids = chat.say("one")
    with running_worker(queue):
        chat.halts()
        ids += chat.say("two")
        chat.proceed.set()
        all_ended(queue, ids)

    assert list(zip(chat.calls, chat.tokens, strict=True)) == [(["one"], 1), (["two"], 2)]


def test_what_is_for_after_the_turn_does_not_join_at_a_checkpoint(queue: Queue) -> None:
    chat = Chat(queue)
    chat.halt()
    ids = chat.say("one")
    with running_worker(queue):
        chat.halts()
        ids += chat.say("two", delivery="next_turn")
        chat.proceed.set()
        all_ended(queue, ids)

    assert list(zip(chat.calls, chat.tokens, strict=True)) == [(["one"], 1), (["two"], 2)]


def test_a_command_is_handled_alone_and_in_order(queue: Queue) -> None:
    chat = Chat(queue, checkpoints=2)
    chat.halt()
    ids = chat.say("one", "two")
    with running_worker(queue):
        chat.halts()
        ids.append(chat.reset.enqueue(session=SESSION).id)
        ids += chat.say("three", "four")
        chat.proceed.set()
        jobs = all_ended(queue, ids)

    assert chat.calls == [["one", "two"], "reset", ["three", "four"]]
    assert chat.tokens == [1, 2, 3]
    assert jobs[2].result == "reset"


def test_a_command_of_the_same_kind_does_not_join_at_a_checkpoint(queue: Queue) -> None:
    chat = Chat(queue)
    chat.halt()
    ids = chat.say("one")
    with running_worker(queue):
        chat.halts()
        ids += chat.say("two", entry_type="command", join=False)
        ids += chat.say("three")
        chat.proceed.set()
        all_ended(queue, ids)

    assert list(zip(chat.calls, chat.tokens, strict=True)) == [(["one"], 1), (["two"], 2), (["three"], 3)]


def test_a_command_takes_in_nothing_at_a_checkpoint(queue: Queue) -> None:
    chat = Chat(queue)
    chat.halt()
    ids = chat.say("one", entry_type="command", join=False)
    with running_worker(queue):
        chat.halts()
        ids += chat.say("two")
        chat.proceed.set()
        all_ended(queue, ids)

    assert list(zip(chat.calls, chat.tokens, strict=True)) == [(["one"], 1), (["two"], 2)]


def test_a_turn_has_no_more_entries_than_its_task_says(queue: Queue) -> None:
    chat = Chat(queue, limit=3)
    chat.halt()
    ids = chat.say("one", "two")
    with running_worker(queue):
        chat.halts()
        ids += chat.say("three", "four", "five", "six", "seven")
        chat.proceed.set()
        all_ended(queue, ids)

    # With those that joined at its checkpoint, the first has three.
    assert chat.calls == [["one", "two"], ["three"], ["four", "five", "six"], ["seven"]]


def test_a_checkpoint_takes_in_no_other_kind(queue: Queue) -> None:
    chat = Chat(queue)

    @queue.session_task("chat.note", join=True)
    def note(context: SessionContext[str], messages: list[str]) -> str:
        return f"noted {messages}"

    chat.halt()
    ids = chat.say("one")
    with running_worker(queue):
        chat.halts()
        other = note.enqueue("milk", session=SESSION)
        chat.proceed.set()
        all_ended(queue, ids)
        assert wait_finished(queue, other.id).result == "noted ['milk']"

    assert chat.calls == [["one"]]


def test_kinds_that_merge_go_to_the_handler_of_the_first_and_are_read_each_as_its_own(queue: Queue) -> None:
    seen: list[Any] = []

    @queue.session_task("chat.text", join="input")
    def text(context: SessionContext[Message], messages: list[Message]) -> None:
        seen.append(messages)

    @queue.session_task("chat.number", join="input")
    def number(context: SessionContext[int], messages: list[int]) -> None:
        seen.append("number")

    first = text.enqueue(Message("one"), session=SESSION)
    second = number.enqueue(2, session=SESSION)
    with running_worker(queue):
        all_ended(queue, [first.id, second.id])

    assert seen == [[Message("one"), 2]]


def test_an_entry_that_cannot_be_read_fails_alone(queue: Queue) -> None:
    chat = Chat(queue)
    bad = without_tasks(queue).enqueue("chat.message", {"text": 7}, session=SESSION, join=True)
    good = chat.say("one", "two")
    with running_worker(queue):
        failed, *done = all_ended(queue, [bad.id, *good])

    assert failed.failure is not None
    assert (failed.failure.reason, failed.failure.failure_class) == ("payload_invalid", "permanent")
    assert failed.failure.message == "messages[0].text: must be a string, not an integer"
    assert [job.result for job in done] == [["one", "two"]] * 2


def test_plain_jobs_and_other_sessions_run_beside_a_turn_that_halts(queue: Queue) -> None:
    chat = Chat(queue, checkpoints=0)

    @queue.task("plain")
    def plain() -> str:
        return "done beside it"

    chat.halt()
    held = chat.say("one")
    with running_worker(queue, concurrency=2):
        chat.halts()
        assert wait_finished(queue, plain.enqueue().id).result == "done beside it"
        others = [chat.reset.enqueue(session=f"other-{number}").id for number in range(5)]
        assert [job.result for job in all_ended(queue, others)] == ["reset"] * 5
        chat.proceed.set()
        all_ended(queue, held)


def test_while_both_wait_one_slot_goes_to_jobs_and_sessions_in_turn(queue: Queue) -> None:
    order: list[str] = []

    @queue.task("plain")
    def plain() -> None:
        order.append("job")
        time.sleep(0.03)  # longer than the limit for claiming ahead

    @queue.session_task("chat.message")
    def answer(context: SessionContext[int], messages: list[int]) -> None:
        order.append("turn")
        time.sleep(0.03)

    ids = [plain.enqueue().id for _ in range(8)]
    ids += [answer.enqueue(number, session=f"s{number}").id for number in range(8)]
    with running_worker(queue, concurrency=1):
        all_ended(queue, ids)

    assert sorted(order) == ["job"] * 8 + ["turn"] * 8
    # In either order, neither is served twice while the other waits.
    assert order in (["job", "turn"] * 8, ["turn", "job"] * 8)


@pytest.mark.slow("many jobs run, or a store is away for a while")
def test_many_sessions_in_few_slots_are_all_served_in_order(queue: Queue) -> None:
    said: dict[str, list[int]] = {}
    inside: set[str] = set()
    tokens: dict[str, list[int]] = {}

    @queue.session_task("count", join=True, limit=2)
    async def count(context: Any, messages: list[int]) -> None:
        assert context.session not in inside
        inside.add(context.session)
        said.setdefault(context.session, []).extend(messages)
        tokens.setdefault(context.session, []).append(context.fencing_token)
        inside.discard(context.session)

    sessions = [f"s{number}" for number in range(64)]
    enqueued = queue.enqueue_many([count.new(number, session=name) for number in range(5) for name in sessions])
    with running_worker(queue, concurrency=8):
        all_ended(queue, [one.id for one in enqueued])

    assert said == {name: list(range(5)) for name in sessions}
    assert tokens == {name: [1, 2, 3] for name in sessions}


def test_an_idle_worker_is_woken_by_a_session(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifications, "POLL_SECONDS", 3_600.0)
    chat = Chat(queue)
    with running_worker(queue):
        for text in ("one", "two", "three"):
            # All but the first find a worker that would poll again in half an hour.
            assert wait_finished(queue, chat.say(text)[0]).result == [text]


def test_a_worker_whose_slots_are_all_used_by_turns_waits(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    waits = 0
    wait = EventQueue.wait

    async def count(events: EventQueue, seconds: float, *, urgent_only: bool = False) -> None:
        nonlocal waits
        waits += 1
        await wait(events, seconds, urgent_only=urgent_only)

    monkeypatch.setattr(EventQueue, "wait", count)
    # Handlers take no time in this timer, so that the worker would claim jobs ahead after the first.
    monkeypatch.setattr(claim_ahead, "_SEEN_MIN", 1)
    chat = Chat(queue)
    with running_worker(queue, concurrency=1, timer=MovableTimer(stands_still=True)):
        wait_finished(queue, chat.say("short")[0])
        chat.halt()
        chat.say("long")
        chat.halts()
        before = waits
        for number in range(50):
            chat.answer.enqueue(Message(str(number)), session=f"s{number}")
        assert waits - before < 4 * 50
        chat.proceed.set()


def test_what_joins_a_turn_that_is_decided_meanwhile_is_given_back(queue: Queue) -> None:
    chat = Chat(queue)
    [first] = chat.say("one")
    claim = queue.sessions.claim_next(limit=1)
    assert claim is not None
    turn = Turn(claim, state_of(queue).tasks, time.monotonic())

    class Late:
        """Runs the operations, and lets the turn time out before it returns."""

        notifier = state_of(queue).store.notifier
        joined = state_of(queue).store.joined
        translate = state_of(queue).store.translate

        def write(self, operation: Any) -> Any:
            answer = state_of(queue).store.write(operation)
            turn.time_out()
            return answer

    late: Any = Late()
    offer_checkpoints(turn, replace(state_of(queue), store=late), ())
    [second] = chat.say("two")
    with pytest.raises(Cancelled):
        chat.answer(session_context_of(turn.turn_state, is_async=False), [Message("one")])

    assert [job.id for job in turn.session_claim.entries] == [first]
    assert (queue.get(second).state, queue.get(second).attempt) == ("ready", 0)


# --- how a turn ends -----------------------------------------------------------------------------------------------


@COLOURS
def test_a_turn_that_fails_comes_again_as_a_whole_and_in_order(harness: Harness, awaited: bool) -> None:
    chat = Chat(live(harness), awaited=awaited, backoff=SOON)
    chat.error = ValueError("not today")
    chat.halt()
    ids = chat.say("one")
    with running_worker(chat.queue):
        chat.halts()
        ids += chat.say("two")
        chat.proceed.set()
        jobs = all_ended(chat.queue, ids)

    assert chat.calls == [["one"], ["two"], ["one", "two"]]
    assert chat.tokens == [1, 1, 2]
    assert [(job.result, job.attempt) for job in jobs] == [(["one", "two"], 2)] * 2


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (Retry("busy", after=0.05), [("done", 2)] * 2),
        (Defer(after=0.05), [("done", 1)] * 2),
        (Fail("never"), [("failed", 1)] * 2),
    ],
    ids=["retry", "defer", "fail"],
)
def test_what_a_handler_asks_for_settles_the_whole_turn(
    harness: Harness, asked: BaseException, told: list[tuple[str, int]]
) -> None:
    chat = Chat(live(harness))
    chat.error = asked
    ids = chat.say("one", "two")
    with running_worker(chat.queue):
        jobs = all_ended(chat.queue, ids)

    assert [(job.state, job.attempt) for job in jobs] == told
    assert len(chat.calls) == (1 if told[0][0] == "failed" else 2)


def test_what_is_collected_comes_once(queue: Queue) -> None:
    @queue.session_task("chat.message", join=True)
    def answer(context: SessionContext[str], messages: list[str]) -> None:
        context.attach("said.txt", " ".join(messages).encode())
        context.follow_up("index", {"count": len(messages)})

    ids = [answer.enqueue(text, session=SESSION).id for text in ("one", "two")]
    with running_worker(queue):
        all_ended(queue, ids)

    assert [[one.name for one in queue.artifacts(job_id)] for job_id in ids] == [["said.txt"], []]
    assert [job.payload for job in queue.jobs(kind="index")] == [{"count": 2}]


@pytest.mark.parametrize("fails", [False, True], ids=["done", "fails"])
def test_writes_of_a_turn_and_its_settlement_are_one_commit(harness: Harness, fails: bool) -> None:
    queue = harness.open()
    with queue.transaction() as tx:
        tx.execute("create table said (line text)")

    @queue.session_task("chat.message", join=True, max_attempts=1)
    def answer(context: SessionContext[str], messages: list[str]) -> str:
        with context.transaction() as tx:
            tx.execute("insert into said values ('both')")
        if fails:
            raise ValueError("after all")
        with pytest.raises(Misconfigured, match="checkpoint"):
            context.checkpoint()
        return "written"

    ids = [answer.enqueue(text, session=SESSION).id for text in ("one", "two")]
    with running_worker(queue) as working:
        jobs = all_ended(queue, ids)
        wait_until(lambda: sum(working.worker.status().ended.values()) == 1)

    with queue.transaction() as tx:
        rows = tx.execute("select line from said")
    assert len(rows) == (0 if fails else 1)
    assert [job.state for job in jobs] == ["failed" if fails else "done"] * 2


@COLOURS
def test_a_turn_past_its_timeout_is_stopped_and_fails_as_a_whole(harness: Harness, awaited: bool) -> None:
    moving = Time(harness)
    chat = Chat(harness.open(), awaited=awaited, timeout=30, max_attempts=1)
    chat.halt()
    ids = chat.say("one", "two")
    with running_worker(chat.queue, lease=600, timer=moving.timer):
        chat.halts()
        moving.advance(30)
        jobs = all_ended(chat.queue, ids)
        wait_for_event(chat.stopped)

    assert [job.failure.reason for job in jobs if job.failure is not None] == ["timeout", "timeout"]


# --- what others see -----------------------------------------------------------------------------------------------


def test_a_turn_is_one_of_the_things_a_worker_runs(queue: Queue) -> None:
    chat = Chat(queue)
    chat.halt()
    first, *_ = chat.say("one", "two")
    with running_worker(queue, worker="w1", concurrency=3) as working:
        chat.halts()
        [running] = working.worker.status().running
        assert (running.job_id, running.kind, running.entries) == (first, "chat.message", 2)
        assert set(registered(queue).kinds) == {"chat.message", "chat.reset"}
        chat.proceed.set()
        wait_finished(queue, first)


def test_a_context_tells_of_the_turn(queue: Queue) -> None:
    seen: list[Any] = []

    @queue.session_task("chat.message", join=True)
    def answer(context: SessionContext[str], messages: list[str]) -> None:
        seen.append((context.session, context.tenant, context.entry_type, context.attempt, context.worker))
        seen.append([entry.payload for entry in context.entries])
        assert isinstance(context, Context)
        context.logger.info("hello")

    ids = [answer.enqueue(text, session=SESSION, tenant="ada").id for text in ("one", "two")]
    with running_worker(queue, worker="w1"):
        all_ended(queue, ids)

    assert seen == [(SESSION, "ada", "message", 1, "w1"), ["one", "two"]]


def test_a_suspect_turn_runs_alone(harness: Harness) -> None:
    queue = harness.open()
    chat = Chat(queue, checkpoints=0)
    beside = threading.Event()

    @queue.task("plain")
    def plain() -> None:
        beside.set()

    [job_id] = chat.say("one")
    assert queue.sessions.claim_next(lease=1) is not None
    harness.clock.advance(60)
    chat.halt()
    with running_worker(queue, concurrency=4):
        chat.halts()
        other = plain.enqueue()
        assert not beside.wait(0.2)
        chat.proceed.set()
        all_ended(queue, [job_id, other.id])


def test_turns_run_in_the_worker_also_where_all_else_is_isolated(queue: Queue) -> None:
    """The chat is not declared in a module, so another process cannot import it."""
    chat = Chat(queue)
    [job_id] = chat.say("one")
    with running_worker(queue, isolate="process"):
        assert wait_finished(queue, job_id).state == "done"


def test_an_exclusive_worker_of_sessions_takes_back_what_its_start_before_held(queue: Queue) -> None:
    chat = Chat(queue)
    [job_id] = chat.say("one")
    assert queue.sessions.claim_next(worker="only", incarnation="before", lease=3600) is not None
    with running_worker(queue, worker="only", exclusive=True):
        job = wait_finished(queue, job_id)

    assert (job.result, job.attempt) == (["one"], 1)
