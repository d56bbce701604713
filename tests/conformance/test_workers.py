"""The registry of workers: requests to drain and to stop."""

from __future__ import annotations

import re

import pytest

from holdfast import Done, NewJob, Queue
from holdfast.client.queue_state import state_of
from holdfast.client.sync_api.worker_calls import WorkerCalls
from holdfast.domain.results import WorkerInfo, WorkerRequest
from holdfast.errors import WorkerNotFound
from tests.support.clock import ManualClock


def beat(queue: Queue, worker: str, incarnation: str = "first") -> WorkerRequest | None:
    """Update the row of a worker as the worker does; return what was requested of it."""
    row = WorkerInfo(worker, incarnation, "host", 1, "0.1.0", "active", 8, 0, ("default",), ("note",), (), ())
    return WorkerCalls(state_of(queue).store).beat(row)


def test_a_request_reaches_the_next_heartbeats_of_this_worker_only(queue: Queue) -> None:
    assert (beat(queue, "web-1"), beat(queue, "web-2")) == (None, None)

    [requested] = queue.admin.drain_worker("web-1")

    assert (requested.worker, requested.state, requested.requested) == ("web-1", "active", "drain")
    assert [beat(queue, "web-1"), beat(queue, "web-1"), beat(queue, "web-2")] == ["drain", "drain", None]
    assert {row.worker: row.requested for row in queue.admin.workers()} == {"web-1": "drain", "web-2": None}


def test_a_request_to_stop_replaces_one_to_drain_and_is_not_replaced(queue: Queue) -> None:
    beat(queue, "web-1")
    queue.admin.drain_worker("web-1")
    queue.admin.stop_worker("web-1")
    [row] = queue.admin.drain_worker("web-1")

    assert row.requested == "stop"
    assert beat(queue, "web-1") == "stop"


def test_a_request_applies_to_every_start_so_far_and_not_to_a_later_one(queue: Queue, clock: ManualClock) -> None:
    beat(queue, "web-1", "first")
    clock.advance(61)
    beat(queue, "web-1", "second")

    starts = queue.admin.stop_worker("web-1")

    assert [(row.incarnation, row.state) for row in starts] == [("second", "active"), ("first", "silent")]
    assert [beat(queue, "web-1", start) for start in ("first", "second", "third")] == ["stop", "stop", None]


def test_a_wrong_name_is_refused_with_similar_names(queue: Queue) -> None:
    beat(queue, "web-1")
    beat(queue, "mail-7")

    with pytest.raises(WorkerNotFound, match="no worker 'web1' has registered; did you mean 'web-1'") as caught:
        queue.admin.stop_worker("web1")

    assert (caught.value.worker, caught.value.similar) == ("web1", ("web-1",))
    assert [row.requested for row in queue.admin.workers()] == [None, None]


def test_the_report_shows_how_often_calls_of_live_workers_took_their_plain_form(
    queue: Queue, clock: ManualClock
) -> None:
    def shown() -> list[str]:
        return [one.detail for one in queue.admin.report().findings if one.name == "plain forms"]

    queue.enqueue_many([NewJob("note")] * 3)
    for claim in queue.claim_many(worker="web-1", limit=3):
        queue.settle(claim, Done())
    assert shown() == []

    # Both are of one process, which counts once.
    beat(queue, "web-1")
    beat(queue, "web-2")
    [detail] = shown()
    assert re.fullmatch(r"in live workers: \d+% of 3 jobs enqueued, \d+% of 1 claims, \d+% of 3 jobs settled", detail)

    clock.advance(61)
    assert shown() == []
