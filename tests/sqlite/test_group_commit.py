"""Group commit: many callers, few commits, and no result before the commit it depends on."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Conflict, Done, HoldfastError, LeaseLost, OutcomeUnknown
from holdfast.client.connect import async_queue_on, queue_on
from holdfast.domain.new_job import check_job
from holdfast.errors import StoreFull
from holdfast.operations.enqueue import enqueue_jobs
from holdfast.storage.contract import StoreTransaction
from holdfast.storage.notifications import lane_topic
from holdfast.storage.sqlite import group_commit
from holdfast.storage.sqlite.store import SqliteStore
from tests.chaos.processes import PATIENCE_SECONDS
from tests.chaos.threads import in_background, interruptible, wait_until
from tests.support.faults import Crashed

SLOWLY = 0.002


class Watch:
    """Observes a store: counts, delays commits, gathers a group deliberately, and raises where a test requests it."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.slow = False
        self.store: SqliteStore
        self._gather = 0
        self._raising: dict[str, list[BaseException | None]] = {}

    def gather(self, others: int) -> None:
        """Delay the next leader until *others* callers are queued behind it."""
        self._gather = others

    def raise_at(self, name: str, error: BaseException, *, skip: int = 0) -> None:
        """Raise once, at the statement of this name after *skip* others of it."""
        self._raising[name] = [*[None] * skip, error]

    def __call__(self, name: str) -> None:
        self.names.append(name)
        if name == "begin" and self._gather:
            others, self._gather = self._gather, 0
            wait_until(lambda: len(self.store._writer._queue.queue) >= others)
        if name == "commit" and self.slow:
            time.sleep(SLOWLY)  # so that an answer given too early is seen to be early
        if (waiting := self._raising.get(name)) and (error := waiting.pop(0)) is not None:
            raise error

    def groups(self) -> list[int]:
        """Return how many jobs each commit contained."""
        sizes, size = [], 0
        for name in self.names:
            size += name == "job_insert"
            if name == "committed":
                sizes.append(size)
                size = 0
        return sizes


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "jobs.db")


