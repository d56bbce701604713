"""An isolated handler behaves like any other, and its job has the same outcome."""

from __future__ import annotations

import logging
import os
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import Artifact, Backoff, Queue
from holdfast.domain.job import row_of
from holdfast.types import Attempt
from tests.chaos.threads import wait_until
from tests.support.stores import Harness
from tests.worker.isolation import handlers
from tests.worker.workers import LEASE_SECONDS, Time, in_state, running_worker, wait_finished, without_tasks


def _ended_alike(queue: Queue, job_id: str) -> tuple[Any, ...]:
    """Return the result of a job's first attempt, without the traceback frames that differ."""
    wait_until(lambda: any(attempt.ended_at is not None for attempt in queue.attempts(job_id)))
    job = queue.get(job_id)
    attempt = queue.attempts(job_id)[0]
    pause = job.due_at - (attempt.ended_at or job.due_at) if job.state == "scheduled" else None
    return (job.state, job.result, attempt.outcome, *_failure(attempt), pause, job.attempt)


def _failure(attempt: Attempt) -> tuple[Any, ...]:
    failure = attempt.failure
    if failure is None:
        return (None,)
    return (failure.failure_class, failure.reason, failure.message, (failure.traceback or "")[-40:])


class TestWhereItRuns:
    def test_it_runs_in_a_process_that_is_used_again(self, queue: Queue) -> None:
        with running_worker(queue, concurrency=1):
            found = [
                wait_finished(queue, queue.enqueue(kind, {}).id).result for kind in ("which", "which.later", "which")
            ]

        assert len(set(found)) == 1
        assert found[0] != os.getpid()

    def test_another_process_takes_the_place_of_one_that_has_run_enough(self, queue: Queue) -> None:
        with running_worker(queue, concurrency=1, recycle_after=2):
            found = [wait_finished(queue, queue.enqueue("which", {}).id).result for _ in range(5)]

        assert [found.index(process) for process in found] == [0, 0, 2, 2, 4]

    def test_a_worker_may_isolate_every_task(self, queue: Queue) -> None:
        enqueued = queue.enqueue("which.plain", {})
        with running_worker(queue, kinds=["which.plain"], isolate="process"):
            assert wait_finished(queue, enqueued.id).result != os.getpid()

    def test_it_may_start_processes_and_tell_them_to_end(self, queue: Queue) -> None:
        with running_worker(queue):
            assert wait_finished(queue, handlers.start_and_terminate.enqueue().id).result == -signal.SIGTERM

    def test_other_tasks_stay_in_the_worker(self, queue: Queue) -> None:
        enqueued = queue.enqueue("which.plain", {})
        with running_worker(queue):
            assert wait_finished(queue, enqueued.id).result == os.getpid()


