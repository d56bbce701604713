"""`import holdfast` loads only necessary modules, and raises on Windows."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

import holdfast
from tests.project.sources import ROOT

HEAVY = [
    "asyncio",
    "click",
    "concurrent.futures",
    "httpx2",
    "importlib.resources",
    "inspect",
    "logging",
    "multiprocessing",
    "opentelemetry",
    "prometheus_client",
    "psycopg",
    "rich",
    "sqlite3",
    "ssl",
    "subprocess",
]


def _run(code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_importing_the_package_loads_nothing_heavy() -> None:
    ran = _run("import holdfast, sys; print(*sys.modules)")

    assert ran.stderr == ""
    assert "holdfast" in ran.stdout.split()
    assert set(HEAVY) & set(ran.stdout.split()) == set()


def test_every_public_name_is_in_the_module_that_type_checkers_use() -> None:
    tree = ast.parse((ROOT / "src/holdfast/__init__.py").read_text(encoding="utf-8"))
    [for_checkers] = [
        node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    declared = {
        alias.name: str(node.module).removeprefix("holdfast.")
        for node in for_checkers.body
        if isinstance(node, ast.ImportFrom) and node.module != "holdfast"
        for alias in node.names
    }

    assert declared == holdfast._MODULES
    assert sorted([*declared, "__version__", "errors", "types"]) == holdfast.__all__
    assert set(holdfast.__all__) <= set(dir(holdfast))
    for name in declared:
        assert getattr(holdfast, name) is vars(sys.modules[f"holdfast.{declared[name]}"])[name]


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'holdfast' has no attribute 'conect'"):
        holdfast.conect  # type: ignore[attr-defined]  # noqa: B018


def test_the_import_raises_on_windows_and_names_an_alternative() -> None:
    ran = _run("import sys; sys.platform = 'win32'; import holdfast")

    assert ran.returncode == 1
    assert ran.stderr.splitlines()[-1] == (
        "ImportError: Holdfast does not support Windows: it needs POSIX file locks and signals. "
        "Use Linux instead, for example in WSL 2 or in a container."
    )
