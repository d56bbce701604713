"""The measurement of claims of jobs that are far apart runs; the figures themselves are not tested."""

from __future__ import annotations

from pathlib import Path

from bench.claim_pages import JOBS, main


def test_a_claim_and_an_update_of_its_rows_are_measured_at_each_size(tmp_path: Path) -> None:
    found = main(["--size", "1000", "--size", "2000", "--beside", "10", "--claims", "1", "--folder", str(tmp_path)])

    assert [list(by_size) for by_size in found.values()] == [[1000, 2000]] * 2
    for by_size in found.values():
        for sample in by_size.values():
            assert sample.milliseconds > 0
            assert 0 < sample.pages <= 4 * JOBS
