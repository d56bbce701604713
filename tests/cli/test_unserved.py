"""Commands report jobs that no live worker takes."""

from __future__ import annotations

from holdfast.client.queue_state import state_of
from holdfast.client.sync_api.worker_calls import WorkerCalls
from holdfast.types import WorkerInfo
from tests.cli.conftest import Cli

SENTENCE = "3 jobs of doc.chunk in lane default: no live worker takes them"


def test_doctor_and_stats_name_jobs_that_no_live_worker_takes(cli: Cli) -> None:
    cli.queue.enqueue_many([{"kind": "doc.chunk"}] * 3)

    found = [one for one in cli.json("doctor")["findings"] if one["name"] == "unserved jobs"]
    counted = cli.run("stats")

    assert [(one["status"], one["detail"]) for one in found] == [("warning", SENTENCE)]
    assert SENTENCE in counted.stderr
    assert cli.json("stats")["unserved"] == [
        {"lane": "default", "kind": "doc.chunk", "requires": [], "jobs": 3, "reason": "no_worker"}
    ]


def test_stats_do_not_list_jobs_that_a_live_worker_takes(cli: Cli) -> None:
    cli.queue.enqueue("doc.chunk")
    output = WorkerInfo("w1", "i1", "h", 1, "0", "active", 1, 0, ("default",), ("doc.chunk",), (), ())
    WorkerCalls(state_of(cli.queue).store).beat(output)

    assert cli.run("stats").stderr == ""
    assert cli.json("stats")["unserved"] == []


def test_show_reports_that_no_live_worker_takes_the_job(cli: Cli) -> None:
    enqueued = cli.queue.enqueue("doc.chunk", requires=["gpu"])

    shown = cli.text("jobs", "show", enqueued.id)

    assert "a job of doc.chunk in lane default: no live worker takes it (it requires gpu)" in shown
    assert cli.json("jobs", "show", enqueued.id)["unserved"] == "no_worker"


def test_show_reports_that_no_live_worker_takes_a_parked_job(cli: Cli) -> None:
    cli.queue.limits.set("one", kinds=["doc.chunk"], key="tenant", concurrency=1)
    jobs = cli.queue.enqueue_many([{"kind": "doc.chunk"}] * 2)
    cli.queue.claim_many(limit=2)

    assert cli.queue.get(jobs[1].id).state == "parked"
    assert cli.json("jobs", "show", jobs[1].id)["unserved"] == "no_worker"


def test_show_reports_that_the_lane_is_paused_even_before_the_job_is_due(cli: Cli) -> None:
    enqueued = cli.queue.enqueue("doc.chunk", delay=60)
    cli.queue.lanes.set("default", state="paused")

    assert "a job of doc.chunk in lane default: the lane is paused" in cli.text("jobs", "show", enqueued.id)
    assert cli.json("jobs", "show", enqueued.id)["unserved"] == "lane_paused"
