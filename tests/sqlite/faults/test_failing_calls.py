"""A failing or full disk: a typed error, no partial writes, nothing acknowledged lost, and work continues.

Each call that changes a file fails in turn, in a separate process, which then repeats its operation.
"""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest

from tests.sqlite.faults.child import run_child
from tests.sqlite.faults.failures import failing_at_each_call
from tests.sqlite.faults.history import History, complaints
from tests.sqlite.faults.interception import Call, Form
from tests.sqlite.faults.operations import prepare, references

BROKEN = {"OutcomeUnknown", "StoreUnreachable"}
FULL = {"StoreFull"}


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    prepare(tmp_path / "store")
    return tmp_path / "store"


def _sweep(
    form: Form, built: Path, prepared: Path, operation: str, *, calls: Call, error: int, **arguments: Any
) -> list[dict[str, Any]]:
    """Let call after call fail and check the report of every process; return the cases."""
    # JSON has only lists, so the expected values are converted to them for the comparison.
    known = json.loads(json.dumps(references(prepared, operation)))
    cases: list[dict[str, Any]] = run_child(
        form,
        built,
        failing_at_each_call,
        prepared=str(prepared),
        operation=operation,
        calls=int(calls),
        error=error,
        **{"times": 1, "cold": False, "step": 1, **arguments},
    )
    assert cases
    for case in cases:
        assert case["status"] == 0, case
        assert case["kept"] in (None, known[1]), case
        assert case["again"] is None, case
        assert case["found"] == known[1], case
        assert complaints(f"{case['folder']}/jobs.db", History()) == []
    return cases


def _errors(cases: list[dict[str, Any]]) -> set[str]:
    return {case["error"] for case in cases} - {None}


class TestInputOutputErrors:
    @pytest.mark.slow("each call of a process fails or kills it in turn")
    @pytest.mark.parametrize("calls", [Call.WRITE, Call.SYNC], ids=["write", "sync"])
    @pytest.mark.parametrize("operation", ["enqueue", "claim", "settle", "cancel"])
    def test_a_call_that_fails_is_told_as_such_and_can_be_sent_again(
        self, form: Form, built: Path, prepared: Path, operation: str, calls: Call
    ) -> None:
        cases = _sweep(form, built, prepared, operation, calls=calls, error=errno.EIO, suffix="-wal")
        assert {case["error"] for case in cases} == {"OutcomeUnknown"}
        if operation != "settle":
            # The state of the connection cannot be trusted after that, so it is not used any more. (A settle also
            # reads here, and SQLite reuses descriptors among connections without opening a file.)
            assert [case["at"] for case in cases if not case["reopened"]] == []

    @pytest.mark.slow("each call of a process fails or kills it in turn")
    @pytest.mark.parametrize("operation", ["enqueue", "settle"])
    def test_opening_a_file_that_cannot_be_written_is_told_as_such(
        self, form: Form, built: Path, prepared: Path, operation: str
    ) -> None:
        cases = _sweep(form, built, prepared, operation, calls=Call.CHANGE, error=errno.EIO, cold=True)
        assert _errors(cases) <= BROKEN
        assert _errors(cases)

    @pytest.mark.slow("each call of a process fails or kills it in turn")
    def test_making_a_file_that_cannot_be_written_is_told_as_such(
        self, form: Form, built: Path, tmp_path: Path
    ) -> None:
        (tmp_path / "store").mkdir()
        cases = _sweep(
            form, built, tmp_path / "store", "enqueue", calls=Call.CHANGE, error=errno.EIO, cold=True, step=4
        )
        assert _errors(cases) <= BROKEN
        assert _errors(cases)

    @pytest.mark.slow("each call of a process fails or kills it in turn")
    def test_a_failed_checkpoint_fails_no_call(self, form: Form, built: Path, prepared: Path) -> None:
        cases = _sweep(form, built, prepared, "checkpoint", calls=Call.CHANGE, error=errno.EIO, step=89, suffix=".db")
        assert _errors(cases) == set()

    @pytest.mark.parametrize("form", ["system-calls"], indirect=True)
    def test_a_lock_file_that_cannot_be_written_fails_no_call(self, form: Form, built: Path, prepared: Path) -> None:
        cases = _sweep(form, built, prepared, "enqueue", calls=Call.WRITE, error=errno.EIO, suffix="-holdfast")
        assert _errors(cases) == set()

    @pytest.mark.slow("each call of a process fails or kills it in turn")
    @pytest.mark.parametrize("cold", [False, True], ids=["open", "opening"])
    @pytest.mark.parametrize("operation", ["enqueue", "settle"])
    def test_a_file_that_cannot_be_read_is_told_as_such(
        self, form: Form, built: Path, prepared: Path, operation: str, cold: bool
    ) -> None:
        cases = _sweep(form, built, prepared, operation, calls=Call.READ, error=errno.EIO, cold=cold)
        # SQLite reports a disk that does not return its data as a damaged database.
        assert _errors(cases) <= BROKEN | {"StoreDamaged"}
        assert _errors(cases)


class TestFullDisk:
    @pytest.mark.slow("each call of a process fails or kills it in turn")
    @pytest.mark.parametrize("operation", ["enqueue", "claim", "settle", "cancel"])
    def test_a_full_disk_is_told_as_such_until_there_is_space_again(
        self, form: Form, built: Path, prepared: Path, operation: str
    ) -> None:
        cases = _sweep(
            form, built, prepared, operation, calls=Call.WRITE, error=errno.ENOSPC, times=-1, suffix="-wal"
        )
        assert {case["error"] for case in cases} == FULL

    @pytest.mark.slow("each call of a process fails or kills it in turn")
    def test_opening_a_file_on_a_full_disk_is_told_as_such(self, form: Form, built: Path, prepared: Path) -> None:
        cases = _sweep(
            form,
            built,
            prepared,
            "enqueue",
            calls=Call.WRITE | Call.TRUNCATE,
            error=errno.ENOSPC,
            times=-1,
            cold=True,
        )
        assert _errors(cases) == FULL

    @pytest.mark.slow("each call of a process fails or kills it in turn")
    def test_making_a_file_on_a_full_disk_is_told_as_such(self, form: Form, built: Path, tmp_path: Path) -> None:
        (tmp_path / "store").mkdir()
        calls = Call.WRITE | Call.TRUNCATE | Call.CREATE
        cases = _sweep(
            form, built, tmp_path / "store", "enqueue", calls=calls, error=errno.ENOSPC, times=-1, cold=True, step=4
        )
        assert _errors(cases) <= FULL | {"StoreUnreachable"}
        assert "StoreFull" in _errors(cases)

    @pytest.mark.slow("each call of a process fails or kills it in turn")
    def test_a_checkpoint_without_space_fails_no_call(self, form: Form, built: Path, prepared: Path) -> None:
        cases = _sweep(
            form, built, prepared, "checkpoint", calls=Call.WRITE, error=errno.ENOSPC, times=-1, step=89, suffix=".db"
        )
        assert _errors(cases) == set()
