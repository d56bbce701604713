"""Type checkers see what a reader sees: each line of the cases is right, or wrong for the reason it gives."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.sources import ROOT

CASES = sorted((Path(__file__).parent / "cases").glob("*.py"))
FOUND = re.compile(r"^(?P<file>[^:]+):(?P<line>\d+): error: .*\[(?P<code>[\w-]+)\]$", re.MULTILINE)
EXPECTED = re.compile(r"# E: (?P<codes>[\w -]+)$")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[tuple[int, str]]]:
    """What mypy says of all cases, by file: lines and codes of errors."""
    cache = tmp_path_factory.mktemp("mypy")
    command = [sys.executable, "-m", "mypy", "--strict", f"--cache-dir={cache}", "--follow-imports=silent"]
    ran = subprocess.run(
        [*command, "--no-error-summary", *map(str, CASES)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ran.stderr == ""
    said: dict[str, set[tuple[int, str]]] = {}
    for error in FOUND.finditer(ran.stdout):
        said.setdefault(Path(error["file"]).name, set()).add((int(error["line"]), error["code"]))
    return said


def _expected(case: Path) -> set[tuple[int, str]]:
    lines = case.read_text(encoding="utf-8").splitlines()
    return {
        (number, code)
        for number, line in enumerate(lines, start=1)
        if (wrong := EXPECTED.search(line))
        for code in wrong["codes"].split()
    }


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_case_is_right_but_for_the_lines_that_say_so(case: Path, found: dict[str, set[tuple[int, str]]]) -> None:
    expected = _expected(case)

    assert expected
    assert sorted(found[case.name]) == sorted(expected)
