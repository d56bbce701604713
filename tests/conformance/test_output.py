"""Output streams: text that attempts append to their job, and readers that follow it from anywhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from holdfast import (
    Claim,
    Conflict,
    Deferred,
    Done,
    Failed,
    InvalidInput,
    JobNotFound,
    LeaseLost,
    Queue,
    Released,
    WaitTimeout,
)
from holdfast.domain import limits
from tests.chaos.threads import in_background
from tests.support.assertions import refused
from tests.support.clock import ManualClock
from tests.support.job_states import FINISHED, State, job_in, rolled_back, run, start
from tests.support.stores import Harness, statements_of

# Only a failing test reaches this timeout.
PATIENCE = 60
TEXTS = [
    "plain",
    "line\nbreak\ttab",
    "'; drop table x; --",
    "日本語 🗒 عربى",
    '{"a": "\\u0000 \\"quoted\\""}',
    "\x01\x7f",
]


def running(queue: Queue, **options: Any) -> Claim:
    return start(queue, queue.enqueue("talk", **options).job)


def texts(queue: Queue, job_id: str, **options: Any) -> list[str]:
    return [chunk.text for chunk in queue.stream(job_id, timeout=PATIENCE, **options)]


class TestEmit:
    @pytest.mark.parametrize("text", TEXTS)
    def test_text_comes_back_as_it_went_in(self, queue: Queue, text: str) -> None:
        claim = running(queue)

        assert queue.emit(claim, text) == 1

        assert [chunk.text for chunk in queue.output(claim.job.id)] == [text]

    def test_a_chunk_has_number_attempt_epoch_and_time(self, queue: Queue, clock: ManualClock) -> None:
        claim = running(queue)
        queue.emit(claim, "a")
        clock.advance(1)
        queue.emit(claim, "b")

        first, second = queue.output(claim.job.id)

        assert (first.number, first.attempt, first.epoch, first.text) == (1, 1, 1, "a")
        assert (second.number, second.attempt, second.epoch, second.text) == (2, 1, 1, "b")
        assert (second.at, second.at - first.at) == (clock.time, timedelta(seconds=1))

    def test_a_retry_continues_the_numbers_and_shows_its_attempt(self, queue: Queue) -> None:
        first = running(queue)
        queue.emit(first, "one")
        queue.settle(first, Failed("x", retry_after=0))
        second = start(queue, first.job)
        queue.emit(second, "two")
        queue.settle(second, Deferred(after=0))
        third = start(queue, first.job)
        queue.emit(third, "three")

        found = [(chunk.number, chunk.attempt, chunk.epoch, chunk.text) for chunk in queue.output(first.job.id)]

        # A deferral uses up no attempt, so only the epoch tells these two apart.
        assert found == [(1, 1, 1, "one"), (2, 2, 2, "two"), (3, 2, 3, "three")]

    def test_a_part_sent_again_changes_nothing(self, queue: Queue) -> None:
        claim = running(queue)
        queue.emit(claim, "zero", part=0)
        queue.emit(claim, "one", part=1)

        assert queue.emit(claim, "zero", part=0) == 1
        assert queue.emit(claim, "one", part=1) == 2

        assert [chunk.text for chunk in queue.output(claim.job.id)] == ["zero", "one"]

    def test_parts_count_from_zero_in_each_attempt(self, queue: Queue) -> None:
        first = running(queue)
        queue.emit(first, "a", part=0)
        queue.settle(first, Released())
        second = start(queue, first.job)

        assert queue.emit(second, "b", part=0) == 2
        assert queue.emit(second, "b", part=0) == 2

        assert [chunk.text for chunk in queue.output(first.job.id)] == ["a", "b"]

    def test_a_part_that_leaves_a_gap_is_refused(self, queue: Queue) -> None:
        claim = running(queue)
        queue.emit(claim, "zero", part=0)

        with pytest.raises(Conflict, match="part 2 does not follow"):
            queue.emit(claim, "two", part=2)
        assert len(queue.output(claim.job.id)) == 1

    def test_text_of_a_rolled_back_transaction_is_not_stored(self, queue: Queue) -> None:
        claim = running(queue)

        with rolled_back(queue) as transaction:
            transaction.emit(claim, "never")

        assert len(queue.output(claim.job.id)) == 0
        with queue.transaction() as transaction:
            transaction.emit(claim, "kept")
        assert [chunk.text for chunk in queue.output(claim.job.id)] == ["kept"]


class TestFence:
    @pytest.mark.parametrize("end", [Done(), Failed("x", permanent=True), Released(), Deferred(after=9)])
    def test_an_attempt_that_has_ended_appends_nothing(self, queue: Queue, end: Any) -> None:
        claim = running(queue)
        queue.emit(claim, "before")
        queue.settle(claim, end)

        with pytest.raises(LeaseLost):
            queue.emit(claim, "after")

        assert [chunk.text for chunk in queue.output(claim.job.id)] == ["before"]

    def test_a_stale_attempt_appends_nothing_and_its_part_numbers_mean_nothing(
        self, queue: Queue, clock: ManualClock
    ) -> None:
        stale = running(queue)
        queue.emit(stale, "old", part=0)
        clock.advance(31)
        with pytest.raises(LeaseLost):
            queue.emit(stale, "expired", part=1)
        current = start(queue, stale.job)
        queue.emit(current, "new", part=0)

        with pytest.raises(LeaseLost):
            queue.emit(stale, "zombie", part=1)
        with pytest.raises(LeaseLost):
            queue.emit(stale, "old", part=0)

        assert [(chunk.epoch, chunk.text) for chunk in queue.output(stale.job.id)] == [(1, "old"), (2, "new")]

    def test_the_job_was_deleted(self, queue: Queue, clock: ManualClock) -> None:
        claim = running(queue)
        queue.cancel(claim.job.id, force=True)
        clock.advance(1)
        queue.admin.prune(older_than=0)

        with pytest.raises(LeaseLost):
            queue.emit(claim, "text")


def texts_of(queue: Queue, claim: Claim) -> list[str]:
    return [chunk.text for chunk in queue.output(claim.job.id)]


class TestPage:
    def test_a_page_starts_after_a_number_and_ends_at_the_limit(self, queue: Queue) -> None:
        claim = running(queue)
        for n in range(1, 6):
            queue.emit(claim, str(n))

        page = queue.output(claim.job.id, after=1, limit=2)

        assert ([chunk.number for chunk in page], page.ended, len(page), page[0].text) == ([2, 3], False, 2, "2")
        assert len(queue.output(claim.job.id, after=5)) == 0
        assert len(queue.output(claim.job.id, after=1_000_000)) == 0

    def test_it_has_ended_once_the_job_has_finished_and_nothing_follows(self, queue: Queue) -> None:
        claim = running(queue)
        queue.emit(claim, "a")
        queue.emit(claim, "b")
        assert not queue.output(claim.job.id).ended
        queue.settle(claim, Done())

        assert not queue.output(claim.job.id, limit=1).ended
        assert queue.output(claim.job.id).ended
        assert queue.output(claim.job.id, after=2).ended

    def test_two_jobs_do_not_share_output(self, queue: Queue) -> None:
        one, two = running(queue), running(queue)
        queue.emit(one, "one")
        queue.emit(two, "two")

        assert (texts_of(queue, one), texts_of(queue, two)) == (["one"], ["two"])

    def test_another_tenants_output_is_not_found(self, queue: Queue) -> None:
        claim = running(queue, tenant="a")
        queue.emit(claim, "secret")

        with pytest.raises(JobNotFound):
            queue.output(claim.job.id, tenant="b")
        with pytest.raises(JobNotFound):
            next(iter(queue.stream(claim.job.id, tenant="b")))
        assert texts(queue, queue.settle(claim, Done()).id, tenant="a") == ["secret"]

    def test_output_goes_with_the_job(self, queue: Queue, clock: ManualClock) -> None:
        claim = running(queue)
        queue.emit(claim, "a")
        job = queue.settle(claim, Done())
        kept = running(queue)
        queue.emit(kept, "kept")
        clock.advance(1)

        assert queue.admin.prune(older_than=0).jobs == 1

        with pytest.raises(JobNotFound):
            queue.output(job.id)
        assert texts_of(queue, kept) == ["kept"]

    def test_pruning_deletes_a_bounded_amount_of_output_at_once(
        self, queue: Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for _ in range(3):
            claim = running(queue)
            for n in range(4):
                queue.emit(claim, str(n))
            queue.settle(claim, Done())
        clock.advance(1)
        monkeypatch.setattr(limits, "OUTPUT_CHUNKS_PRUNED", 5)
        before = statements_of(queue).count("outputs_delete")

        assert queue.admin.prune(older_than=0).jobs == 3

        assert statements_of(queue).count("outputs_delete") - before == 3


class TestStream:
    @pytest.mark.parametrize("state", FINISHED)
    def test_the_stream_of_a_finished_job_ends_at_once(self, queue: Queue, state: State) -> None:
        assert list(queue.stream(job_in(queue, state).id, timeout=0)) == []

    def test_it_replays_and_ends(self, queue: Queue) -> None:
        claim = running(queue)
        for n in range(250):
            queue.emit(claim, str(n))
        queue.settle(claim, Done())

        assert texts(queue, claim.job.id) == [str(n) for n in range(250)]
        assert texts(queue, claim.job.id, after=248) == ["248", "249"]
        assert texts(queue, claim.job.id, after=250) == []

    def test_an_unknown_job_is_not_found(self, queue: Queue) -> None:
        with pytest.raises(JobNotFound):
            next(iter(queue.stream("missing", timeout=PATIENCE)))

    def test_a_reader_follows_live_across_attempts_without_gap_or_repeat(self, harness: Harness) -> None:
        queue, reader = harness.open(), harness.open()
        first = running(queue)
        queue.emit(first, "a")
        seen: list[str] = []
        reading = in_background(lambda: seen.extend(chunk.text for chunk in reader.stream(first.job.id)))

        queue.emit(first, "b")
        queue.settle(first, Failed("x", retry_after=0))
        second = start(queue, first.job)
        queue.emit(second, "c")
        queue.settle(second, Done())

        reading.result(PATIENCE)
        assert seen == ["a", "b", "c"]

    def test_a_notification_and_not_a_poll_brings_each_chunk_and_the_end(
        self, harness: Harness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("holdfast.client.sync_api.content._POLL_SECONDS", 10 * PATIENCE)
        queue, reader = harness.open(), harness.open()
        claim = running(queue)
        stream = iter(reader.stream(claim.job.id, timeout=PATIENCE))
        with ThreadPoolExecutor(1) as thread:
            for n in range(3):
                waiting = thread.submit(next, stream)
                queue.emit(claim, str(n))
                assert waiting.result(PATIENCE).text == str(n)
            waiting_for_end = thread.submit(next, stream, None)
            queue.settle(claim, Done())
            assert waiting_for_end.result(PATIENCE) is None

    def test_a_reader_that_waits_too_long_is_told_and_the_job_goes_on(self, queue: Queue) -> None:
        claim = running(queue)
        queue.emit(claim, "a")
        stream = iter(queue.stream(claim.job.id, timeout=0.03))

        assert next(stream).text == "a"
        with pytest.raises(WaitTimeout):
            next(stream)

    def test_a_job_deleted_under_its_reader_is_not_found(self, queue: Queue, clock: ManualClock) -> None:
        claim = running(queue)
        for n in range(limits.OUTPUT_PAGE_MAX + 1):
            queue.emit(claim, str(n))
        stream = iter(queue.stream(claim.job.id, timeout=PATIENCE))
        next(stream)
        queue.settle(claim, Done())
        clock.advance(1)
        queue.admin.prune(older_than=0)

        with pytest.raises(JobNotFound):
            list(stream)

    def test_a_requeued_job_continues_its_stream(self, queue: Queue) -> None:
        job = queue.enqueue("talk", max_attempts=1).job
        first = start(queue, job)
        queue.emit(first, "a")
        queue.settle(first, Failed("x"))
        queue.requeue(job.id)
        second = start(queue, job)
        queue.emit(second, "b")
        queue.settle(second, Done())

        assert texts(queue, job.id) == ["a", "b"]

    def test_a_reader_fails_a_job_whose_deadline_passed(self, queue: Queue, clock: ManualClock) -> None:
        job = queue.enqueue("talk", deadline=10).job
        clock.advance(11)

        assert list(queue.stream(job.id, timeout=PATIENCE)) == []
        assert queue.get(job.id).state == "failed"

    def test_the_async_stream_is_the_same(self, harness: Harness) -> None:
        async def follow() -> list[str]:
            queue = harness.open_async()
            try:
                job = (await queue.enqueue("talk")).job
                claim = await queue.claim()
                assert claim is not None
                await queue.emit(claim, "a")
                reading = asyncio.create_task(read(queue, job.id))
                await queue.emit(claim, "b")
                assert [chunk.text for chunk in await queue.output(job.id, after=1)] == ["b"]
                await queue.settle(claim, Done())
                return await reading
            finally:
                await queue.close()

        async def read(queue: Any, job_id: str) -> list[str]:
            return [chunk.text async for chunk in queue.stream(job_id, timeout=PATIENCE)]

        assert asyncio.run(follow()) == ["a", "b"]


class TestLimits:
    def test_the_output_of_a_job_is_limited_over_all_attempts(
        self, queue: Queue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(limits, "OUTPUT_BYTES_MAX", 10)
        first = running(queue)
        queue.emit(first, "é" * 3)
        queue.settle(first, Released())
        second = start(queue, first.job)
        queue.emit(second, "1234")

        with pytest.raises(InvalidInput) as refusal:
            queue.emit(second, "5")

        assert refusal.value.field == "text"
        assert "10 bytes" in str(refusal.value)
        assert texts_of(queue, first) == ["ééé", "1234"]

    @pytest.mark.validation
    @pytest.mark.parametrize(
        "text", ["", b"bytes", None, 7, "nul\0", "\ud800", "é" * (32 * 1024) + "x"], ids=lambda text: repr(text)[:20]
    )
    def test_text_that_cannot_be_stored_is_refused(self, queue: Queue, text: Any) -> None:
        claim = running(queue)

        with refused(queue, "text"):
            queue.emit(claim, text)

    @pytest.mark.validation
    @pytest.mark.parametrize(
        ("field", "call"),
        [
            ("part", lambda queue, claim: queue.emit(claim, "a", part=-1)),
            ("part", lambda queue, claim: queue.emit(claim, "a", part=True)),
            ("claim", lambda queue, _: queue.emit("claim", "a")),
            ("after", lambda queue, claim: queue.output(claim.job.id, after=-1)),
            ("limit", lambda queue, claim: queue.output(claim.job.id, limit=101)),
            ("job_id", lambda queue, _: queue.output("")),
            ("tenant", lambda queue, claim: queue.output(claim.job.id, tenant="")),
            ("after", lambda queue, claim: list(queue.stream(claim.job.id, after="1"))),
            ("timeout", lambda queue, claim: list(queue.stream(claim.job.id, timeout=-1))),
        ],
    )
    def test_a_wrong_argument_is_refused(self, queue: Queue, field: str, call: Callable[[Queue, Any], Any]) -> None:
        claim = running(queue)

        with refused(queue, field):
            call(queue, claim)


def test_text_of_the_largest_size_is_stored(queue: Queue) -> None:
    claim = running(queue)
    queue.emit(claim, "x" * limits.OUTPUT_CHUNK_BYTES_MAX)
    run(queue, queue.enqueue("other").job, Done())

    assert len(queue.output(claim.job.id)[0].text) == limits.OUTPUT_CHUNK_BYTES_MAX
