"""An exception raised while an attempt ends decides the attempt, and its slot is free for the next."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import pytest

from holdfast import Backoff, Done, NewJob, Queue, SessionContext
from tests.worker.workers import running_worker, wait_finished

POLICY: dict[str, Any] = {"max_attempts": 1, "backoff": Backoff(base=0)}


class Lazy(Mapping[str, int]):
    """A mapping whose items cannot be read, like a row whose connection is closed."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __getitem__(self, _key: str) -> NoReturn:
        raise self._error

    def __iter__(self) -> Iterator[str]:
        raise self._error

    def __len__(self) -> int:
        return 1


class Unshowable(Exception):  # noqa: N818  # the test checks its name
    def __str__(self) -> str:
        raise SystemExit("not to be shown")


def raise_unshowable() -> NoReturn:
    raise Unshowable


class Growing(dict[str, int]):
    """A dict that another thread changes while it is encoded."""

    def items(self) -> Any:
        for key in super().__iter__():
            self[f"{key}+"] = 1
            yield key, 1


ESCAPES: dict[str, tuple[Callable[[], Any], str]] = {
    "a_dict_that_grows": (lambda: Growing(a=1), "runtime_error"),
    "a_lazy_container": (lambda: Lazy(ConnectionError("the cursor is closed")), "connection_error"),
    "an_exit": (lambda: Lazy(SystemExit(3)), "system_exit"),
    "an_interrupt": (lambda: Lazy(KeyboardInterrupt()), "keyboard_interrupt"),
    "a_cancel": (lambda: Lazy(asyncio.CancelledError()), "cancelled_error"),
    "an_error_that_exits_when_shown": (raise_unshowable, "unshowable"),
    "a_follow_up": (lambda: Done(None, [NewJob("next", Lazy(SystemExit(3)))]), "result_invalid"),
    "a_list_of_follow_ups": (lambda: Done(None, Lazy(SystemExit(3))), "result_invalid"),  # type: ignore[arg-type]
}


def _fails_and_frees_the_slot(queue: Queue, reason: str, enqueue: Callable[[], str]) -> None:
    """Run a bad job and a good one in one slot."""
    queue.task("good")(lambda: "ran")
    bad, good = enqueue(), queue.enqueue("good", {}).id
    with running_worker(queue, concurrency=1):
        assert wait_finished(queue, good).result == "ran"
        job = wait_finished(queue, bad)

    assert job.state == "failed"
    assert job.failure is not None
    assert job.failure.reason == reason


@pytest.mark.parametrize("name", ESCAPES)
def test_what_a_result_raises_fails_the_job_and_frees_its_slot(local_queue: Queue, name: str) -> None:
    function, reason = ESCAPES[name]
    local_queue.task("bad", **POLICY)(function)
    _fails_and_frees_the_slot(local_queue, reason, lambda: local_queue.enqueue("bad", {}).id)


@pytest.mark.parametrize("name", ESCAPES)
def test_what_the_result_of_an_async_handler_raises_fails_the_job(local_queue: Queue, name: str) -> None:
    function, reason = ESCAPES[name]

    async def bad() -> Any:
        return function()

    local_queue.task("bad", **POLICY)(bad)
    _fails_and_frees_the_slot(local_queue, reason, lambda: local_queue.enqueue("bad", {}).id)


@pytest.mark.parametrize("name", ["a_dict_that_grows", "an_exit", "an_error_that_exits_when_shown"])
def test_what_the_result_of_a_turn_raises_fails_its_messages(local_queue: Queue, name: str) -> None:
    function, reason = ESCAPES[name]

    @local_queue.session_task("bad", **POLICY)
    def bad(context: SessionContext[Any]) -> Any:
        return function()

    _fails_and_frees_the_slot(local_queue, reason, lambda: bad.enqueue(session="chat").id)


class TestACancelOfItsOwnTask:
    def test_fails_the_attempt_like_any_other_error(self, local_queue: Queue) -> None:
        async def bad() -> None:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)

        local_queue.task("bad", **POLICY)(bad)
        _fails_and_frees_the_slot(local_queue, "cancelled_error", lambda: local_queue.enqueue("bad", {}).id)

    def test_that_is_not_raised_before_the_handler_returns_changes_nothing(self, local_queue: Queue) -> None:
        ran = []

        async def odd(number: int) -> int:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            ran.append(number)
            return number

        local_queue.task("odd", **POLICY)(odd)
        enqueued = [local_queue.enqueue("odd", {"number": number}) for number in range(3)]
        with running_worker(local_queue, concurrency=1):
            assert [wait_finished(local_queue, one.id).result for one in enqueued] == [0, 1, 2]

    def test_that_comes_after_its_end_leaves_no_job_behind(self, local_queue: Queue) -> None:
        async def later() -> None:
            task = asyncio.current_task()
            assert task is not None
            asyncio.get_running_loop().call_soon(task.cancel)

        local_queue.task("later", max_attempts=50, backoff=Backoff(base=0))(later)
        enqueued = [local_queue.enqueue("later", {}) for _ in range(20)]
        with running_worker(local_queue, concurrency=2):
            assert {wait_finished(local_queue, one.id).state for one in enqueued} == {"done"}
