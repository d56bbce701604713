"""A task is a function with a kind: calling it runs it, enqueueing it stores the call.

Every engine passes this file unchanged.
"""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import holdfast
from holdfast import AsyncTasks, Backoff, Conflict, Context, InvalidInput, Misconfigured, NewJob, Queue, Tasks
from holdfast.client.queue_state import state_of
from holdfast.domain import limits
from holdfast.domain.sessions import SESSION_OPTIONS
from holdfast.errors import UnknownKind
from holdfast.tasks.task import definition_of
from holdfast.types import AsyncContextTask, AsyncTask, ContextTask, Policy, Task
from tests.support.assertions import refused
from tests.support.stores import Harness
from tests.tasks.models import Point

if TYPE_CHECKING:
    import holdfast as checker_only


def send(to: str, subject: str = "hello", *, copies: int = 1) -> str:
    """Send a greeting."""
    return f"{to}: {subject} x{copies}"


async def fetch(address: str) -> str:
    return address.upper()


def resize(context: Context, picture: str) -> tuple[str, int]:
    return picture, context.attempt


def checked_only(context: checker_only.Context, picture: str) -> str:
    return picture


def taken_by_name(context: holdfast.Context) -> None: ...


def plot(points: list[Point], when: datetime) -> int:
    return len(points)


# --- enqueueing ----------------------------------------------------------------------------------------------------


def test_an_enqueued_call_is_a_job_of_its_kind_with_the_arguments_by_name(queue: Queue) -> None:
    task = queue.task("email.send")(send)

    enqueued = task.enqueue("ada@example.org", copies=2)

    assert enqueued.created
    assert enqueued.job.kind == "email.send"
    assert queue.get(enqueued.id).payload == {"to": "ada@example.org", "copies": 2}


def test_a_job_enqueued_by_name_only_is_the_same_call(queue: Queue) -> None:
    task = queue.task("email.send")(send)

    enqueued = queue.enqueue("email.send", {"to": "ada", "copies": 2})
    args, kwargs = definition_of(queue.tasks.get("email.send")).arguments.call(queue.get(enqueued.id).payload)

    assert task.function(*args, **kwargs) == "ada: hello x2"


def test_rich_arguments_come_back_from_the_store(queue: Queue) -> None:
    task = queue.task("plot")(plot)
    when = datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC)

    enqueued = task.enqueue([Point(1, 2), Point(3)], when)

    assert definition_of(task).arguments.call(queue.get(enqueued.id).payload) == (
        (),
        {"points": [Point(1, 2), Point(3, 0)], "when": when},
    )


def test_a_direct_call_runs_the_function_and_stores_nothing(queue: Queue) -> None:
    task = queue.task("email.send")(send)

    assert task("ada", copies=3) == "ada: hello x3"
    assert queue.counts() == {}


def test_a_context_is_the_workers_to_fill(queue: Queue) -> None:
    task = queue.task("picture.resize")(resize)

    enqueued = task.enqueue("a.png")
    claim = queue.claim()
    assert claim is not None

    assert enqueued.job.payload == {"picture": "a.png"}
    assert task(Context(claim), "a.png") == ("a.png", 1)


@pytest.mark.validation
def test_a_call_that_does_not_fit_is_refused_and_stores_nothing(queue: Queue) -> None:
    task = queue.task("email.send")(send)
    call: Any = task.enqueue

    with refused(queue, "arguments.to"):
        call()
    with refused(queue, "arguments.copies"):
        call("ada", copies="2")
    with refused(queue, "arguments.bcc"):
        call("ada", bcc="eve")


@pytest.mark.parametrize("text", ["a\0b", "\ud800"])
def test_text_that_cannot_be_stored_is_named_as_an_argument(queue: Queue, text: str) -> None:
    task = queue.task("email.send")(send)

    with refused(queue, "arguments.to"):
        task.enqueue(text)


@pytest.mark.validation
def test_arguments_beyond_the_size_of_a_payload_are_refused(queue: Queue) -> None:
    task = queue.task("email.send")(send)

    with refused(queue, "arguments"):
        task.enqueue("x" * limits.PAYLOAD_BYTES_MAX)


def test_a_refusal_of_the_store_is_passed_on(queue: Queue) -> None:
    task = queue.task("email.send")(send).using(job_id="one")
    task.enqueue("ada")

    with pytest.raises(Conflict):
        task.enqueue("eve")


