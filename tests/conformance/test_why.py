"""Why a job is in its state."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from holdfast import Done, Failed, JobNotFound, Queue
from holdfast.client.queue_state import state_of
from holdfast.client.sync_api.worker_calls import WorkerCalls
from holdfast.types import Reason, Why, WorkerInfo
from tests.support.clock import ManualClock
from tests.support.job_states import start


def reasons(why: Why) -> dict[str, Reason]:
    return {reason.code: reason for reason in why.reasons}


def serve(queue: Queue, worker: str = "w", **options: Any) -> None:
    """Register a live worker."""
    values: dict[str, Any] = {"lanes": ("default",), "kinds": (), "capabilities": (), "concurrency": 4, **options}
    info = WorkerInfo(
        worker,
        "i",
        "host",
        1,
        "0.1.0",
        "active",
        values["concurrency"],
        0,
        values["lanes"],
        values["kinds"],
        values["capabilities"],
        (),
    )
    WorkerCalls(state_of(queue).store).beat(info)


def test_a_ready_job_names_its_workers_and_its_place(queue: Queue) -> None:
    serve(queue)
    serve(queue, "other", kinds=("b",))
    first = queue.enqueue("a")
    urgent, second = queue.enqueue("b", priority=1), queue.enqueue("a")

    found = queue.why(first.id)
    assert (found.state, found.summary) == ("ready", f"{first.id} is ready: served by w.")
    assert reasons(found)["position"].detail == {"before": 1}
    assert reasons(queue.why(second.id))["position"].detail == {"before": 2}
    assert reasons(queue.why(urgent.id))["position"].text == "it is the next of its lane"
    assert reasons(queue.why(urgent.id))["served"].detail == {"workers": ["other", "w"]}
    assert not any(reason.blocks for reason in found.reasons)


@pytest.mark.parametrize("options", [{"lanes": ("mail",)}, {"kinds": ("b",)}, {"state": "silent"}])
def test_a_job_that_no_live_worker_takes(queue: Queue, clock: ManualClock, options: dict[str, Any]) -> None:
    serve(queue, **options)
    if options.get("state") == "silent":
        clock.advance(120)
    job = queue.enqueue("a", requires=["gpu"])

    found = queue.why(job.id)
    assert found.summary == f"{job.id} is ready: no live worker takes kind a from lane default and has gpu."
    assert [reason.code for reason in found.reasons if reason.blocks] == ["no_worker"]
    serve(queue, "gpu", capabilities=("gpu",))
    assert not any(reason.blocks for reason in queue.why(job.id).reasons)


def test_lanes_due_times_and_deadlines(queue: Queue, clock: ManualClock) -> None:
    serve(queue)
    job = queue.enqueue("a", delay=60, deadline=90)
    found = queue.why(job.id)
    assert found.summary == f"{job.id} is scheduled: it is due in 60 s."
    assert reasons(found)["not_due"].until == job.job.due_at
    assert reasons(found)["deadline"].until == job.job.due_at + timedelta(seconds=30)
    queue.lanes.set("default", state="draining")
    assert not reasons(queue.why(job.id))["lane_draining"].blocks
    queue.lanes.set("default", state="paused")
    clock.advance(60)
    assert queue.why(job.id).summary.endswith("lane default is paused.")
    clock.advance(30)
    assert "deadline has passed" in queue.why(job.id).summary


def test_a_failed_attempt_is_named(queue: Queue) -> None:
    job = queue.enqueue("a")
    queue.settle(start(queue, job.job), Failed("no", retry_after=30))
    assert "; attempt 1 ended as failed" in queue.why(job.id).summary
    queue.cancel(job.id)
    assert queue.why(job.id).summary == f"{job.id} is cancelled: error: no."
    waiting = queue.cancel(queue.enqueue("never.run").id)
    assert queue.why(waiting.id).summary == f"{waiting.id} is cancelled: it does not run unless it is requeued."


def test_what_runs_names_its_worker_and_lease(queue: Queue, clock: ManualClock) -> None:
    job = queue.enqueue("a")
    claim = queue.claim(worker="w", lease=30)
    assert claim is not None
    found = queue.why(job.id)
    assert found.summary == f"{job.id} is running: worker w holds it, attempt 1 of 5; its lease ends in 30 s."
    queue.cancel(job.id)
    assert "cancel_requested" in reasons(queue.why(job.id))
    clock.advance(30)
    assert "has expired" in queue.why(job.id).summary
    queue.claim_many(kinds=["none"])
    assert reasons(queue.why(job.id)).keys() == {"finished"}


def test_what_waits_for_other_jobs_names_them(queue: Queue) -> None:
    parents = [queue.enqueue("a") for _ in range(5)]
    child = queue.enqueue("c", after=[one.id for one in parents])
    found = reasons(queue.why(child.id))["parents"]
    assert (found.blocks, found.detail["count"]) == (True, 5)
    assert f"{parents[0].id} (ready)" in found.text
    assert "and 2 more" in found.text
    queue.settle_many([(claim, Done()) for claim in queue.claim_many(kinds=["a"])])
    assert "the next claim counts them" in reasons(queue.why(child.id))["parents"].text

    first = queue.enqueue("d", dedupe_key="k")
    start(queue, first.job)
    blocked = queue.enqueue("d", dedupe_key="k", on_duplicate="run_again")
    assert reasons(queue.why(blocked.id))["predecessor"].detail == {"job_id": first.id, "state": "running"}


def test_sessions_tenants_groups_and_schedules_are_named(queue: Queue) -> None:
    queue.enqueue("chat", session="s")
    second = queue.enqueue("chat", session="s")
    assert reasons(queue.why(second.id))["session_order"].detail == {"entries": 1}
    for tenant in ("x", "y", "z"):
        last = queue.enqueue("t", tenant=tenant)
    assert reasons(queue.why(last.id))["tenant_turn"].detail == {"tenants": 3, "tenant": "z"}
    with queue.group("g") as group:
        member = group.enqueue("m")
    assert reasons(queue.why(member))["group"].detail == {"group": "g"}
    queue.schedules.set("often", kind="s", every=60)
    ran = queue.schedules.run("often")
    assert reasons(queue.why(ran.id))["schedule"].detail == {"schedule": "often"}


def test_limits_name_their_use(queue: Queue) -> None:
    serve(queue)
    queue.limits.set("llm", kinds=["llm"], key="tenant", concurrency=1)
    queue.enqueue("llm", tenant="acme")
    waiting = queue.enqueue("llm", tenant="acme")
    queue.claim_many(kinds=["llm"])

    found = queue.why(waiting.id)
    assert found.state == "parked"
    assert found.summary == f"{waiting.id} is parked: limit llm for key acme is full: 1 of 1 running, 1 parked."
    assert reasons(found)["limit"].blocks
    assert reasons(found)["limit"].detail["running"] == 1


def test_an_estimate_follows_from_recent_jobs(queue: Queue, clock: ManualClock) -> None:
    serve(queue, concurrency=2)
    for _ in range(5):
        queue.enqueue("a")
    claims = queue.claim_many(kinds=["a"], lease=60)
    clock.advance(10)
    queue.settle_many([(claim, Done()) for claim in claims])
    serve(queue, concurrency=2)
    for _ in range(4):
        last = queue.enqueue("a")
    found = reasons(queue.why(last.id))["estimate"]
    assert found.detail == {"starts_in_ms": 15_000, "runs_ms": 10_000}


def test_jobs_before_it_are_counted_up_to_a_bound(queue: Queue) -> None:
    queue.enqueue_many([{"kind": "a"} for _ in range(1_200)])
    last = queue.enqueue("a")
    assert reasons(queue.why(last.id))["position"].text == "1,000+ ready jobs of its lane come first"


def test_other_tenants_do_not_find_it(queue: Queue) -> None:
    job = queue.enqueue("a", tenant="acme")
    assert queue.why(job.id, tenant="acme").job_id == job.id
    for job_id, tenant in ((job.id, "other"), ("none", None)):
        with pytest.raises(JobNotFound):
            queue.why(job_id, tenant=tenant)
