"""What a worker does not use costs it nothing: isolation and sessions are imported and created when first needed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.project.sources import ROOT
from tests.worker.unused_parts import MODULES


@pytest.mark.slow("it starts two interpreters, one of which imports most of the library")
def test_isolation_and_sessions_are_imported_when_they_are_first_needed(tmp_path: Path) -> None:
    program = f"from tests.worker import unused_parts; unused_parts.main({str(tmp_path / 'jobs.db')!r})"
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    found = json.loads(ran.stdout)

    assert found["plain"] == [found["process"], []]
    process, imported = found["suspect"]
    assert process != found["process"]
    assert imported == [MODULES[0]]
    assert found["session"] == [["HELLO"], list(MODULES)]
