"""A handler that kills its process fails only its own attempt, and the failure tells how the process died."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from holdfast import Queue
from tests.chaos.processes import stop
from tests.chaos.threads import wait_until
from tests.support.assertions import failure_of
from tests.worker.isolation import handlers
from tests.worker.isolation.processes import is_gone, isolated, marked
from tests.worker.workers import running_worker, wait_finished

DEATHS = {
    "segfault": "its process was killed by signal 11 (SIGSEGV)",
    "exit": "its process ended with exit code 7 before the handler had returned",
    "abort": "its process was killed by signal 6 (SIGABRT)",
    "kill": "its process was killed by signal 9 (SIGKILL): by a user or program, or by the kernel (out of memory)",
}


class TestAProcessThatDies:
    def test_it_fails_its_attempt_among_healthy_ones(self, queue: Queue) -> None:
        with running_worker(queue, concurrency=4):
            enqueued = {}
            for how in DEATHS:
                enqueued[how] = handlers.die.enqueue(how).id
                healthy = [handlers.echo.enqueue(number).id for number in range(5)]
                assert [wait_finished(queue, job_id).result for job_id in healthy] == list(range(5))
            found = {how: wait_finished(queue, job_id) for how, job_id in enqueued.items()}

        for how, message in DEATHS.items():
            failure = found[how].failure
            assert failure is not None
            assert (failure.failure_class, failure.reason, failure.message) == ("transient", "process_died", message)
        assert {job.state for job in queue.jobs(kind="echo").jobs} == {"done"}

    def test_an_awaited_one_does_too(self, queue: Queue) -> None:
        enqueued = handlers.die_later.enqueue("segfault")
        with running_worker(queue):
            failure = wait_finished(queue, enqueued.id).failure

        assert failure is not None
        assert failure.reason == "process_died"

    def test_a_crash_in_c_shows_the_python_frames_that_led_to_it(self, queue: Queue) -> None:
        enqueued = handlers.die.enqueue("segfault")
        with running_worker(queue):
            failure = wait_finished(queue, enqueued.id).failure

        assert failure is not None
        assert "Segmentation fault" in (failure.traceback or "")
        assert " in crash\n" in (failure.traceback or "")

    def test_its_attempts_are_spent_one_by_one(self, queue: Queue) -> None:
        enqueued = handlers.die_twice.enqueue("exit")
        with running_worker(queue):
            job = wait_finished(queue, enqueued.id)

        assert (job.state, job.attempt) == ("failed", 2)
        assert [failure_of(attempt).reason for attempt in queue.attempts(enqueued.id)] == ["process_died"] * 2

    def test_one_that_sends_an_invalid_message_is_killed(self, queue: Queue) -> None:
        with running_worker(queue):
            failure = wait_finished(queue, handlers.die.enqueue("garbage").id).failure
            assert wait_finished(queue, handlers.echo.enqueue(1).id).result == 1

        assert failure is not None
        assert failure.reason == "process_died"
        assert "sent an invalid message" in failure.message

    def test_what_it_printed_before_is_not_lost(
        self, queue: Queue, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # Otherwise all output would be unbuffered anyway.
        monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
        with running_worker(queue):
            wait_finished(queue, handlers.die.enqueue("print and exit").id)

        assert "famous last words\n" in capfd.readouterr().out

    def test_what_it_started_dies_with_it(self, queue: Queue, tmp_path: Path) -> None:
        place = tmp_path / "grandchild"
        with running_worker(queue):
            wait_finished(queue, handlers.family.enqueue(str(place)).id)

        wait_until(lambda: is_gone(marked(place)))


class TestKilledFromOutside:
    def test_a_running_one_fails_its_attempt(self, queue: Queue, tmp_path: Path) -> None:
        started = tmp_path / "started"
        enqueued = handlers.linger_on.using(max_attempts=1).enqueue(str(started), str(tmp_path / "never"))
        with running_worker(queue):
            os.kill(marked(started), signal.SIGKILL)
            failure = wait_finished(queue, enqueued.id).failure

        assert failure is not None
        assert failure.reason == "process_died"
        assert "signal 9 (SIGKILL)" in failure.message

    def test_a_free_one_harms_no_job(self, queue: Queue) -> None:
        with running_worker(queue, concurrency=1):
            first = wait_finished(queue, handlers.which.enqueue().id).result
            for _ in range(10):
                os.kill(first, signal.SIGKILL)
                job = wait_finished(queue, handlers.which.enqueue().id)
                assert (job.state, job.attempt) == ("done", 1)
                assert job.result != first
                first = job.result

    def test_one_that_has_not_read_what_to_do_harms_no_job(self, queue: Queue) -> None:
        with running_worker(queue, concurrency=1) as working:
            first = wait_finished(queue, handlers.which.enqueue().id).result
            stop(first)
            enqueued = handlers.which.enqueue()
            wait_until(lambda: any(job.seconds is not None for job in working.worker.status().running))
            os.kill(first, signal.SIGKILL)
            job = wait_finished(queue, enqueued.id)

        assert (job.state, job.attempt) == ("done", 1)
        assert job.result != first

    def test_a_dead_fork_server_is_replaced(self, queue: Queue, tmp_path: Path) -> None:
        started = tmp_path / "started"
        # Only SIGKILL can end this handler.
        enqueued = handlers.hold.using(max_attempts=1).enqueue(str(started), 600)
        with running_worker(queue):
            running = marked(started)
            fork_server = int(Path(f"/proc/{running}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])
            os.kill(fork_server, signal.SIGKILL)
            failure = wait_finished(queue, enqueued.id).failure
            wait_until(lambda: is_gone(running))
            assert wait_finished(queue, handlers.echo.enqueue(1).id).result == 1

        assert failure is not None
        assert failure.reason == "process_died"


class TestMemory:
    def test_too_much_is_a_failure_that_says_so_among_healthy_ones(self, queue: Queue) -> None:
        with running_worker(queue, concurrency=3):
            hungry = [handlers.eat.enqueue(), handlers.eat_later.enqueue()]
            healthy = [handlers.echo.enqueue(number) for number in range(20)]
            assert [wait_finished(queue, enqueued.id).result for enqueued in healthy] == list(range(20))
            failures = [wait_finished(queue, enqueued.id).failure for enqueued in hungry]

        for failure in failures:
            assert failure is not None
            assert (failure.failure_class, failure.reason) == ("transient", "out_of_memory")
            assert "eaten.append(bytearray(1 << 20))" in (failure.traceback or "")

    def test_it_is_an_error_like_any_other_to_the_policy(self, queue: Queue) -> None:
        enqueued = handlers.eat_for_good.enqueue()
        with running_worker(queue):
            job = wait_finished(queue, enqueued.id)

        assert job.failure is not None
        assert (job.failure.failure_class, job.failure.reason, job.attempt) == ("permanent", "out_of_memory", 1)

    def test_the_process_that_ran_out_is_not_used_again(self, queue: Queue) -> None:
        with running_worker(queue, concurrency=1):
            first = wait_finished(queue, handlers.which.enqueue().id).result
            wait_finished(queue, handlers.eat.enqueue().id)
            assert wait_finished(queue, handlers.which.enqueue().id).result != first

    @pytest.mark.parametrize(("size", "state"), [(100 << 20, "done"), (300 << 20, "failed")])
    def test_the_workers_limit_holds_for_tasks_that_name_none(self, queue: Queue, size: int, state: str) -> None:
        enqueued = handlers.eat_unlimited.enqueue(size)
        with running_worker(queue, memory_limit=handlers.LIMIT):
            assert wait_finished(queue, enqueued.id).state == state

    def test_the_limit_ends_with_the_handler_it_was_meant_for(self, queue: Queue) -> None:
        with running_worker(queue, concurrency=1):
            for limited in (handlers.eat_little, handlers.eat_little_later):
                before = wait_finished(queue, limited.enqueue().id)
                after = wait_finished(queue, handlers.eat_unlimited.enqueue(300 << 20).id)
                assert (after.state, after.result) == ("done", before.result)


def test_no_process_is_left_behind(queue: Queue) -> None:
    with running_worker(queue, concurrency=4):
        for how in DEATHS:
            wait_finished(queue, handlers.die.enqueue(how).id)
        assert isolated(os.getpid())

    wait_until(lambda: not isolated(os.getpid()))
