from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.sqlite.faults.interception import FORMS, Form, compiler


def _forms() -> list[Any]:
    """Return the forms of interception: one in every run, and the other as well in long runs.

    Both inject the same faults. System calls are what a real disk fails, so they come first if there is a compiler.
    """
    usual = "system-calls" if compiler() is not None else "file-layer"
    return [form if form == usual else pytest.param(form, marks=pytest.mark.long) for form in FORMS]


@pytest.fixture(params=_forms())
def form(request: pytest.FixtureRequest) -> Form:
    """The form of interception between SQLite and its files."""
    chosen: Form = request.param
    if chosen == "system-calls" and compiler() is None:
        pytest.skip(
            "NO C COMPILER (cc, gcc or clang; Debian: apt-get install gcc libc6-dev): "
            "system calls are not intercepted, only SQLite's file layer is"
        )
    return chosen


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder for compiled files."""
    return tmp_path_factory.mktemp("built")