def test_a_new_job_can_be_enqueued_with_others_and_in_a_transaction(queue: Queue) -> None:
    task = queue.task("email.send", priority=4)(send)

    queue.enqueue_many([task.new("ada"), task.using(priority=5).new("eve")])
    with queue.transaction() as tx:
        new = task.new("bob")
        tx.enqueue(new.kind, new.payload, **new.options)

    assert sorted((job.payload["to"], job.priority) for job in queue.jobs()) == [("ada", 4), ("bob", 4), ("eve", 5)]


# --- options -------------------------------------------------------------------------------------------------------


def test_the_options_of_a_task_hold_for_its_jobs(queue: Queue) -> None:
    task = queue.task("email.send", lane="mail", priority=3, max_attempts=2, backoff=Backoff(base=1))(send)

    job = task.enqueue("ada").job

    assert (job.lane, job.priority, job.max_attempts, job.backoff) == ("mail", 3, 2, Backoff(base=1))


def test_using_changes_options_for_one_call_and_leaves_the_task(queue: Queue) -> None:
    task = queue.task("email.send", priority=3)(send)

    other = task.using(delay=60, priority=5, dedupe_key="hello:ada", tags={"order": "42"})
    job = other.enqueue("ada").job

    assert (job.state, job.priority, job.dedupe_key, job.tags) == ("scheduled", 5, "hello:ada", {"order": "42"})
    assert task.enqueue("ada").job.priority == 3
    assert type(other) is Task
    assert other("ada") == task("ada")


@pytest.mark.validation
@pytest.mark.parametrize("option", holdfast.types.JobOptions.__annotations__)
def test_every_option_of_enqueue_reaches_the_check_of_the_job(queue: Queue, option: str) -> None:
    # Some options require a dedupe key, and some cannot be combined with one.
    key = {} if option in SESSION_OPTIONS else {"dedupe_key": "k"}
    options: Any = {**key, option: object()}
    task = queue.task("email.send")(send).using(**options)

    with pytest.raises(InvalidInput, match=f"^{option}"):
        task.enqueue("ada")


@pytest.mark.validation
def test_a_word_that_does_not_exist_is_refused(queue: Queue) -> None:
    options: Any = {"urgency": 3}
    task = queue.task("email.send")(send)

    with refused(queue, "urgency"):
        task.using(**options).enqueue("ada")
    with pytest.raises(InvalidInput, match=r"^urgency: unknown option"):
        queue.task("other", **options)(send)


def test_a_policy_has_defaults(queue: Queue) -> None:
    task = queue.task("email.send")(send)

    assert task.policy == Policy()
    assert task.policy.timeout_seconds == 3600
    assert task.policy.max_attempts == 5


def test_a_policy_is_what_the_declaration_says(queue: Queue) -> None:
    backoff = Backoff(base=1)
    task = queue.task(
        "email.send",
        timeout=timedelta(seconds=30),
        retry_on=OSError,
        permanent_on=[ValueError, KeyError],
        backoff=backoff,
        max_attempts=2,
    )(send)

    assert task.policy == Policy(30.0, (OSError,), (ValueError, KeyError), backoff, 2)
    assert task.using(priority=1).policy is task.policy


