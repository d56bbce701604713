"""Outcomes cross the boundary of an isolated process unchanged."""

from __future__ import annotations

from holdfast import Done, NewJob, Tasks
from holdfast.domain.new_job import TaskJob
from holdfast.worker.isolation.codec import decode_outcome, encode_outcome


def test_a_follow_up_that_a_task_created_is_still_one_of_a_task() -> None:
    task = Tasks().task("echo", lane="own")(lambda value: value)
    done = Done(follow_ups=(task.new(1), NewJob("other", {"value": 2})))

    decoded = decode_outcome(*encode_outcome(done, "tenant"))

    assert decoded == done
    assert isinstance(decoded, Done)
    assert [isinstance(new, TaskJob) for new in decoded.follow_ups] == [True, False]
