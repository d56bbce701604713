"""Outcomes cross the boundary of an isolated process unchanged."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import Artifact, Backoff, Deferred, Done, Failed, NewJob, Outcome, Tasks
from holdfast.domain.new_job import TaskJob
from holdfast.domain.outcomes import CheckedOutcome, check_outcome
from holdfast.types import UploadedArtifact
from holdfast.worker.isolation.codec import decode_outcome, encode_outcome


def test_a_follow_up_that_a_task_created_is_still_one_of_a_task() -> None:
    task = Tasks().task("echo", lane="own")(lambda value: value)
    done = Done(follow_ups=(task.new(1), NewJob("other", {"value": 2})))

    decoded = decode_outcome(*encode_outcome(done, "tenant"))

    assert decoded == done
    assert isinstance(decoded, Done)
    assert [isinstance(new, TaskJob) for new in decoded.follow_ups] == [True, False]


def test_artifacts_are_the_same_with_bytes_or_uploaded() -> None:
    artifacts = (Artifact("a", b"\x00\xff"), UploadedArtifact("b", "u", "d" * 64, "text/plain"), Artifact("c", b""))
    done = Done(follow_ups=(NewJob("next", artifacts=list(artifacts)),), artifacts=artifacts)

    assert decode_outcome(*encode_outcome(done, "tenant")) == done


def test_the_options_of_a_follow_up_may_be_of_any_type_that_a_job_accepts() -> None:
    backoff = Backoff(base=1.5)
    of_job = NewJob("ended", {"a": [1]}, backoff=backoff, deadline=timedelta(hours=1))
    of_dict = {"kind": "ended", "payload": 1, "backoff": backoff}
    options: dict[str, Any] = {"requires": {"gpu", "disk"}, "run_at": datetime(2030, 1, 31, tzinfo=UTC)}
    follow_ups = (
        NewJob("next", on_end=of_job, backoff=backoff, **options),
        NewJob("next", on_end=of_dict, after=["a"]),
    )
    done = Done(follow_ups=follow_ups)

    decoded = decode_outcome(*encode_outcome(done, "tenant"))

    # The digest covers all that is stored.
    assert checked(decoded).digest == checked(done).digest


def checked(outcome: Outcome) -> CheckedOutcome:
    return check_outcome(outcome, tenant="tenant", fresh_id=lambda: "fresh")


@pytest.mark.parametrize(
    "outcome",
    [
        Done(1, usage={"tokens": 7}),
        Failed("no", retry_after=3, usage={"tokens": 7}),
        Deferred(after=3, closes=True, usage={"tokens": 7}),
    ],
)
def test_usage_is_the_same(outcome: Outcome) -> None:
    assert decode_outcome(*encode_outcome(outcome, "tenant")) == outcome
