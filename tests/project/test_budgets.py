"""Budgets for readability: length of functions and files, names, imports, and files crossed by one call."""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest

import holdfast
from tests.project.sources import PACKAGE, ROOT, Module, assert_none, imports, modules

pytestmark = pytest.mark.slow("the first of these tests in a process parses all modules")

FUNCTION_LINES_MAX = 60
FILE_LINES_MAX = 600
IMPORT_SHARE_MAX = 0.06
FILES_OF_ENQUEUE_MAX = 10
FILES_OF_A_JOB_MAX = 18
"""Enqueue, claim and settle together."""
SMALL_FILE_LINES = 60
SMALL_FILES_KEPT = {
    "holdfast.worker.claim_ahead": "a rule without I/O, tested by itself; its only user is as long as a file may be",
    "holdfast.dashboard.flow": "each page of the dashboard is a module",
    "holdfast.dashboard.sign_in": "each page of the dashboard is a module",
    "holdfast.dashboard.system": "each page of the dashboard is a module",
    "holdfast.remote.limits": "the calls of each namespace are a module, which the store imports to register them",
    "holdfast.remote.overview": "the calls of each namespace are a module, which the store imports to register them",
}
"""Short modules that are not part of their only importer, with the reason."""

SQL_FILES = sorted(PACKAGE.rglob("*.sql"))
# A sentence: begins with a capital letter and ends with a full stop, possibly lines later.
PURPOSE = re.compile(r"-- [A-Z].*?[.:]( |\n)", re.DOTALL)


def _functions(module: Module) -> list[tuple[str, int]]:
    return [
        (f"{module.name}.{node.name}", (node.end_lineno or node.lineno) - node.lineno + 1)
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


@pytest.mark.slow("it parses all sources")
def test_no_function_is_too_long() -> None:
    functions = [found for module in modules() for found in _functions(module)]

    assert_none((name, lines) for name, lines in functions if lines > FUNCTION_LINES_MAX)


def test_no_file_is_too_long() -> None:
    files = [path for folder in (PACKAGE, ROOT / "tests", ROOT / "bench") for path in folder.rglob("*.py")]
    lengths = [(path.relative_to(ROOT), len(path.read_text(encoding="utf-8").splitlines())) for path in files]

    assert_none((name, lines) for name, lines in lengths if lines > FILE_LINES_MAX)


def test_a_short_file_has_more_than_one_user_in_its_package() -> None:
    small = {
        module.name
        for module in modules()
        if len(module.path.read_text(encoding="utf-8").splitlines()) < SMALL_FILE_LINES
        and not module.path.name.startswith("__")
        # Generated from files in which the same classes and functions stand for async callers.
        and module.path.parent.name != "sync_api"
    }
    users: dict[str, set[str]] = {name: set() for name in small}
    for module in modules():
        for name in imports(module, typing_too=True):
            found = name if name in small else name.rpartition(".")[0]
            if found in small:
                users[found].add(module.name)
    mergeable = {name for name, found in users.items() if [_package(one) for one in found] == [_package(name)]}

    assert_none(sorted(mergeable ^ SMALL_FILES_KEPT.keys()))


def _package(name: str) -> str:
    return name.rpartition(".")[0]


def test_a_file_opens_with_a_docstring() -> None:
    assert_none(module.name for module in modules() if not ast.get_docstring(module.tree))


def test_no_class_name_is_used_twice() -> None:
    names = Counter(
        node.name for module in modules() for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef)
    )

    assert_none(name for name, count in names.items() if count > 1)


def test_imports_are_a_small_share_of_the_source() -> None:
    lines = sum(len(module.path.read_text(encoding="utf-8").splitlines()) for module in modules())
    imports = sum(
        (node.end_lineno or node.lineno) - node.lineno + 1
        for module in modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
    )

    assert imports / lines <= IMPORT_SHARE_MAX, f"{imports} of {lines} lines"


# --- files crossed -------------------------------------------------------------------------------------------------


def test_one_enqueue_crosses_few_files(tmp_path: Path) -> None:
    with holdfast.connect(tmp_path / "jobs.db") as queue:
        # The first adds a route; the second works out what the jobs of the route have in common.
        queue.enqueue("report", {"id": 0})
        queue.enqueue("report", {"id": 1})

        crossed = _files_crossed(lambda: queue.enqueue("report", {"id": 2}))

    assert len(crossed) <= FILES_OF_ENQUEUE_MAX, sorted(crossed)


def test_a_job_from_enqueue_to_settle_crosses_few_files(tmp_path: Path) -> None:
    with holdfast.connect(tmp_path / "jobs.db") as queue:

        def run_one_job() -> None:
            queue.enqueue("report", {"id": 1})
            claim = queue.claim(worker="worker")
            assert claim is not None
            queue.settle(claim, holdfast.Done({"pages": 3}))

        run_one_job()
        run_one_job()
        crossed = _files_crossed(run_one_job)

    assert len(crossed) <= FILES_OF_A_JOB_MAX, sorted(crossed)
    assert_none(sorted(_files_drawn() - crossed))


def _files_drawn() -> set[str]:
    """Return the files in the drawing of CONTRIBUTING.md, from enqueue to the end of its block."""
    _, _, page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("queue.enqueue(...)")
    return set(re.findall(r"[a-z_]+/[a-z_/]+\.py", page.partition("```")[0]))


def _files_crossed(call: Callable[[], object]) -> set[str]:
    """Return the source files of the package in which *call* runs a function."""
    found = set()

    def trace(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(str(PACKAGE)):
            found.add(frame.f_code.co_filename.removeprefix(f"{PACKAGE}/"))

    sys.setprofile(trace)
    try:
        call()
    finally:
        sys.setprofile(None)
    assert found, "the trace has seen nothing"
    return found


# --- SQL -----------------------------------------------------------------------------------------------------------


def test_there_are_sql_files() -> None:
    assert {path.parent.name for path in SQL_FILES} == {"queries", "migrations"}


def test_an_sql_file_opens_with_a_sentence_of_purpose_and_ends_with_a_newline() -> None:
    found = [(f"{path.parent.name}/{path.name}", path.read_text(encoding="utf-8")) for path in SQL_FILES]

    assert_none(name for name, text in found if not (PURPOSE.match(text) and text.endswith("\n")))
