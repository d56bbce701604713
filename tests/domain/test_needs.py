"""Which of the things that need an operator the first screen shows."""

from __future__ import annotations

from holdfast.domain import overview
from holdfast.domain.overview import Need
from holdfast.domain.results import Backlog, WorkerInfo
from holdfast.domain.serving import Unserved

EMPTY = Backlog((), 0, 0, 0, 0, 0)


def need(about: overview.Subject, number: int) -> Need:
    return Need("problem", about, f"{about}-{number}", "it is broken", "", None, 1, (), "holdfast doctor")


def test_many_things_of_one_kind_do_not_hide_others() -> None:
    found = [*(need("failure", n) for n in range(100)), need("lane", 0), need("finding", 0)]
    shown = [one.subject for one in overview.first(found)]
    assert shown == ["failure-0", "failure-1", "failure-2", "failure-3", "failure-4", "lane-0", "finding-0"]
    assert overview.first(found[:5]) == tuple(found[:5])


def test_kinds_that_no_worker_takes_are_one_row_if_there_are_many() -> None:
    few = [Unserved("mail", f"kind-{n}", (), 10, "no_worker") for n in range(3)]
    assert [one.about for one in overview.needs([], EMPTY, {}, few, [], [])] == ["unserved"] * 3
    many = [*few, Unserved("bulk", "kind-0", (), 10_000, "no_worker"), Unserved("slow", "a", (), 1, "lane_paused")]
    first, second = overview.needs([], EMPTY, {}, many, [], [])
    assert first.what == "no live worker takes 10,030+ ready jobs of 3 kinds"
    assert first.cause == "in lanes bulk, mail; start workers that take them"
    assert second.about == "lane"


def test_jobs_that_silent_workers_hold_are_not_known_to_be_running() -> None:
    gone = WorkerInfo("w", "a", "host", 1, "0.1.0", "silent", 4, 2, (), (), (), (), held=2)
    assert overview.activity(5, 2, []) == "working"
    assert overview.activity(5, 3, [gone]) == "working"
    assert overview.activity(5, 2, [gone]) == "stopped"
