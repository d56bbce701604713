"""Every store finds ready jobs that no live worker takes."""

from __future__ import annotations

from holdfast import Queue
from holdfast.client.queue_state import state_of
from holdfast.client.sync_api.worker_calls import WorkerCalls
from holdfast.types import Unserved, WorkerInfo
from tests.support.clock import ManualClock


def register(queue: Queue, *kinds: str, capabilities: tuple[str, ...] = ()) -> None:
    # A worker's capabilities do not change; with others it is another start.
    info = WorkerInfo(
        "w1", f"i{len(capabilities)}", "h", 1, "0", "active", 1, 0, ("default",), kinds, capabilities, ()
    )
    WorkerCalls(state_of(queue).store).beat(info)


def test_jobs_are_unserved_until_a_worker_with_their_kind_and_capabilities_lives(
    queue: Queue, clock: ManualClock
) -> None:
    assert queue.admin.unserved() == []
    for requires in ([], [], ["gpu"]):
        queue.enqueue("doc.chunk", requires=requires)
    queue.enqueue("doc.chunk", delay=60)

    plain = Unserved("default", "doc.chunk", (), 2, "no_worker")
    special = Unserved("default", "doc.chunk", ("gpu",), 1, "no_worker")
    assert queue.admin.unserved() == [plain, special]
    register(queue, "doc.embed")
    assert queue.admin.unserved() == [plain, special]
    register(queue, "doc.chunk")
    assert queue.admin.unserved() == [special]
    register(queue, "doc.chunk", capabilities=("gpu",))
    assert queue.admin.unserved() == []
    clock.advance(120)
    assert queue.admin.unserved() == [plain, special]


def test_jobs_of_a_paused_lane_are_unserved_even_if_a_worker_takes_their_kind(queue: Queue) -> None:
    queue.enqueue("doc.chunk")
    register(queue, "doc.chunk")
    queue.lanes.set("default", state="paused")

    assert queue.admin.unserved() == [Unserved("default", "doc.chunk", (), 1, "lane_paused")]


def test_the_report_names_unserved_jobs(queue: Queue) -> None:
    queue.enqueue("doc.chunk")
    details = [finding.detail for finding in queue.admin.report().findings if finding.name == "unserved jobs"]
    register(queue, "doc.chunk")
    then = [finding.detail for finding in queue.admin.report().findings if finding.name == "unserved jobs"]

    assert details == ["1 job of doc.chunk in lane default: no live worker takes it"]
    assert then == ["none"]
