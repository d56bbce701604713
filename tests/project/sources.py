"""The sources that the project tests examine: modules as syntax trees, pages as text and tables."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable, Iterator
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "holdfast"
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted(DOCS.glob("*.md"))]


class Module(NamedTuple):
    """A parsed module of the package."""

    name: str
    path: Path
    tree: ast.Module

    @property
    def layer(self) -> str:
        """The package below `holdfast` that contains the module; empty for top-level modules."""
        parts = self.name.split(".")
        return parts[1] if len(parts) > 1 and (PACKAGE / parts[1]).is_dir() else ""


@functools.cache
def modules() -> list[Module]:
    """Return every module of the package."""
    return [_parse(path) for path in sorted(PACKAGE.rglob("*.py"))]


def _parse(path: Path) -> Module:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    name = ".".join(part for part in parts if part != "__init__")
    return Module(name, path, ast.parse(path.read_text(encoding="utf-8")))


def imports(module: Module, *, typing_too: bool = False) -> Iterator[str]:
    """Yield the dotted names that *module* imports at run time; with *typing_too*, also those for type checkers."""
    for node in ast.walk(module.tree) if typing_too else _executed(module.tree):
        match node:
            case ast.Import():
                yield from (alias.name for alias in node.names)
            case ast.ImportFrom():
                assert node.level == 0, f"{module.name}: imports must be absolute"
                assert node.module is not None
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _executed(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield the nodes of *tree*, except those under TYPE_CHECKING."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        typing_only = isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        waiting += node.orelse if typing_only and isinstance(node, ast.If) else ast.iter_child_nodes(node)


def texts(module: Module) -> Iterator[tuple[int, str]]:
    """Yield the strings of *module*, except docstrings, with their lines."""
    prose = {id(docstring) for docstring in _docstrings(module.tree)}
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node.lineno, node.value


def _docstrings(tree: ast.Module) -> Iterator[ast.expr]:
    # A string as a statement documents the name above it; it is never executed.
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.value


def table_rows(page: Path) -> dict[str, list[str]]:
    """Return the tables of *page*: by the code in each row's first cell, the cells after it."""
    rows = {}
    for line in page.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("|") and (code := re.fullmatch(r"`([^`]+)`", cells[0])):
            rows[code[1]] = cells[1:]
    return rows


def load_script(name: str) -> Any:
    """Return a script of the project as a module."""
    loader = SourceFileLoader(name.replace("-", "_"), str(ROOT / "scripts" / name))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def assert_none(offenders: Iterable[object]) -> None:
    """Fail with one line per offender."""
    listed = [str(offender) for offender in offenders]
    assert not listed, "\n" + "\n".join(listed)
