"""The list of conformance tests that do not run over HTTP names tests that exist."""

from __future__ import annotations

import ast

import pytest

from tests.project.sources import ROOT
from tests.support import http_engine

SUITE = ROOT / "tests" / "conformance"


@pytest.mark.slow("it parses the conformance suite")
def test_every_exclusion_names_a_file_or_a_test() -> None:
    files = {path.stem: ast.parse(path.read_text(encoding="utf-8")) for path in SUITE.glob("test_*.py")}
    assert http_engine.EXCLUDED_FILES.keys() <= files.keys()
    tests = {
        f"{stem}::{node.name}"
        for stem, tree in files.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
    }
    assert http_engine.EXCLUDED_TESTS.keys() - tests == set()
    assert not [name for name in http_engine.EXCLUDED_TESTS if name.partition("::")[0] in http_engine.EXCLUDED_FILES]