@pytest.mark.validation
@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"timeout": 0}, "timeout"),
        ({"timeout": "soon"}, "timeout"),
        ({"timeout": float("inf")}, "timeout"),
        ({"retry_on": "ValueError"}, "retry_on"),
        ({"retry_on": 3}, "retry_on"),
        ({"permanent_on": [ValueError, 3]}, "permanent_on[1]"),
        ({"retry_on": [int]}, "retry_on[0]"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"lane": ""}, "lane"),
        ({"backoff": 3}, "backoff"),
        ({"job_id": "one"}, "job_id"),
    ],
)
def test_an_invalid_option_is_refused_when_the_task_is_declared(queue: Queue, options: Any, field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        queue.task("email.send", **options)(send)

    assert caught.value.field == field
    assert len(queue.tasks) == 0


# --- declaring -----------------------------------------------------------------------------------------------------


def test_a_task_says_what_it_is(queue: Queue) -> None:
    task = queue.task("email.send", lane="mail")(send)

    assert task.function is send
    assert (task.kind, task.options, definition_of(task).takes_context, definition_of(task).is_async) == (
        "email.send",
        {"lane": "mail"},
        False,
        False,
    )
    assert (task.__name__, task.__doc__, task.__wrapped__) == ("send", "Send a greeting.", send)  # type: ignore[attr-defined]
    assert inspect.signature(task) == inspect.signature(send)
    assert repr(task) == "<Task email.send>"


def test_without_parentheses_the_name_of_the_function_is_the_kind(queue: Queue) -> None:
    task = queue.task(send)

    assert task.kind == "tests.tasks.test_tasks.send"
    assert queue.task()(fetch).kind == "tests.tasks.test_tasks.fetch"
    assert queue.task(lane="x")(plot).kind == "tests.tasks.test_tasks.plot"


@pytest.mark.parametrize("by_module", [True, False])
def test_a_program_names_its_tasks_as_a_worker_that_imports_it_does(tmp_path: Path, by_module: bool) -> None:
    program = tmp_path / "shop" / "mail.py"
    program.parent.mkdir()
    program.write_text(
        "import holdfast\n"
        "queue = holdfast.connect(':memory:')\n"
        "@queue.task\n"
        "def send() -> None: ...\n"
        "print(send.kind)\n"
    )
    how = ["-m", "shop.mail"] if by_module else [str(program)]

    ran = subprocess.run([sys.executable, *how], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60)

    assert ran.stdout.strip() == ("shop.mail.send" if by_module else "mail.send")


@pytest.mark.parametrize("function", [resize, checked_only, taken_by_name])
def test_a_first_parameter_annotated_as_a_context_is_seen(queue: Queue, function: Any) -> None:
    task = queue.task("picture")(function)

    assert isinstance(task, ContextTask)
    assert definition_of(task).takes_context
    assert "context" not in inspect.signature(task.enqueue).parameters


def test_a_function_of_either_colour_can_be_a_task(queue: Queue) -> None:
    task = queue.task("fetch")(fetch)

    assert definition_of(task).is_async
    assert asyncio.run(task("a")) == "A"
    assert task.enqueue("a").job.payload == {"address": "a"}


@pytest.mark.parametrize("function", [3, None, "x", int])
def test_only_a_function_can_be_a_task(queue: Queue, function: Any) -> None:
    with pytest.raises(InvalidInput, match=r"^function: must be a function"):
        queue.task("x")(function)


def test_a_task_is_not_made_a_task_again(queue: Queue) -> None:
    with pytest.raises(InvalidInput, match=r"^function: must be a function"):
        queue.task("y")(queue.task("x")(send))


def test_a_generator_cannot_be_a_task(queue: Queue) -> None:
    def count() -> Iterator[int]:
        yield 1

    with pytest.raises(InvalidInput, match=r"^function: is a generator"):
        queue.task("x")(count)


@pytest.mark.parametrize("kind", ["", " ", "a\nb", "x" * (limits.NAME_CHARS_MAX + 1), 3])
def test_a_kind_must_be_a_name(queue: Queue, kind: Any) -> None:
    with pytest.raises(InvalidInput, match=r"^kind: "):
        queue.task(kind)(send)


def test_a_kind_has_one_function(queue: Queue) -> None:
    task = queue.task("email.send")(send)

    with pytest.raises(Misconfigured, match=r"'email\.send' is declared twice"):
        queue.task("email.send")(plot)

    assert queue.task("email.send")(send).function is send
    assert queue.tasks.get("email.send") is task


def test_a_registry_knows_its_kinds_and_their_lanes(queue: Queue) -> None:
    queue.task("a")(send)
    queue.task("b", lane="mail")(plot)
    queue.task("c", lane="mail")(resize)

    assert queue.tasks.kinds() == ("a", "b", "c")
    assert state_of(queue).tasks.lanes(["c", "b"]) == ("mail",)
    assert state_of(queue).tasks.lanes(queue.tasks.kinds()) == ("default", "mail")
    assert [task.kind for task in queue.tasks] == ["a", "b", "c"]
    assert len(queue.tasks) == 3
    assert "a" in queue.tasks
    assert "d" not in queue.tasks
    with pytest.raises(UnknownKind, match=r"; declared kinds: 'a', 'b', 'c'$"):
        queue.tasks.get("d")


# --- collections ---------------------------------------------------------------------------------------------------


def test_a_collection_is_declared_without_a_queue_and_included_later(queue: Queue) -> None:
    tasks = Tasks()
    task = tasks.task("email.send", priority=2)(send)

    assert task("ada") == "ada: hello x1"
    assert task.new("ada") == NewJob("email.send", {"to": "ada"}, priority=2)
    with pytest.raises(Misconfigured, match="no queue includes"):
        task.enqueue("ada")

    queue.include(tasks)

    assert task.enqueue("ada").job.priority == 2
    assert queue.tasks.get("email.send") is task


def test_what_is_declared_after_the_collection_was_included_is_known_too(queue: Queue) -> None:
    tasks = Tasks()
    queue.include(tasks)

    task = tasks.task("email.send")(send)

    assert queue.tasks.get("email.send") is task


def test_including_a_collection_again_changes_nothing(queue: Queue) -> None:
    tasks = Tasks()
    tasks.task("email.send")(send)

    queue.include(tasks)
    queue.include(tasks)

    assert queue.tasks.kinds() == ("email.send",)


def test_a_collection_with_a_kind_that_is_taken_is_not_included(queue: Queue) -> None:
    tasks = Tasks()
    task = tasks.task("email.send")(send)
    queue.task("email.send")(plot)

    with pytest.raises(Misconfigured, match="declared twice"):
        queue.include(tasks)
    with pytest.raises(Misconfigured, match="no queue includes"):
        task.enqueue("ada")


def test_a_collection_has_one_queue_unless_it_is_moved(durable_harness: Harness, tmp_path: Path) -> None:
    tasks = Tasks()
    task = tasks.task("email.send")(send)
    first, second = durable_harness.open(), holdfast.connect(str(tmp_path / "second.db"))
    first.include(tasks)

    with pytest.raises(Misconfigured, match="included in another queue"):
        second.include(tasks)
    assert "email.send" not in second.tasks
    second.include(tasks, again=True)
    task.enqueue("ada")

    assert (len(first.jobs()), len(second.jobs())) == (0, 1)
    second.close()


# --- async tasks ---------------------------------------------------------------------------------------------------


def test_a_task_of_an_awaited_queue_is_enqueued_by_awaiting(harness: Harness) -> None:
    async def scenario() -> None:
        async with harness.open_async() as queue:
            task = queue.task("email.send", priority=2)(send)
            framed = queue.task("picture.resize")(resize)

            enqueued = await task.using(tags={"a": "b"}).enqueue("ada")
            picture = await framed.enqueue("a.png")

            assert (enqueued.job.payload, enqueued.job.priority, enqueued.job.tags) == ({"to": "ada"}, 2, {"a": "b"})
            assert picture.job.payload == {"picture": "a.png"}
            assert (type(task), type(framed)) == (AsyncTask, AsyncContextTask)
            with pytest.raises(InvalidInput, match=r"^arguments\.to: "):
                await task.enqueue("\0")

    asyncio.run(scenario())


def test_a_collection_of_awaited_tasks_is_included_alike(harness: Harness) -> None:
    async def scenario() -> None:
        tasks = AsyncTasks()
        task = tasks.task(fetch)
        async with harness.open_async() as queue:
            with pytest.raises(Misconfigured, match="no queue includes"):
                await task.enqueue("a")
            queue.include(tasks)
            assert (await task.enqueue("a")).created
            assert await task("a") == "A"

    asyncio.run(scenario())


def test_declaring_has_the_same_words_in_both_colours() -> None:
    for one, other in ((holdfast.Queue, holdfast.AsyncQueue), (Tasks, AsyncTasks)):
        assert inspect.signature(one.task).parameters == inspect.signature(other.task).parameters
        assert one.task.__doc__ == other.task.__doc__
    assert holdfast.Queue.include.__doc__ == holdfast.AsyncQueue.include.__doc__
    assert [*inspect.signature(holdfast.Queue.include).parameters] == ["self", "tasks", "again"]
    assert [*inspect.signature(holdfast.AsyncQueue.include).parameters] == ["self", "tasks", "again"]


class TestEnqueueMany:
    def test_calls_of_a_task_are_stored_together_with_its_options(self, queue: Queue) -> None:
        task = queue.task("send", lane="mail")(send)
        enqueued = task.enqueue_many(task.using(priority=copies).new("ada", copies=copies) for copies in (1, 2))

        assert [one.job.payload for one in enqueued] == [{"to": "ada", "copies": 1}, {"to": "ada", "copies": 2}]
        assert [(one.job.kind, one.job.lane, one.job.priority) for one in enqueued] == [
            ("send", "mail", 1),
            ("send", "mail", 2),
        ]

    def test_what_is_no_call_of_this_task_is_refused_and_nothing_is_stored(self, queue: Queue) -> None:
        task = queue.task("send")(send)
        for wrong in (NewJob("other", {}), {"to": "ada"}, "ada"):
            with refused(queue, "jobs[1]"):
                task.enqueue_many([task.new("ada"), wrong])  # type: ignore[list-item]  # wrong on purpose

        assert queue.counts() == {}

    def test_those_of_an_awaited_queue_are_awaited(self, harness: Harness) -> None:
        async def run() -> list[str]:
            async with harness.open_async() as queue:
                task = queue.task("send")(send)
                enqueued = await task.enqueue_many([task.new("ada"), task.new("bob")])
                return [one.job.payload["to"] for one in enqueued]

        assert asyncio.run(run()) == ["ada", "bob"]