class TestTheContext:
    def test_it_tells_of_the_job_as_it_was_claimed(self, queue: Queue) -> None:
        enqueued = queue.enqueue("about", {}, tags={"colour": "blue"})
        with running_worker(queue, worker="the worker"):
            job = wait_finished(queue, enqueued.id)

        assert job.result == [enqueued.id, 1, 1, "the worker", row_of(job).lease_token, {"colour": "blue"}]

    def test_what_it_logs_is_handled_by_the_workers_loggers(
        self, queue: Queue, caplog: pytest.LogCaptureFixture
    ) -> None:
        enqueued = queue.enqueue("about", {})
        with caplog.at_level(logging.INFO), running_worker(queue):
            wait_finished(queue, enqueued.id)

        (record,) = [record for record in caplog.records if record.name == "holdfast.task.about"]
        assert record.getMessage() == "seen by the worker"
        assert (record.levelno, record.funcName) == (logging.WARNING, "about")
        assert vars(record).items() >= {"job_id": enqueued.id, "attempt": 1, "colour": "red"}.items()
        assert record.process != os.getpid()

    def test_artifacts_and_follow_ups_are_stored_with_the_result(self, queue: Queue) -> None:
        enqueued = queue.enqueue("collect", {})
        with running_worker(queue, kinds=["collect"]):
            wait_finished(queue, enqueued.id)

        assert queue.artifact(enqueued.id, "big.bin").data == bytes(range(256)) * 4096
        assert queue.artifact(enqueued.id, "empty.bin").data == b""
        later, again = (job for job in reversed(queue.jobs(kind="echo").jobs))
        assert (later.payload, later.priority, later.tags) == ({"value": "later"}, 3, {"from": "collect"})
        assert later.backoff == handlers.AT_ONCE
        assert later.due_at - later.enqueued_at == timedelta(seconds=60.5)
        assert again.payload == {"value": "again"}

    def test_progress_arrives_while_the_handler_runs(
        self, durable_harness: Harness, queue: Queue, tmp_path: Path
    ) -> None:
        proceed, time = tmp_path / "proceed", Time(durable_harness)
        enqueued = queue.enqueue("report", {"proceed": str(proceed)})
        with running_worker(queue, lease=LEASE_SECONDS, timer=time.timer):
            in_state(queue, enqueued.id, "running")
            while queue.get(enqueued.id).percent != 20.5:
                time.pass_leases(queue, enqueued.id, LEASE_SECONDS, 1)
            assert queue.get(enqueued.id).phase == "reading"
            proceed.touch()
            assert wait_finished(queue, enqueued.id).state == "done"


class TestEnds:
    @pytest.mark.parametrize("kind", ["end.isolated", "end.later"])
    def test_what_it_raises_means_what_it_means_in_the_worker(self, queue: Queue, kind: str) -> None:
        with running_worker(queue, kinds=["end.inside", kind]):
            for how in handlers.ENDS:
                if how == "released":
                    continue
                inside = queue.enqueue("end.inside", {"how": how}, backoff=Backoff(jitter=0))
                isolated = queue.enqueue(kind, {"how": how}, backoff=Backoff(jitter=0))
                assert _ended_alike(queue, isolated.id) == _ended_alike(queue, inside.id), how

    def test_one_that_cancels_its_own_task_fails_and_its_process_goes_on(self, queue: Queue) -> None:
        with running_worker(queue, concurrency=1):
            process = wait_finished(queue, queue.enqueue("which.later", {}).id).result
            failure = wait_finished(queue, handlers.cancel_itself.enqueue().id).failure
            assert wait_finished(queue, queue.enqueue("which.later", {}).id).result == process

        assert failure is not None
        assert failure.reason == "cancelled_error"

    def test_the_traceback_names_the_line_that_raised(self, queue: Queue) -> None:
        enqueued = queue.enqueue("end.isolated", {"how": "odd"}, max_attempts=1)
        with running_worker(queue):
            failure = wait_finished(queue, enqueued.id).failure

        assert failure is not None
        assert (failure.reason, failure.message) == ("one_of_a_kind", "one of a kind")
        assert 'raise OneOfAKind("one of a kind"' in (failure.traceback or "")

    def test_a_job_that_fails_for_good_is_logged_as_an_error_with_the_traceback_of_its_process(
        self, queue: Queue, caplog: pytest.LogCaptureFixture
    ) -> None:
        enqueued = queue.enqueue("end.isolated", {"how": "odd"}, max_attempts=2, backoff=handlers.AT_ONCE)
        with running_worker(queue):
            wait_until(lambda: bool(_failures_logged(caplog, logging.ERROR)))

        [retried], [failed] = (_failures_logged(caplog, level) for level in (logging.WARNING, logging.ERROR))
        job = queue.get(enqueued.id)
        named = f"job #{job.number} ({enqueued.id}) end.isolated failed"
        assert retried[0].startswith(f"{named} (attempt 1 of 2): one_of_a_kind: one of a kind; retrying")
        assert failed[0] == f"{named} for good (attempt 2 of 2): one_of_a_kind: one of a kind"
        assert failed[1] == "Traceback (most recent call last):"
        assert any('raise OneOfAKind("one of a kind"' in line for line in failed)

    @pytest.mark.slow("handlers run in processes of their own")
    def test_a_result_that_cannot_be_stored_fails_as_in_the_worker(self, queue: Queue) -> None:
        with running_worker(queue, kinds=["end.inside", "end.isolated", "echo"]):
            for how in handlers.UNFIT:
                inside = queue.enqueue("end.inside", {"how": how}, max_attempts=1)
                isolated = queue.enqueue("end.isolated", {"how": how}, max_attempts=1)
                assert _ended_alike(queue, isolated.id) == _ended_alike(queue, inside.id), how
            # The next attempt is unaffected.
            assert wait_finished(queue, queue.enqueue("echo", {"value": 1}).id).result == 1

    @pytest.mark.parametrize(
        "value",
        ["x" * 1_000_000, 10**900, [[[{"a": None}]]], "\N{PILE OF POO}\u2028"],
        ids=["long", "large", "deep", "odd"],
    )
    def test_results_come_back_exactly(self, queue: Queue, value: Any) -> None:
        enqueued = queue.enqueue("echo", {"value": value})
        with running_worker(queue):
            assert wait_finished(queue, enqueued.id).result == value

    def test_a_payload_that_is_no_call_fails_for_good(self, queue: Queue) -> None:
        enqueued = without_tasks(queue).enqueue("echo", {"nothing": 1})
        with running_worker(queue):
            failure = wait_finished(queue, enqueued.id).failure

        assert failure is not None
        assert (failure.failure_class, failure.reason) == ("permanent", "payload_invalid")

    @pytest.mark.slow("handlers run in processes of their own")
    def test_what_it_prints_is_printed_and_disturbs_nothing(
        self, queue: Queue, capfd: pytest.CaptureFixture[str]
    ) -> None:
        enqueued = queue.enqueue("print", {"text": "straight from the handler"})
        with running_worker(queue):
            assert wait_finished(queue, enqueued.id).state == "done"

        printed = capfd.readouterr()
        assert "straight from the handler\n" in printed.out
        assert "straight from the handler\n" in printed.err


