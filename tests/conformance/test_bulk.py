"""Many jobs at once: list, count, cancel and prune by the same filters."""

from __future__ import annotations

import pytest

import holdfast
from holdfast import Artifact, Done, Failed, InvalidInput, JobNotFound, Queue
from holdfast.types import Pruned, Tally
from tests.support.clock import ManualClock


def end(queue: Queue, kind: str, outcome: holdfast.Outcome) -> str:
    """Enqueue a job of *kind*, settle it with *outcome*, and return its id."""
    enqueued = queue.enqueue(kind)
    claim = queue.claim(kinds=[kind])
    assert claim is not None
    queue.settle(claim, outcome)
    return enqueued.id


def ids(page: holdfast.types.JobPage) -> list[str]:
    return [job.id for job in page]


def test_jobs_of_several_states_are_listed_in_enqueue_order(queue: Queue) -> None:
    done = end(queue, "a", Done())
    ready = queue.enqueue("b").id
    failed = end(queue, "c", Failed("no", permanent=True))

    assert ids(queue.jobs(state=["failed", "done"])) == [failed, done]
    assert ids(queue.jobs(state=("ready", "failed"))) == [failed, ready]
    first = queue.jobs(state=["failed", "done"], limit=1)
    assert ids(queue.jobs(state=["failed", "done"], limit=1, after=first.cursor)) == [done]


def test_age_counts_from_the_end_of_a_finished_job_and_from_the_enqueueing_of_others(
    queue: Queue, clock: ManualClock
) -> None:
    waiting = queue.enqueue("a").id
    clock.advance(60)
    done = end(queue, "b", Done())
    clock.advance(30)
    queue.enqueue("c")

    assert ids(queue.jobs(older_than=60)) == [waiting]
    assert ids(queue.jobs(older_than=20)) == [done, waiting]
    assert ids(queue.jobs(state="done", older_than=60)) == []
    assert ids(queue.jobs(state="done", older_than=20)) == [done]


def test_a_tally_counts_by_lane_kind_and_state_with_the_filters_of_a_list(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("a", lane="bulk")
    queue.enqueue("a", lane="bulk", tenant="t")
    end(queue, "b", Failed("no", permanent=True))
    clock.advance(60)
    queue.enqueue("a")

    assert queue.admin.tally() == [
        Tally("bulk", "a", "ready", 2),
        Tally("default", "a", "ready", 1),
        Tally("default", "b", "failed", 1),
    ]
    assert queue.admin.tally(tenant="t") == [Tally("bulk", "a", "ready", 1)]
    assert queue.admin.tally(kind="a", lane="default") == [Tally("default", "a", "ready", 1)]
    assert queue.admin.tally(state=["ready", "done"], older_than=30) == [Tally("bulk", "a", "ready", 2)]
    assert queue.admin.tally(failure_class="permanent") == [Tally("default", "b", "failed", 1)]


@pytest.mark.parametrize(
    ("state", "field"), [("gone", "state"), (["ready", "gone"], r"state\[1\]"), ([], "state"), (3, "state")]
)
def test_a_state_that_does_not_exist_is_refused(queue: Queue, state: holdfast.Job, field: str) -> None:
    with pytest.raises(InvalidInput, match=f"^{field}: "):
        queue.jobs(state=state)  # type: ignore[arg-type]


def test_kinds_are_listed_with_whether_they_are_retired(queue: Queue) -> None:
    queue.enqueue("b")
    queue.enqueue("a")
    queue.kinds.retire("b")
    queue.kinds.retire("never-used")

    listed = [(kind.name, kind.retired) for kind in queue.kinds.list()]
    assert listed == [("a", False), ("b", True), ("never-used", True)]


def test_cancelling_many_cancels_waiting_jobs_requests_running_ones_and_reports_the_rest(queue: Queue) -> None:
    running = queue.enqueue("a").id
    assert queue.claim() is not None
    waiting, other = queue.enqueue("a").id, queue.enqueue("a", tenant="t").id
    done = end(queue, "b", Done())

    report = queue.admin.cancel_many([waiting, running, done, "missing", waiting])
    again = queue.admin.cancel_many([waiting, running])
    of_tenant = queue.admin.cancel_many([other], tenant="default")

    assert (report.cancelled, report.stop_requested) == ([waiting], [running])
    codes = [(skipped.job_id, skipped.code) for skipped in report.skipped]
    assert codes == [(done, "conflict"), ("missing", "job_not_found")]
    assert (queue.get(waiting).state, queue.get(running).cancel_requested) == ("cancelled", 1)
    assert (again.cancelled, again.stop_requested, again.skipped) == ([waiting], [running], [])
    assert [skipped.job_id for skipped in of_tenant.skipped] == [other]
    assert queue.admin.cancel_many([running], force=True).cancelled == [running]


def test_cancelling_a_job_together_with_its_successor_leaves_both_cancelled(queue: Queue) -> None:
    first = queue.enqueue("a", dedupe_key="k").id
    assert queue.claim() is not None
    second = queue.enqueue("a", dedupe_key="k", on_duplicate="run_again").id
    assert queue.get(second).state == "blocked"

    assert queue.admin.cancel_many([first, second], force=True).cancelled == [first, second]
    assert queue.counts() == {"cancelled": 2}


def test_a_job_is_found_by_its_number(queue: Queue) -> None:
    enqueued = queue.enqueue("a", tenant="t").job

    assert queue.get(enqueued.number) == queue.get(enqueued.id)
    with pytest.raises(JobNotFound):
        queue.get(enqueued.number + 1)
    with pytest.raises(JobNotFound):
        queue.get(enqueued.number, tenant="other")
    with pytest.raises(InvalidInput, match="job_id"):
        queue.get(0)


def test_a_dry_run_of_prune_counts_and_deletes_nothing(queue: Queue, clock: ManualClock) -> None:
    end(queue, "a", Done(artifacts=[Artifact("log", b"x")]))
    end(queue, "b", Failed("no", permanent=True))
    clock.advance(60)
    end(queue, "c", Done())

    assert queue.admin.prune(older_than=30, dry_run=True) == Pruned(2, 2)
    assert queue.admin.prune(older_than=30, states=["done"], dry_run=True).jobs == 1
    assert sum(queue.counts().values()) == 3
    assert queue.admin.prune(older_than=30) == Pruned(2, 2)
