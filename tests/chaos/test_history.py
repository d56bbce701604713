"""The logs of killed processes are read up to the last complete line."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.history import lines


def test_a_truncated_line_is_ignored(tmp_path: Path) -> None:
    log = tmp_path / "actor1.log"
    log.write_bytes(b'{"call":1,"at":1.0}\n{"call":2,"at":2.0,"did":[{"operation":"cla')
    assert list(lines(log)) == [{"call": 1, "at": 1.0}]
