"""Taste that can be measured: small functions, short files, statements that say why they exist."""

from __future__ import annotations

import ast
import re
from statistics import median

from tests.project.sources import PACKAGE, Module, assert_none, modules

FUNCTION_LINES_MAX = 70
FUNCTION_LINES_MEDIAN_MAX = 9
FILE_LINES_MAX = 600
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
    assert_none((name, lines) for name, lines in FUNCTIONS if lines > FUNCTION_LINES_MAX)


def test_functions_are_small() -> None:
    assert median(lines for _, lines in FUNCTIONS) <= FUNCTION_LINES_MEDIAN_MAX


def test_a_file_is_short() -> None:
    lengths = [(module.name, len(module.path.read_text(encoding="utf-8").splitlines())) for module in MODULES]

    assert_none((name, lines) for name, lines in lengths if lines > FILE_LINES_MAX)


def test_a_file_opens_with_what_it_owns() -> None:
    assert_none(module.name for module in MODULES if not ast.get_docstring(module.tree))


def test_there_are_sql_files() -> None:
    assert {path.parent.name for path in SQL_FILES} == {"sql", "migrations"}


def test_an_sql_file_opens_with_a_sentence_of_purpose_and_ends_with_a_newline() -> None:
    found = [(f"{path.parent.name}/{path.name}", path.read_text(encoding="utf-8")) for path in SQL_FILES]

    assert_none(name for name, text in found if not (PURPOSE.match(text) and text.endswith("\n")))