@pytest.fixture
def watch(path: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    # A group is closed after 20 ms, which would split the groups of a test on a busy machine.
    monkeypatch.setattr(group_commit, "_GROUP_SECONDS", PATIENCE_SECONDS)
    watch = Watch()
    watch.store = SqliteStore(path, observe=watch)
    watch.store.migrate()
    watch.names.clear()
    yield watch
    in_background(watch.store.close).result(PATIENCE_SECONDS)


@pytest.fixture
def queue(watch: Watch) -> holdfast.Queue:
    return queue_on(watch.store)


def committed_state(path: str, job_id: str) -> str | None:
    """Return the state of a job as another connection sees it, that is, as committed."""
    connection = sqlite3.connect(path)
    try:
        row = connection.execute("select state from holdfast_job_row where id = ?", (job_id,)).fetchone()
    finally:
        connection.close()
    return None if row is None else str(row[0])


def together(works: list[Callable[[], Any]]) -> list[Any]:
    """Run all at the same time, each in its own thread, and return their results or errors."""

    def answer(work: Callable[[], Any]) -> Any:
        try:
            return work()
        except BaseException as error:
            return error

    futures = [in_background(answer, work) for work in works]
    return [future.result(PATIENCE_SECONDS) for future in futures]


def gathered(watch: Watch, works: list[Callable[[], Any]]) -> list[Any]:
    """Run all in one group: the first leads."""
    watch.gather(len(works) - 1)
    leading = in_background(lambda: together(works[:1]))
    wait_until(lambda: watch.store._writer._queue.leader is not None)
    others = together(works[1:])
    return [*leading.result(PATIENCE_SECONDS), *others]


# --- results depend on commits -------------------------------------------------------------------------------------


class TestAnswers:
    def test_sixty_four_threads_hear_nothing_before_its_commit(
        self, queue: holdfast.Queue, watch: Watch, path: str
    ) -> None:
        watch.slow = True
        early: list[str] = []

        def live(name: str) -> None:
            for number in range(4):
                job_id = f"{name}-{number}"
                queue.enqueue(name, job_id=job_id)
                early.extend([job_id] if committed_state(path, job_id) is None else [])
                claim = queue.claim(kinds=[name])
                assert claim is not None
                early.extend([f"claim {job_id}"] if committed_state(path, job_id) != "running" else [])
                queue.settle(claim, Done())
                early.extend([f"done {job_id}"] if committed_state(path, job_id) != "done" else [])
                with pytest.raises(LeaseLost):
                    queue.settle(claim, Done("other"))

        answers = together([lambda name=f"t{n}": live(name) for n in range(64)])  # type: ignore[misc]
        assert [answer for answer in answers if answer is not None] == []
        assert early == []
        assert watch.names.count("commit") * 2 < 64 * 4 * 3

    def test_two_hundred_tasks_hear_nothing_before_its_commit(self, watch: Watch, path: str) -> None:
        watch.slow = True
        queue = async_queue_on(watch.store)

        async def live(job_id: str) -> list[str]:
            await queue.enqueue(job_id, job_id=job_id)
            seen = [committed_state(path, job_id)]
            claim = await queue.claim(kinds=[job_id])
            assert claim is not None
            await queue.settle(claim, Done())
            with pytest.raises(LeaseLost):
                await queue.settle(claim, Done("other"))
            return [str(state) for state in (*seen, committed_state(path, job_id))]

        async def main() -> list[list[str]]:
            return await asyncio.gather(*(live(f"job-{number}") for number in range(200)))

        assert asyncio.run(main()) == [["ready", "done"]] * 200
        assert watch.names.count("commit") * 2 < 600

    def test_a_refusal_is_not_heard_before_the_commit_of_what_it_rests_on(
        self, queue: holdfast.Queue, watch: Watch, path: str
    ) -> None:
        watch.slow = True

        def refused(number: int) -> str | None:
            with pytest.raises(Conflict):
                queue.enqueue("mail", {"n": number}, job_id="taken")
            return committed_state(path, "taken")

        works: list[Callable[[], Any]] = [lambda: queue.enqueue("mail", job_id="taken").created]
        works += [lambda number=number: refused(number) for number in range(8)]  # type: ignore[misc]
        assert gathered(watch, works) == [True, *["ready"] * 8]
        assert watch.groups() == [1]


# --- one group -----------------------------------------------------------------------------------------------------


def enqueue_then_raise(watch: Watch, job_id: str, error: BaseException) -> Callable[[], Any]:
    """Return a call whose operation stores a job and then fails."""

    async def operation(tx: StoreTransaction) -> None:
        admission = check_job({"kind": "mail", "job_id": job_id}, fresh_id=job_id)
        await enqueue_jobs(tx, [admission])
        raise error

    return lambda: watch.store.write(operation)


def enqueue(queue: holdfast.Queue, job_id: str) -> Callable[[], Any]:
    return lambda: queue.enqueue("mail", job_id=job_id).created


def ids(queue: holdfast.Queue) -> set[str]:
    return {job.id for job in queue.jobs(limit=1000)}


class TestOneGroup:
    @pytest.mark.parametrize("place", [0, 1, 3])
    def test_a_failing_script_undoes_only_itself(self, queue: holdfast.Queue, watch: Watch, place: int) -> None:
        error = RuntimeError("broken")
        works = [enqueue(queue, f"good-{number}") for number in range(4)]
        works.insert(place, enqueue_then_raise(watch, "bad", error))
        answers = gathered(watch, works)
        assert answers.pop(place) is error
        assert answers == [True] * 4
        assert ids(queue) == {f"good-{number}" for number in range(4)}
        assert watch.names.count("commit") == 1

    def test_a_group_has_a_bound_in_number(
        self, queue: holdfast.Queue, watch: Watch, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(group_commit, "_GROUP_MAX", 8)
        monkeypatch.setattr(group_commit, "_GROUP_SECONDS", PATIENCE_SECONDS)
        assert gathered(watch, [enqueue(queue, f"job-{number}") for number in range(20)]) == [True] * 20
        assert max(watch.groups()) == 8
        assert sum(watch.groups()) == 20

    def test_a_group_has_a_bound_in_time(
        self, queue: holdfast.Queue, watch: Watch, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(group_commit, "_GROUP_SECONDS", 0)
        assert gathered(watch, [enqueue(queue, f"job-{number}") for number in range(10)]) == [True] * 10
        assert max(watch.groups()) <= 2
        assert sum(watch.groups()) == 10

    def test_a_task_cancelled_while_queued_is_still_committed(self, watch: Watch) -> None:
        queue = async_queue_on(watch.store)

        async def main() -> list[Any]:
            watch.gather(3)
            leading = asyncio.create_task(queue.enqueue("mail", job_id="first"))
            await asyncio.to_thread(wait_until, lambda: watch.store._writer._queue.leader is not None)
            queued = [asyncio.create_task(queue.enqueue("mail", job_id=f"queued-{n}")) for n in range(2)]
            await asyncio.to_thread(wait_until, lambda: len(watch.store._writer._queue.queue) == 2)
            queued[0].cancel()
            with suppress(asyncio.CancelledError):
                await queued[0]
            last = asyncio.create_task(queue.enqueue("mail", job_id="last"))
            return await asyncio.gather(leading, *queued, last, return_exceptions=True)

        answers = asyncio.run(main())
        assert isinstance(answers[1], asyncio.CancelledError)
        assert ids(queue_on(watch.store)) == {"first", "queued-0", "queued-1", "last"}
        assert watch.groups() == [4]


# --- commits that fail ---------------------------------------------------------------------------------------------


def driver_error(code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("as if")
    error.sqlite_errorcode = code
    return error


class _Unconfirmed(sqlite3.Cursor):
    """A cursor whose next commit raises an I/O error, after committing or instead of it."""

    mode: str = ""

    def execute(self, sql: str, *values: Any) -> Any:
        mode, happened = type(self).mode, None
        if sql == "commit" and mode:
            type(self).mode = ""
            if mode == "after":
                happened = super().execute(sql)
            raise driver_error(sqlite3.SQLITE_IOERR_FSYNC) from (None if happened is None else RuntimeError("late"))
        return super().execute(sql, *values)


class _WithUnconfirmed(sqlite3.Connection):
    def cursor(self, factory: Any = _Unconfirmed) -> Any:
        return super().cursor(factory)


class TestCommitsThatFail:
    def test_all_of_the_group_are_told_and_nothing_is_stored(self, queue: holdfast.Queue, watch: Watch) -> None:
        watch.raise_at("commit", driver_error(sqlite3.SQLITE_FULL))
        works = [enqueue(queue, f"job-{number}") for number in range(5)]
        works.append(enqueue_then_raise(watch, "bad", RuntimeError("a refusal that rests on the same commit")))
        answers = gathered(watch, works)
        assert {type(answer) for answer in answers} == {StoreFull}
        assert ids(queue) == set()
        assert enqueue(queue, "job-0")()

    @pytest.mark.parametrize("mode", ["after", "instead"])
    def test_an_unconfirmed_commit_is_told_and_sending_again_is_safe(
        self, path: str, mode: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        connect = sqlite3.connect
        monkeypatch.setattr(sqlite3, "connect", lambda *a, **k: connect(*a, **{**k, "factory": _WithUnconfirmed}))
        monkeypatch.setattr(group_commit, "_GROUP_SECONDS", PATIENCE_SECONDS)
        watch = Watch()
        watch.store = SqliteStore(path, observe=watch)
        queue = queue_on(watch.store)
        queue.migrate()
        works = [enqueue(queue, f"job-{number}") for number in range(5)]
        monkeypatch.setattr(_Unconfirmed, "mode", mode)
        answers = gathered(watch, works)
        assert {type(answer) for answer in answers} == {OutcomeUnknown}
        assert together(works) == [mode == "instead"] * 5
        assert len(ids(queue)) == 5
        queue.close()


# --- leaders that are stopped --------------------------------------------------------------------------------------


class _Rude:
    """A listener that fails when it is woken, as one of a closed event loop may."""

    def __init__(self, error: BaseException) -> None:
        self._error: BaseException | None = error

    def wake(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error


class TestStoppedLeaders:
    @pytest.mark.parametrize("skip", [0, 1, 3])
    def test_a_leader_that_is_stopped_does_not_take_the_others_along(
        self, queue: holdfast.Queue, watch: Watch, skip: int
    ) -> None:
        watch.raise_at("job_insert", Crashed(), skip=skip)
        answers = gathered(watch, [enqueue(queue, f"job-{number}") for number in range(5)])
        assert isinstance(answers[0], Crashed)
        assert answers[1:] == [True] * 4
        assert ids(queue) == {f"job-{number}" for number in range(1, 5)}

    def test_a_leader_stopped_at_the_commit_does_not_take_the_others_along(
        self, queue: holdfast.Queue, watch: Watch
    ) -> None:
        watch.raise_at("commit", Crashed())
        answers = gathered(watch, [enqueue(queue, f"job-{number}") for number in range(5)])
        assert isinstance(answers[0], Crashed)
        assert answers[1:] == [True] * 4
        assert ids(queue) == {f"job-{number}" for number in range(1, 5)}

    @pytest.mark.parametrize(
        "error", [RuntimeError("loop is closed"), KeyboardInterrupt()], ids=["error", "interrupt"]
    )
    def test_what_goes_wrong_after_the_commit_changes_no_answer_of_others(
        self, queue: holdfast.Queue, watch: Watch, error: BaseException
    ) -> None:
        queue.enqueue_many([{"kind": "mail"} for _ in range(20)])
        rude = _Rude(error)
        watch.store.notifier.add(lane_topic("default"), rude)
        # The leader's enqueue sends the notification on which the listener fails; the others claim.
        works: list[Callable[[], Any]] = [enqueue(queue, "first")]
        works += [lambda: queue.claim_many(limit=1)] * 4
        answers = gathered(watch, works)
        watch.store.notifier.remove(lane_topic("default"), rude)
        claims = [claim for answer in answers[1:] for claim in answer]
        assert len(claims) == 4
        assert queue.counts()["running"] == 4
        assert queue.get("first").state in {"ready", "running"}

    def test_a_leader_in_a_thread_pool_is_followed_by_tasks_and_threads_alike(self, watch: Watch) -> None:
        queue, tasks = queue_on(watch.store), async_queue_on(watch.store)

        async def main() -> list[Any]:
            threads = [asyncio.to_thread(queue.enqueue, "mail", job_id=f"thread-{n}") for n in range(30)]
            awaited = [tasks.enqueue("mail", job_id=f"task-{n}") for n in range(100)]
            return list(await asyncio.gather(*threads, *awaited))

        assert len(asyncio.run(main())) == 130
        assert len(ids(queue)) == 130


# --- interrupts ----------------------------------------------------------------------------------------------------


def interrupt_once(interrupt: Callable[[], None], come: Callable[[], bool]) -> None:
    wait_until(come)
    interrupt()


class TestInterrupts:
    def test_an_interrupt_while_queued_leaves_no_caller_waiting(self, queue: holdfast.Queue, watch: Watch) -> None:
        watch.gather(2)
        leading = in_background(enqueue(queue, "leading"))
        wait_until(lambda: watch.store._writer._queue.leader is not None)
        with interruptible() as interrupt:
            in_background(lambda: interrupt_once(interrupt, lambda: len(watch.store._writer._queue.queue) == 1))
            with pytest.raises(KeyboardInterrupt):
                queue.enqueue("mail", job_id="interrupted")
        others = [in_background(enqueue(queue, f"other-{number}")) for number in range(2)]
        assert [one.result(PATIENCE_SECONDS) for one in (leading, *others)] == [True] * 3
        assert ids(queue) == {"leading", "other-0", "other-1"}

    def test_an_interrupt_while_the_lead_is_handed_over_leaves_no_caller_waiting(
        self, queue: holdfast.Queue, watch: Watch, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        interrupted = threading.Event()
        with interruptible() as interrupt:

            def summon_slowly(ticket: group_commit.Ticket) -> None:
                """Interrupt the waiting caller between being chosen and being woken."""
                interrupt()
                interrupted.wait(1)
                ticket.wake()

            # A transaction is not taken into a group: it gets the lead.
            watch.gather(1)
            leading = in_background(enqueue(queue, "leading"))
            wait_until(lambda: watch.store._writer._queue.leader is not None)
            monkeypatch.setattr(group_commit.Ticket, "wake_to_lead", summon_slowly)
            with pytest.raises(KeyboardInterrupt), queue.transaction():
                raise AssertionError("the interrupt did not come")
            monkeypatch.undo()
            interrupted.set()
        assert leading.result(PATIENCE_SECONDS)
        assert in_background(enqueue(queue, "later")).result(PATIENCE_SECONDS)


# --- transactions and operations -----------------------------------------------------------------------------------


class TestMixed:
    def test_transactions_and_scripts_share_the_writer_under_load(self, queue: holdfast.Queue, watch: Watch) -> None:
        tasks = async_queue_on(watch.store)

        def script(name: str) -> None:
            for number in range(10):
                queue.enqueue("mail", job_id=f"{name}-{number}")

        def transaction(name: str) -> None:
            for number in range(10):
                with suppress(HoldfastError), queue.transaction() as tx:
                    tx.enqueue("mail", job_id=f"{name}-{number}")
                    tx.enqueue("mail", job_id=f"{name}-{number}-twin")
                    if number % 2:
                        raise HoldfastError("undo")

        async def task(name: str) -> None:
            for number in range(10):
                async with tasks.transaction() as tx:
                    await tx.enqueue("mail", job_id=f"{name}-{number}")
                await tasks.enqueue("mail", job_id=f"{name}-{number}-after")

        async def all_tasks() -> None:
            await asyncio.gather(*(task(f"task-{number}") for number in range(5)))

        works: list[Callable[[], Any]] = [lambda: asyncio.run(all_tasks())]
        works += [lambda name=f"script-{n}": script(name) for n in range(8)]  # type: ignore[misc]
        works += [lambda name=f"tx-{n}": transaction(name) for n in range(4)]  # type: ignore[misc]
        assert together(works) == [None] * 13
        kept = ids(queue)
        assert len(kept) == 8 * 10 + 4 * 5 * 2 + 5 * 10 * 2
        assert not any(name.startswith("tx") and int(name.split("-")[2]) % 2 for name in kept)

    def test_a_cancelled_wait_for_a_transaction_hands_its_turn_on(self, watch: Watch) -> None:
        queue = async_queue_on(watch.store)

        async def wait_in_vain() -> None:
            async with queue.transaction():
                raise AssertionError("the cancellation did not come")

        async def main() -> None:
            async with queue.transaction() as tx:
                await tx.enqueue("mail", job_id="held")
                waiting = [asyncio.create_task(wait_in_vain()) for _ in range(3)]
                behind = asyncio.create_task(queue.enqueue("mail", job_id="behind"))
                await asyncio.to_thread(wait_until, lambda: len(watch.store._writer._queue.queue) == 4)
                for task in waiting:
                    task.cancel()
                await asyncio.gather(*waiting, return_exceptions=True)
            assert (await asyncio.wait_for(behind, PATIENCE_SECONDS)).created

        asyncio.run(main())
        assert ids(queue_on(watch.store)) == {"held", "behind"}
