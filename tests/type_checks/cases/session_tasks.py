"""What an editor and mypy know of session tasks. A line with `# E:` is wrong, and for that reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, assert_type

import holdfast
from holdfast import AsyncSessionContext, SessionContext, Tasks
from holdfast.types import Enqueued, SessionTask

queue = holdfast.connect(":memory:")
tasks = Tasks()


@dataclass
class Message:
    text: str


@queue.session_task("chat.message", join=True, timeout=30, limit=8)
def answer(context: SessionContext[Message], messages: list[Message]) -> str:
    assert_type(context.checkpoint(), list[Message])
    return ""


@tasks.session_task("chat.later")
async def later(context: AsyncSessionContext[Message], messages: Sequence[Message]) -> None:
    assert_type(await context.checkpoint(), list[Message])
    context.checkpoint()  # E: unused-coroutine


@queue.session_task("chat.reset", entry_type="command")
def reset(context: SessionContext[None]) -> None: ...


assert_type(answer, SessionTask[Message, str])
assert_type(answer.enqueue(Message("hi"), session="a"), Enqueued[Any])
answer.enqueue(Message("hi"), Message("there"), session="a", message_id="m1")
answer.using(session="a").enqueue(Message("hi"))
answer.enqueue("hi", session="a")  # E: arg-type
answer.enqueue(Message("hi"), session=7)  # E: arg-type
answer.enqueue(Message("hi"), sesion="a")  # E: call-arg
answer.new(7, session="a")  # E: arg-type
later.enqueue(Message("hi"), session="a")
reset.enqueue(session="a")
reset.enqueue("now", session="a")  # E: arg-type


@queue.session_task("chat.mixed")  # E: misc
def mixed(context: SessionContext[int], messages: list[str]) -> None: ...


@queue.session_task("chat.many", limit="8")  # E: arg-type
def many(context: SessionContext[int], messages: list[int]) -> None: ...
