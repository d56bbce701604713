"""A process killed at any call that changes a file leaves the store as before its operation or as after it.

The kill occurs right before each such call in turn, and right after the last. The long tests also kill right after
each call, which leaves the same files as a kill before the next one.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

import holdfast
from tests.sqlite.faults.child import run_child
from tests.sqlite.faults.history import History, complaints, numbers
from tests.sqlite.faults.interception import Form
from tests.sqlite.faults.kills import killed_at_each_call
from tests.sqlite.faults.operations import OPERATIONS, References, prepare, references, without_bulk

BEFORE_AND_AFTER = [False, pytest.param(True, marks=pytest.mark.long)]


def _check(case: dict[str, object], known: References, operation: str) -> bool:
    """Check one store that a killed process left; return whether the operation had taken effect."""
    path = f"{case['folder']}/jobs.db"
    with holdfast.connect(path) as queue:
        found = without_bulk(numbers(queue))
        assert found in known, case
        assert found == known.after or not case["said"], case
        for _ in range(2):
            OPERATIONS[operation].perform(queue)
            assert without_bulk(numbers(queue)) == known.after, case
    assert complaints(path, History()) == []
    return found == known.after


def _sweep(form: Form, built: Path, prepared: Path, operation: str, **arguments: object) -> None:
    known = references(prepared, operation)
    cases = run_child(form, built, killed_at_each_call, prepared=str(prepared), operation=operation, **arguments)
    *killed, last = cases
    assert [case for case in killed if case["status"] != -signal.SIGKILL or case["said"]] == []
    assert last["said"] == ["acknowledged"]
    effects = [_check(case, known, operation) for case in cases]
    # Some kills were early enough to leave no trace of the operation, and some late enough to leave all of it.
    assert not effects[0]
    assert effects[-1]


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    prepare(tmp_path / "store")
    return tmp_path / "store"


@pytest.mark.slow("each call of a process fails or kills it in turn")
@pytest.mark.parametrize("after", BEFORE_AND_AFTER, ids=["before", "after"])
@pytest.mark.parametrize("operation", ["enqueue", "claim", "settle", "cancel"])
def test_a_kill_leaves_the_store_as_before_or_as_after_the_call(
    form: Form, built: Path, prepared: Path, operation: str, after: bool
) -> None:
    _sweep(form, built, prepared, operation, after=after, cold=False, step=1)


@pytest.mark.slow("each call of a process fails or kills it in turn")
@pytest.mark.parametrize("after", BEFORE_AND_AFTER, ids=["before", "after"])
@pytest.mark.parametrize("operation", ["enqueue", "close"])
def test_a_kill_while_the_file_is_opened_or_closed_harms_nothing(
    form: Form, built: Path, prepared: Path, operation: str, after: bool
) -> None:
    _sweep(form, built, prepared, operation, after=after, cold=True, step=1)


@pytest.mark.slow("each call of a process fails or kills it in turn")
def test_a_kill_while_the_file_is_created_leaves_a_usable_one(form: Form, built: Path, tmp_path: Path) -> None:
    empty = tmp_path / "store"
    empty.mkdir()
    _sweep(form, built, empty, "enqueue", after=False, cold=True, step=3)


@pytest.mark.slow("each call of a process fails or kills it in turn")
def test_a_kill_while_the_log_is_copied_into_the_database_harms_nothing(
    form: Form, built: Path, prepared: Path
) -> None:
    _sweep(form, built, prepared, "checkpoint", after=False, cold=False, step=150)


@pytest.mark.long
def test_a_kill_anywhere_while_the_log_is_copied_into_the_database_harms_nothing(
    form: Form, built: Path, prepared: Path
) -> None:
    _sweep(form, built, prepared, "checkpoint", after=True, cold=False, step=7)
