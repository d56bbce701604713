"""The sync API is generated from the async API: `scripts/make-sync` writes the files that are in the repository."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.project.sources import assert_none, load_script

GENERATED: dict[Path, str] = load_script("make-sync").generate()


def _meaning(text: str) -> tuple[str, list[str]]:
    """Return the header and the code, regardless of layout and of the order of imports, which ruff decides."""
    tree = ast.parse(text)
    return text.splitlines()[0], sorted(ast.dump(_sorted(node)) for node in tree.body)


def _sorted(node: ast.stmt) -> ast.stmt:
    if isinstance(node, ast.ImportFrom):
        node.names.sort(key=lambda alias: alias.name)
    return node


def test_there_are_generated_files() -> None:
    assert len(GENERATED) > 5


def test_the_generated_files_are_up_to_date() -> None:
    assert_none(
        path.name
        for path, text in GENERATED.items()
        if not path.exists() or _meaning(path.read_text(encoding="utf-8")) != _meaning(text)
    )


def test_no_other_file_is_beside_the_generated_ones() -> None:
    beside = {path for directory in {path.parent for path in GENERATED} for path in directory.glob("*.py")}

    assert_none(sorted(path for path in beside - GENERATED.keys() if path.parent.name == "sync_api"))


def test_the_sync_api_awaits_nothing() -> None:
    assert_none(
        path.name
        for path in GENERATED
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncWith | ast.AsyncFor)
    )
