"""A worker logs one record for each claimed job and each ended attempt, with structured fields."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from holdfast import Queue, SessionContext
from holdfast.cli.worker_logs import JsonFormatter
from tests.chaos.threads import wait_until
from tests.worker.workers import in_state, running_worker, wait_finished


def _record_fields(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    formatter = JsonFormatter()
    return [json.loads(formatter.format(record)) for record in caplog.records if record.name == "holdfast.job"]


def test_each_end_is_one_record_with_its_fields(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    @queue.task("try", tags={"a": "b"})
    def attempt(wrong: bool) -> None:
        if wrong:
            raise ValueError

    enqueued = queue.enqueue("try", {"wrong": False}, lane="side", tenant="acme")
    with (
        caplog.at_level(logging.INFO, logger="holdfast.job"),
        running_worker(queue, worker="w1", lanes=["side", "default"]),
    ):
        wait_finished(queue, enqueued.id)
        broken = queue.enqueue("try", {"wrong": True})
        in_state(queue, broken.id, "scheduled")
        wait_until(lambda: len(_record_fields(caplog)) == 2)
    done, failed = _record_fields(caplog)

    assert done["event"] == "ended"
    assert [done[name] for name in ("job_id", "kind", "lane", "tenant", "attempt", "epoch", "worker", "outcome")] == [
        *(enqueued.id, "try", "side", "acme", 1, 1, "w1", "done"),
    ]
    assert done["level"] == "info"
    assert done["seconds"] >= 0
    assert "reason" not in done
    assert (failed["job_id"], failed["outcome"], failed["reason"]) == (broken.id, "failed", "value_error")


def test_claims_are_told_to_who_asks_for_more(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    queue.task("note")(lambda: None)
    enqueued = queue.enqueue("note", {})
    with caplog.at_level(logging.DEBUG, logger="holdfast.job"), running_worker(queue) as working:
        wait_until(lambda: working.worker.status().ended == {"done": 1})

    assert [(fields["event"], fields["job_id"]) for fields in _record_fields(caplog)] == [
        ("claimed", enqueued.id),
        ("ended", enqueued.id),
    ]


def test_a_turn_is_one_record_that_names_its_session(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    @queue.session_task("chat.message", join=True)
    def answer(context: SessionContext[str], messages: list[str]) -> None: ...

    first, _ = [answer.enqueue(text, session="chat-42").id for text in ("one", "two")]
    with caplog.at_level(logging.INFO, logger="holdfast.job"), running_worker(queue):
        wait_until(lambda: len(_record_fields(caplog)) == 1)
    [fields] = _record_fields(caplog)

    assert [fields[name] for name in ("job_id", "outcome", "session", "fencing_token", "entries")] == [
        *(first, "done", "chat-42", 1, 2),
    ]


def test_nobody_is_told_by_default(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    queue.task("note")(lambda: None)
    enqueued = queue.enqueue("note", {})
    with running_worker(queue):
        wait_finished(queue, enqueued.id)

    assert _record_fields(caplog) == []
