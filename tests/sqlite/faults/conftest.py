from __future__ import annotations

from pathlib import Path

import pytest

from tests.sqlite.faults.interception import FORMS, Form, compiler


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> Form:
    """The form of interception between SQLite and its files. The form without requirements always runs."""
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
