"""Type checkers see what a reader sees: each line of the cases is right, or wrong for the reason it gives.

The page docs/typing.md is a case too: its comments show the whole messages.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.project.sources import DOCS, ROOT, assert_none

CASES = sorted((Path(__file__).parent / "cases").glob("*.py"))
PAGE = DOCS / "typing.md"
# Kept between runs, because mypy reads all of the library first.
CACHE = ROOT / ".mypy_cache" / "cases"
FOUND = re.compile(r"^(?P<file>[^:]+):(?P<line>\d+): error: (?P<message>.*)  \[(?P<code>[\w-]+)\]$", re.MULTILINE)
EXPECTED = re.compile(r"# E: (?P<codes>[\w -]+)$")
SHOWN = re.compile(r"\s*# error: (?P<message>.*)")
CONTINUED = re.compile(r"\s*#   (?P<message>.*)")


class Error(NamedTuple):
    """An error of mypy."""

    line: int
    code: str
    message: str

    @property
    def text(self) -> str:
        """The message with its code, as mypy prints it."""
        return " ".join(f"{self.message} [{self.code}]".split())


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[Error]]:
    """Return what mypy says of all cases and of the page, by file."""
    page = tmp_path_factory.mktemp("page") / f"{PAGE.stem}_page.py"
    page.write_text("".join(f"{line}\n" for line in _code(PAGE)), encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", f"--cache-dir={CACHE}", "--follow-imports=silent"]
    ran = subprocess.run(
        [*command, "--no-error-summary", *map(str, CASES), str(page)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ran.stderr == ""
    said: dict[str, set[Error]] = {path.name: set() for path in (*CASES, page)}
    for error in FOUND.finditer(ran.stdout):
        said[Path(error["file"]).name].add(Error(int(error["line"]), error["code"], error["message"]))
    return said


def _code(page: Path) -> Iterator[str]:
    """Yield the lines of *page*, those outside its `py` blocks empty, so that line numbers are the page's."""
    inside = False
    for line in page.read_text(encoding="utf-8").splitlines():
        inside = (inside or line == "```py") and line != "```"
        yield line if inside and line != "```py" else ""


def _expected(case: Path) -> set[tuple[int, str]]:
    lines = case.read_text(encoding="utf-8").splitlines()
    return {
        (number, code)
        for number, line in enumerate(lines, start=1)
        if (wrong := EXPECTED.search(line))
        for code in wrong["codes"].split()
    }


def _shown(page: Path) -> set[tuple[int, str]]:
    """Return the messages on *page*, each with the line of code above it."""
    shown: list[tuple[int, str]] = []
    code_line = 0
    for number, line in enumerate(_code(page), start=1):
        if message := SHOWN.fullmatch(line):
            shown.append((code_line, message["message"]))
        elif message := CONTINUED.fullmatch(line):
            shown.append((shown[-1][0], f"{shown.pop()[1]} {message['message']}"))
        else:
            code_line = number
    return {(number, " ".join(message.split())) for number, message in shown}


@pytest.mark.slow("mypy runs")
def test_a_case_is_right_but_for_the_lines_that_say_so(found: dict[str, set[Error]]) -> None:
    expected = {case.name: _expected(case) for case in CASES}
    codes = {name: {(error.line, error.code) for error in errors} for name, errors in found.items()}

    assert_none(f"{name} expects no error" for name in expected if not expected[name])
    assert_none(f"{name}: missing {e}" for name in expected for e in sorted(expected[name] - codes[name]))
    assert_none(f"{name}: not expected {e}" for name in expected for e in sorted(codes[name] - expected[name]))


@pytest.mark.slow("mypy runs")
def test_the_page_about_typing_shows_the_messages_of_mypy(found: dict[str, set[Error]]) -> None:
    shown = _shown(PAGE)
    said = {(error.line, error.text) for error in found[f"{PAGE.stem}_page.py"]}

    assert len(shown) > 40
    assert_none(f"line {line}: mypy does not say {message}" for line, message in sorted(shown - said))
    assert_none(f"line {line}: mypy says {message}" for line, message in sorted(said - shown))
