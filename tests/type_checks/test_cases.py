"""Type checkers see what a reader sees: each line of the cases is right, or wrong for the reason it gives."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.project.sources import ROOT, assert_none

CASES = sorted((Path(__file__).parent / "cases").glob("*.py"))
# LeaseUpdate between runs, because mypy reads all of the library first.
CACHE = ROOT / ".mypy_cache" / "cases"
FOUND = re.compile(r"^(?P<file>[^:]+):(?P<line>\d+): error: .*\[(?P<code>[\w-]+)\]$", re.MULTILINE)
EXPECTED = re.compile(r"# E: (?P<codes>[\w -]+)$")


def _found() -> dict[str, set[tuple[int, str]]]:
    """Return what mypy says of all cases, by file: lines and codes of errors."""
    command = [sys.executable, "-m", "mypy", "--strict", f"--cache-dir={CACHE}", "--follow-imports=silent"]
    ran = subprocess.run(
        [*command, "--no-error-summary", *map(str, CASES)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ran.stderr == ""
    said: dict[str, set[tuple[int, str]]] = {case.name: set() for case in CASES}
    for error in FOUND.finditer(ran.stdout):
        said[Path(error["file"]).name].add((int(error["line"]), error["code"]))
    return said


def _expected(case: Path) -> set[tuple[int, str]]:
    lines = case.read_text(encoding="utf-8").splitlines()
    return {
        (number, code)
        for number, line in enumerate(lines, start=1)
        if (wrong := EXPECTED.search(line))
        for code in wrong["codes"].split()
    }


@pytest.mark.slow("mypy runs")
def test_a_case_is_right_but_for_the_lines_that_say_so() -> None:
    expected = {case.name: _expected(case) for case in CASES}
    found = _found()

    assert_none(f"{name} expects no error" for name in expected if not expected[name])
    assert_none(f"{name}: missing {e}" for name in expected for e in sorted(expected[name] - found[name]))
    assert_none(f"{name}: not expected {e}" for name in expected for e in sorted(found[name] - expected[name]))
