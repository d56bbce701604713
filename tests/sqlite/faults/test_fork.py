"""A queue inherited across a fork is used by parent and child: no job is lost or duplicated, no call hangs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.sqlite.faults import forks
from tests.sqlite.faults.child import run_child
from tests.sqlite.faults.history import History, complaints


def _run(tmp_path: Path, story: Callable[..., object], **arguments: object) -> Any:
    path = str(tmp_path / "jobs.db")
    seen = run_child("file-layer", tmp_path, story, path=path, **arguments)
    assert complaints(path, History()) == []
    return seen


def _each(*names: str) -> list[str]:
    return [f"{name}-{number}" for name in names for number in range(20)]


def test_parent_children_and_threads_go_on_after_a_fork_in_the_middle_of_everything(tmp_path: Path) -> None:
    seen = _run(tmp_path, forks.busy_parent)
    assert seen["codes"] == [0, 0]
    assert seen["heard"] == ["done"]
    assert seen["found"] == sorted(["awaited", "in-transaction", *_each("thread", "parent", "one", "two")])


def test_a_child_forked_inside_a_transaction_is_refused_the_file_and_blocks_no_caller(tmp_path: Path) -> None:
    seen = _run(tmp_path, forks.fork_inside_a_transaction)
    assert seen["codes"] == [0, 0]
    assert seen["reported"] == ["misconfigured"] * 3
    assert seen["found"] == sorted(["parents", "parents-too", *_each("after", "later")])


@pytest.mark.parametrize("writing", [False, True], ids=["idle", "writing"])
@pytest.mark.parametrize("raising", [False, True], ids=["returning", "raising"])
def test_a_child_that_leaves_the_parents_transaction_changes_nothing_of_it(
    tmp_path: Path, raising: bool, writing: bool
) -> None:
    seen = _run(tmp_path, forks.child_leaves_the_parents_transaction, raising=raising, writing=writing)
    assert seen["found"] == ["afterwards", "parents", "parents-too"]


def test_a_parent_killed_with_the_gate_held_does_not_leave_it_shut_by_a_child(tmp_path: Path) -> None:
    seen = _run(tmp_path, forks.parent_dies_inside_the_gate)
    assert seen == {"reported": "another", "found": ["another"]}


def test_children_that_end_in_the_ordinary_way_take_nothing_with_them(tmp_path: Path) -> None:
    seen = _run(tmp_path, forks.children_end_in_their_own_way)
    assert seen["codes"] == [0, 0, 0]
    names = ["before", "used", "closed", "beside-idle", "beside-used", "beside-closed", "after"]
    assert seen["found"] == sorted(_each(*names))


def test_event_loops_on_both_sides_of_a_fork_go_on(tmp_path: Path) -> None:
    seen = _run(tmp_path, forks.tasks_on_both_sides)
    assert seen["codes"] == [0]
    assert seen["found"] == sorted(_each("before", "child", "parent"))


@pytest.mark.slow("it waits for five processes, one after the other")
def test_a_child_that_outlives_the_parent_loses_nothing_while_others_come_and_go(tmp_path: Path) -> None:
    seen = _run(tmp_path, forks.parent_goes_child_stays)
    assert seen["codes"] == [0, 0]
    expected = sorted(_each("before", "early", "visitor-1", "visitor-2", "late"))
    assert seen["found"] == expected
    assert seen["stayed"] == f"{len(expected)}"


def test_forks_under_load_leave_no_child_waiting_and_lose_nothing(tmp_path: Path) -> None:
    assert _run(tmp_path, forks.forks_under_load, forks=12) == {"codes": [0], "lost": []}


@pytest.mark.long
def test_many_forks_under_load_leave_no_child_waiting_and_lose_nothing(tmp_path: Path) -> None:
    assert _run(tmp_path, forks.forks_under_load, forks=150) == {"codes": [0], "lost": []}
