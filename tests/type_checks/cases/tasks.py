"""What an editor and mypy know of tasks. A line with `# E:` is wrong, and for that reason."""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, assert_type

import holdfast
from holdfast import Context, NewJob, Tasks
from holdfast.types import AsyncEnqueued, ContextTask, Enqueued, Task

queue = holdfast.connect(":memory:")
tasks = Tasks()


@dataclass
class Letter:
    text: str


@queue.task
def bare(to: str, copies: int = 1) -> float:
    return float(copies)


@queue.task("email.send", max_attempts=5, timeout=30, retry_on=[OSError], lane="mail")
def send(to: str, letter: Letter, *, copies: int = 1) -> dict[str, str]:
    return {}


@queue.task("picture.resize")
def resize(context: Context, picture: str, width: int = 100) -> None: ...


@queue.task()
async def fetch(address: str) -> bytes:
    return b""


@queue.task("fetch.framed")
async def fetch_framed(context: Context, *, address: str) -> bytes:
    return b""


@queue.task("nothing")
def nothing() -> None: ...


@queue.task("anything")
def anything(payload: Any) -> None: ...


@tasks.task("collected")
def collected(number: int) -> None: ...


# The task has the function's own parameters.
assert_type(bare.enqueue("ada"), Enqueued[float])
assert_type(bare.enqueue("ada").result(timeout=1), float)
assert_type(fetch.enqueue("address").result(timeout=1), bytes)
assert_type(queue.enqueue(bare.new("ada")), Enqueued[Any])
queue.enqueue("email.send", dely=3)  # E: call-arg
queue.enqueue("email.send", delay="3")  # E: arg-type
bare.enqueue(to="ada", copies=2)
bare.enqueue()  # E: call-arg
bare.enqueue(3)  # E: arg-type
bare.enqueue("ada", copies="two")  # E: arg-type
bare.enqueue("ada", bcc="eve")  # E: call-arg
send.enqueue("ada", Letter("hello"), copies=2)
send.enqueue("ada", "hello")  # E: arg-type
send.enqueue("ada", Letter("hello"), 2)  # E: call-arg
nothing.enqueue()
nothing.enqueue(1)  # E: call-arg
collected.enqueue(3)
collected.enqueue("3")  # E: arg-type

# A direct call is the function's.
assert_type(bare("ada"), float)
assert_type(send("ada", Letter("hello")), dict[str, str])
coming: Coroutine[Any, Any, bytes] = fetch("address")
bare(3)  # E: arg-type

# A context is the worker's to fill, and a direct caller's to bring.
resize.enqueue("a.png", width=3)
resize.enqueue(picture="a.png")
resize.enqueue("a.png", "wide")  # E: arg-type
fetch_framed.enqueue(address="a")
fetch_framed.enqueue()  # E: call-overload


def directly(context: Context) -> None:
    resize(context, "a.png")
    resize("a.png")  # E: arg-type call-arg
    resize.enqueue(context, "a.png")  # E: arg-type


# Options are the words of enqueue, and leave the task what it is.
bare.using(delay=60, priority=5, dedupe_key="hello:ada").enqueue("ada")
bare.using(delay=60).enqueue(3)  # E: arg-type
bare.using(urgency=3)  # E: call-arg
bare.using(priority="high")  # E: arg-type
resize.using(delay=1).enqueue("a.png")
queue.task("x", timeout="soon")  # E: call-overload
queue.task("x", retry_on=[int])  # E: list-item

# New jobs.
assert_type(bare.new("ada"), NewJob)
bare.new(3)  # E: arg-type

# What takes anything may be called with anything.
anything.enqueue({"a": 1})
anything.enqueue(payload={"a": 1})


def kinds_of_task() -> None:
    plain: Task[..., Any] = send
    framed: ContextTask[..., Any] = resize
    framed = send  # E: assignment
    print(plain, framed)


# Collections have the colour of their queue.
queue.include(tasks)
queue.include(holdfast.AsyncTasks())  # E: arg-type


async def awaited() -> None:
    aqueue = holdfast.connect_async(":memory:")

    @aqueue.task("email.send", priority=3)
    def later(to: str) -> int:
        return 1

    @aqueue.task
    async def framed(context: Context, to: str) -> int:
        return 1

    assert_type(await later.enqueue("ada"), AsyncEnqueued[int])
    assert_type(await (await framed.enqueue("ada")).result(timeout=1), int)
    later.enqueue("ada")  # E: unused-coroutine
    await later.enqueue(3)  # E: arg-type
    await later.using(delay=3).enqueue(to="ada")
    await framed.enqueue("ada")
    await framed.enqueue()  # E: call-overload
    assert_type(later("ada"), int)
    assert_type(await framed(Context(aqueue_claim()), "ada"), int)
    aqueue.include(tasks)  # E: arg-type


def aqueue_claim() -> holdfast.Claim:
    raise NotImplementedError


def in_a_handler(context: Context) -> None:
    context.follow_up(send, {"to": "ada"}, priority=3)
    context.follow_up(send.new("ada", Letter("hello")))
    context.follow_up("email.send", {"to": "ada"})
    context.follow_up("email.send", urgency=3)  # E: call-arg
    context.progress("loading", 40)
    context.progress(percent="40")  # E: arg-type
    context.attach("a.txt", "text")  # E: arg-type
    with context.transaction(timeout=1) as tx:
        tx.enqueue("email.send", {"to": "ada"})
    raise holdfast.Retry("busy", after=30, reason="rate_limit")


async def in_an_awaited_handler(context: Context) -> None:
    async with context.transaction() as tx:
        await tx.enqueue("email.send", {"to": "ada"})
    raise holdfast.Defer(until="tomorrow")  # E: arg-type


# Many calls in one commit: each is checked as a call.
assert_type(bare.enqueue_many([bare.new("ada"), bare.new(to="bob", copies=2)]), list[Enqueued[Any]])
bare.enqueue_many(bare.new(to) for to in ("ada", "bob"))
bare.enqueue_many([bare.new(1)])  # E: arg-type
bare.enqueue_many([{"to": "ada"}])  # E: list-item
bare.enqueue_many(["ada"])  # E: list-item
