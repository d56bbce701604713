"""Taste that can be measured: small functions, short files, statements that say why they exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from statistics import median

import pytest

from tests.house.sources import PACKAGE, Module, modules

FUNCTION_LINES_MAX = 70
FUNCTION_LINES_MEDIAN_MAX = 9
FILE_LINES_MAX = 500
MODULES = modules()
SQL_FILES = sorted(PACKAGE.rglob("*.sql"))
# A sentence: begins with a capital letter, ends with a full stop, perhaps lines later.
PURPOSE = re.compile(r"-- [A-Z].*?[.:]( |\n)", re.DOTALL)


def _functions(module: Module) -> list[tuple[str, int]]:
    return [
        (f"{module.name}.{node.name}", (node.end_lineno or node.lineno) - node.lineno + 1)
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


FUNCTIONS = [found for module in MODULES for found in _functions(module)]


def test_no_function_is_longer_than_can_be_taken_in_at_once() -> None:
    assert [(name, lines) for name, lines in FUNCTIONS if lines > FUNCTION_LINES_MAX] == []


def test_functions_are_small() -> None:
    assert median(lines for _, lines in FUNCTIONS) <= FUNCTION_LINES_MEDIAN_MAX


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.name)
def test_a_file_is_short_and_opens_with_what_it_owns(module: Module) -> None:
    assert len(module.path.read_text(encoding="utf-8").splitlines()) <= FILE_LINES_MAX
    assert ast.get_docstring(module.tree)


def test_there_are_sql_files() -> None:
    assert {path.parent.name for path in SQL_FILES} == {"sql", "migrations"}


@pytest.mark.parametrize("path", SQL_FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_an_sql_file_opens_with_a_sentence_of_purpose(path: Path) -> None:
    text = path.read_text(encoding="utf-8")

    assert PURPOSE.match(text)
    assert text.endswith("\n")
