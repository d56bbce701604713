"""The logs of killed processes are read as far as they were written."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.history import lines


def test_a_line_cut_short_by_a_kill_was_never_written(tmp_path: Path) -> None:
    log = tmp_path / "actor1.log"
    log.write_bytes(b'{"call":1,"at":1.0}\n{"call":2,"at":2.0,"did":[{"deed":"cla')
    assert list(lines(log)) == [{"call": 1, "at": 1.0}]