class TestTransactions:
    @pytest.mark.slow("handlers run in processes of their own")
    def test_its_writes_and_the_settlement_are_one_commit(self, shared_queue: Queue) -> None:
        queue = shared_queue
        _make_effects(queue)
        with running_worker(queue):
            first = wait_finished(queue, queue.enqueue("effect", {"number": 1}, max_attempts=1).id)
            second = wait_finished(queue, queue.enqueue("effect.later", {"number": 2}, max_attempts=1).id)

        assert (first.state, first.result) == (second.state, second.result) == ("done", "written")
        assert _effects(queue) == [1, 2]
        assert len(queue.jobs(kind="echo").jobs) == 1

    def test_one_that_dies_leaves_nothing_written(self, shared_queue: Queue) -> None:
        queue = shared_queue
        _make_effects(queue)
        with running_worker(queue):
            job = wait_finished(queue, queue.enqueue("effect", {"number": 1, "then": "segfault"}, max_attempts=1).id)
            after = wait_finished(queue, queue.enqueue("effect", {"number": 2}, max_attempts=1).id)

        assert job.failure is not None
        assert job.failure.reason == "process_died"
        assert after.state == "done"
        assert _effects(queue) == [2]
        assert len(queue.jobs(kind="echo").jobs) == 1

    def test_a_store_that_no_other_process_can_open_is_refused_by_name(self, queue: Queue) -> None:
        # The store of this queue has its own clock.
        enqueued = queue.enqueue("effect", {"number": 1}, max_attempts=1)
        with running_worker(queue):
            failure = wait_finished(queue, enqueued.id).failure

        assert failure is not None
        assert failure.reason == "misconfigured"
        assert "another process cannot open it" in failure.message


def _failures_logged(caplog: pytest.LogCaptureFixture, level: int) -> list[list[str]]:
    """Return the lines of each record of *level* about an ended attempt."""
    found = [record for record in caplog.records if (record.name, record.levelno) == ("holdfast.job", level)]
    return [logging.Formatter().format(record).splitlines() for record in found]


