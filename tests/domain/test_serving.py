"""Ready jobs that no live worker takes, from counts, the registry of workers and the paused lanes."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.domain import limits
from holdfast.domain.serving import ReadyCount, unserved, unserved_findings, unserved_reason
from holdfast.types import Unserved, WorkerInfo


def worker(**changes: Any) -> WorkerInfo:
    report: dict[str, Any] = {
        "worker": "w1",
        "incarnation": "i1",
        "host": "h",
        "process": 1,
        "version": "0",
        "state": "active",
        "concurrency": 1,
        "running": 0,
        "lanes": ("default",),
        "kinds": ("doc.chunk",),
        "capabilities": ("gpu",),
        "loaded": (),
    }
    return WorkerInfo(**{**report, **changes})


def ready(lane: str = "default", kind: str = "doc.chunk", requires: str = "", jobs: int = 3) -> ReadyCount:
    return ReadyCount(lane, kind, frozenset(requires.split()), jobs)


@pytest.mark.parametrize(
    ("workers", "waiting", "reason"),
    [
        ([], ready(), "no_worker"),
        ([worker()], ready(), None),
        ([worker(lanes=("other",)), worker()], ready(), None),
        ([worker(lanes=("other",))], ready(), "no_worker"),
        ([worker(kinds=("other",))], ready(), "no_worker"),
        ([worker(state="stopping")], ready(), "no_worker"),
        ([worker(state="silent")], ready(), "no_worker"),
        ([worker()], ready(requires="gpu"), None),
        ([worker()], ready(requires="gpu big"), "no_worker"),
        # Not together: a single worker must have all required capabilities.
        ([worker(), worker(capabilities=("big",))], ready(requires="gpu big"), "no_worker"),
        ([worker(lanes=("paused",))], ready(lane="paused"), "lane_paused"),
    ],
)
def test_a_job_is_served_by_a_live_worker_with_its_lane_its_kind_and_all_it_requires(
    workers: list[WorkerInfo], waiting: ReadyCount, reason: str | None
) -> None:
    found = unserved_reason(waiting.lane, waiting.kind, waiting.requires, workers, {"paused"})

    assert found == reason


def test_routes_of_the_same_lane_and_kind_are_one_finding() -> None:
    waiting = [ready(), ready(jobs=2), ready(requires="big"), ready(kind="none", jobs=0)]

    assert unserved(waiting, [], ()) == [
        Unserved("default", "doc.chunk", (), 5, "no_worker"),
        Unserved("default", "doc.chunk", ("big",), 3, "no_worker"),
    ]


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (
            Unserved("default", "doc.chunk", (), 3, "no_worker"),
            "3 jobs of doc.chunk in lane default: no live worker takes them",
        ),
        (
            Unserved("default", "doc.chunk", ("big", "gpu"), 1, "no_worker"),
            "1 job of doc.chunk in lane default: no live worker takes it (it requires big, gpu)",
        ),
        (
            Unserved("night", "doc.chunk", (), 2, "lane_paused"),
            "2 jobs of doc.chunk in lane night: the lane is paused",
        ),
        (
            Unserved("default", "doc.chunk", (), limits.BACKLOG_COUNTED_MAX, "no_worker"),
            "10,000 or more jobs of doc.chunk in lane default: no live worker takes them",
        ),
    ],
)
def test_a_finding_is_one_sentence(found: Unserved, text: str) -> None:
    assert found.text() == text


def test_a_finding_keeps_its_subject_while_its_number_changes() -> None:
    [one], [other] = (unserved_findings([Unserved("default", "doc.chunk", (), jobs, "no_worker")]) for jobs in (1, 2))

    assert one.subject == other.subject
    assert one.detail != other.detail


def test_the_remedy_names_the_capabilities_that_are_required() -> None:
    [finding] = unserved_findings([Unserved("default", "doc.chunk", ("big", "gpu"), 1, "no_worker")])

    assert "kind doc.chunk and has big, gpu (--capability), or enqueue" in finding.remedy


def test_very_many_findings_are_cut() -> None:
    findings = unserved_findings([Unserved("default", f"kind-{n}", (), 1, "no_worker") for n in range(50)])

    assert len(findings) == 21
    assert findings[-1].detail == "and 30 more lanes and kinds"
