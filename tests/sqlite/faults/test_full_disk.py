"""A small disk that really becomes full. Without the right to mount one, `test_failing_calls` simulates the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sqlite.faults.child import run_child
from tests.sqlite.faults.history import History, complaints
from tests.sqlite.faults.visits import fill_up
from tests.support.filesystems import small_disk

_REASON = "no disk ran really full; system calls and the file layer said so instead"


@pytest.mark.parametrize(
    ("mebibytes", "payload_bytes"),
    [(2, 3_000), (3, 60_000), (16, 60_000), (16, 900_000)],
    ids=["log", "log-large-rows", "database", "database-large-rows"],
)
def test_a_full_disk_refuses_by_name_loses_nothing_and_is_used_again(
    tmp_path: Path, built: Path, mebibytes: int, payload_bytes: int
) -> None:
    # Another file takes half of the disk at first, and is deleted in the end.
    reserve_bytes = mebibytes << 19
    with small_disk(tmp_path / "disk", f"{mebibytes}m", _REASON) as disk:
        arguments = {"folder": str(disk), "payload_bytes": payload_bytes, "reserve_bytes": reserve_bytes}
        seen = run_child("file-layer", built, fill_up, **arguments)
        assert seen["refusals"] == ["StoreFull"] * 3
        assert len(seen["acknowledged"]) > 3
        refused = {"enqueue": "StoreFull", "settle": "StoreFull", "another": "StoreFull", "elsewhere": "StoreFull"}
        assert seen["full"] == {**refused, "read": True}
        assert seen["freed"] == {"settle": "done", "elsewhere": True, "jobs": True}
        history = History(acknowledged=dict.fromkeys(seen["acknowledged"], ("ready", 0)))
        assert complaints(str(disk / "jobs.db"), history) == []