def _make_effects(queue: Queue) -> None:
    queue.migrate()
    with queue.transaction() as transaction:
        transaction.execute("create table effects (number integer primary key)")


def _effects(queue: Queue) -> list[int]:
    with queue.transaction() as transaction:
        return [row[0] for row in transaction.execute("select number from effects order by number")]


class TestOutput:
    @pytest.mark.parametrize("kind", ["emit", "emit.later"])
    def test_text_is_stored_in_order_before_the_job_is_done(self, queue: Queue, kind: str) -> None:
        texts = [f"{n} é\n" for n in range(300)]
        enqueued = queue.enqueue(kind, {"texts": texts})
        with running_worker(queue):
            assert wait_finished(queue, enqueued.id).state == "done"

        assert _text_of(queue, enqueued.id) == "".join(texts)

    def test_a_reader_sees_text_while_the_handler_runs(self, queue: Queue, tmp_path: Path) -> None:
        enqueued = queue.enqueue("emit.live", {"place": str(tmp_path / "go")})
        with running_worker(queue):
            stream = iter(queue.stream(enqueued.id, timeout=60))
            assert next(stream).text == "now"
            (tmp_path / "go").touch()
            assert [chunk.text for chunk in stream] == [" then"]

    def test_what_it_emitted_before_it_died_is_stored(self, queue: Queue) -> None:
        enqueued = queue.enqueue("emit.die", {})
        with running_worker(queue):
            assert wait_finished(queue, enqueued.id).state == "failed"

        assert _text_of(queue, enqueued.id) == "last words"

    def test_text_that_cannot_be_stored_is_refused_in_its_process(self, queue: Queue) -> None:
        enqueued = queue.enqueue("emit", {"texts": ["x" * 70_000]}, max_attempts=1)
        with running_worker(queue):
            job = wait_finished(queue, enqueued.id)

        assert job.failure is not None
        assert job.failure.reason == "invalid_input"
        assert "70000 bytes" in job.failure.message

    @pytest.mark.parametrize("fails", [False, True])
    def test_text_around_a_transaction_is_stored_in_order_and_once(self, shared_queue: Queue, fails: bool) -> None:
        enqueued = shared_queue.enqueue("emit.within", {"fails": fails})
        with running_worker(shared_queue):
            assert wait_finished(shared_queue, enqueued.id).state == ("failed" if fails else "done")

        assert _text_of(shared_queue, enqueued.id) == "before within after"


def _text_of(queue: Queue, job_id: str) -> str:
    return "".join(chunk.text for chunk in queue.stream(job_id, timeout=60))


class TestArtifacts:
    @pytest.mark.parametrize("kind", ["inputs", "inputs.later"])
    def test_it_reads_its_inputs(self, shared_queue: Queue, kind: str) -> None:
        enqueued = shared_queue.enqueue(kind, {}, artifacts=[Artifact("in", b"text")])
        with running_worker(shared_queue):
            assert wait_finished(shared_queue, enqueued.id).result == "text"

    def test_it_reads_the_jobs_on_which_it_depends(self, shared_queue: Queue) -> None:
        parent = shared_queue.enqueue("none")
        child = shared_queue.enqueue("parents", {}, after=[parent.id], on_failed="run")
        shared_queue.cancel(parent.id)
        with running_worker(shared_queue):
            assert wait_finished(shared_queue, child.id).result == [parent.id]

    def test_its_follow_ups_have_inputs(self, shared_queue: Queue) -> None:
        enqueued = shared_queue.enqueue("inputs", {}, artifacts=[Artifact("in", b"text")])
        with running_worker(shared_queue):
            wait_finished(shared_queue, enqueued.id)

        [job] = shared_queue.jobs(kind="next")
        assert shared_queue.artifact(job.id, "in") == Artifact("in", b"\x00\xff", "image/png")
