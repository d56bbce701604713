"""A session task is a function with a kind for the turns of sessions; `enqueue` takes messages of its list.

Every engine passes this file unchanged.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from holdfast import (
    AsyncSessionContext,
    AsyncTasks,
    Context,
    Done,
    InvalidInput,
    Misconfigured,
    NewJob,
    Queue,
    SessionContext,
    Tasks,
)
from holdfast.testing import drain, drain_async, run_job
from tests.support.assertions import refused
from tests.support.stores import Harness

S = {"session": "chat-42"}


@dataclass
class Message:
    text: str


def answer(context: SessionContext[Message], messages: list[Message]) -> list[str]:
    return [message.text for message in messages]


def reset(context: SessionContext[None]) -> str:
    return "reset"


def test_a_message_is_written_by_annotation_and_read_back(queue: Queue) -> None:
    task = queue.session_task("chat.message", join=True)(answer)

    result = task.enqueue(Message("hello"), session="chat-42", message_id="m1")
    again = task.enqueue(Message("again"), session="chat-42", message_id="m1")

    assert (result.job.payload, again.created) == ({"text": "hello"}, False)
    assert result.job.entry is not None
    assert (result.job.entry.session, result.job.entry.join) == ("chat-42", True)
    assert drain(queue).jobs[0].result == ["hello"]


def test_several_messages_are_one_entry(queue: Queue) -> None:
    task = queue.session_task("chat.message")(answer)

    result = task.using(session="chat-42").enqueue(Message("one"), Message("two"))

    assert result.job.messages == [{"text": "one"}, {"text": "two"}]
    assert drain(queue).jobs[0].result == ["one", "two"]


def test_several_messages_can_be_a_follow_up(queue: Queue) -> None:
    task = queue.session_task("chat.message")(answer)
    entry = task.new(Message("one"), Message("two"), session="chat-42")

    @queue.task("first")
    def first(context: Context) -> Done:
        context.follow_up(entry)
        return Done(follow_ups=[entry])

    first.enqueue()

    assert [job.result for job in drain(queue).jobs] == [None, ["one", "two"], ["one", "two"]]


def test_many_entries_are_one_commit(queue: Queue) -> None:
    task = queue.session_task("chat.message", join=True)(answer)

    result = task.enqueue_many(task.new(Message(text), session="chat-42") for text in ("one", "two"))

    assert len(result) == 2
    assert drain(queue).counts == {"done": 1}
    assert task.new(Message("one"), session="s") == NewJob("chat.message", {"text": "one"}, session="s", join=True)


def test_a_command_may_take_no_messages(queue: Queue) -> None:
    task = queue.session_task("chat.reset", entry_type="command")(reset)

    result = task.enqueue(session="chat-42")

    assert result.job.payload is None
    assert drain(queue).jobs[0].result == "reset"
    with refused(queue, "messages"):
        task.enqueue("x", session="chat-42")  # type: ignore[arg-type]


@pytest.mark.validation
def test_a_message_that_no_worker_could_read_is_refused(queue: Queue) -> None:
    task: Any = queue.session_task("chat.message")(answer)

    with refused(queue, "messages[0].text"):
        task.enqueue(Message(7), **S)  # type: ignore[arg-type]
    with refused(queue, "messages[1]"):
        task.enqueue(Message("a"), "b", **S)
    with refused(queue, "messages[0]"):
        task.enqueue(**S)
    with refused(queue, "session"):
        task.enqueue(Message("a"))
    with refused(queue, "priority"):
        task.enqueue(Message("a"), priority=3, **S)
    assert queue.counts() == {}


@pytest.mark.validation
@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("limit", {"limit": 0}),
        ("limit", {"limit": 1_001}),
        ("isolate", {"isolate": "process"}),
        ("memory_limit", {"memory_limit": 1 << 30}),
        ("priority", {"priority": 1}),
        ("join", {"entry_type": "command", "join": True}),
        ("timeout", {"timeout": -1}),
    ],
)
def test_options_that_a_session_does_not_support_are_refused(queue: Queue, field: str, options: Any) -> None:
    with refused(queue, field):
        queue.session_task("chat.message", **options)(answer)
    assert len(queue.tasks) == 0


def test_a_function_must_have_the_shape_of_a_session_task(queue: Queue) -> None:
    def nothing() -> None: ...
    def too_many(context: Any, messages: list[str], more: int) -> None: ...
    def no_list(context: Any, messages: str) -> None: ...
    def wrong_colour(context: AsyncSessionContext[str], messages: list[str]) -> None: ...
    async def other_colour(context: SessionContext[str], messages: list[str]) -> None: ...

    declares: Any = queue.session_task("chat.message")
    function: Any
    for function in (nothing, too_many):
        with pytest.raises(InvalidInput, match="must take a SessionContext"):
            declares(function)
    for function in (wrong_colour, other_colour):
        with pytest.raises(Misconfigured, match="must take"):
            declares(function)
    with pytest.raises(Misconfigured, match="annotated as a list"):
        declares(no_list).enqueue("a", session="chat-42")


def test_a_session_task_is_called_as_the_function_it_is(queue: Queue) -> None:
    task = queue.session_task("chat.message")(answer)
    task.enqueue(Message("one"), session="chat-42")
    claim = queue.sessions.claim("chat-42")
    assert claim is not None
    context = SessionContext[Message](claim)

    assert task(context, [Message("here")]) == ["here"]
    assert (context.session, context.fencing_token, context.turn) == ("chat-42", 1, claim)
    with pytest.raises(Misconfigured, match="only in a handler that a worker runs"):
        context.checkpoint()


def test_collections_have_session_tasks_of_both_colours(harness: Harness) -> None:
    tasks, awaited = Tasks(), AsyncTasks()
    plain = tasks.session_task("chat.message")(answer)

    @awaited.session_task("chat.message", join=True)
    async def answer_later(context: AsyncSessionContext[str], messages: list[str]) -> list[str]:
        return messages + await context.checkpoint()

    harness.open().include(tasks)
    assert plain.enqueue(Message("one"), session="a", lane="other").created

    async def enqueue_and_run() -> Any:
        async with harness.open_async() as queue:
            queue.include(awaited)
            await answer_later.enqueue("two", session="b")
            await answer_later.enqueue("three", session="b")
            return await drain_async(queue, tenant="default")

    results = [job.result for job in asyncio.run(enqueue_and_run()).jobs]
    assert ["two", "three"] in results


def test_draining_runs_turns_as_a_worker_does(queue: Queue) -> None:
    calls: list[Any] = []

    @queue.session_task("chat.message", join=True)
    def talk(context: SessionContext[str], messages: list[str]) -> None:
        if messages == ["one"]:
            talk.enqueue("two", session=context.session)
            messages += context.checkpoint()
        calls.append(messages)

    queue.session_task("chat.reset", entry_type="command")(reset)
    talk.enqueue("one", session="chat-42")
    queue.enqueue("chat.reset", session="other", entry_type="command")

    assert drain(queue).counts == {"done": 2}
    assert calls == [["one", "two"]]
    assert queue.counts() == {"done": 3}


def test_one_entry_cannot_be_run_before_all_others(queue: Queue) -> None:
    task = queue.session_task("chat.message")(answer)
    result = task.enqueue(Message("one"), session="chat-42")

    with pytest.raises(Misconfigured, match="is an entry of session 'chat-42'"):
        run_job(queue, result)
