"""Two versions of the code on one file: side by side if the schema permits it, refused if it does not."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import holdfast
from tests.sqlite.faults.history import History, complaints

_PACKAGE = Path(holdfast.__file__).resolve().parent

# Enqueues, claims and settles in turn, and prints its operations and how it ended.
_WORK = """
import json, sys
import holdfast
path, name, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
settled, error = [], None
try:
    queue = holdfast.connect(path)
    for number in range(rounds):
        queue.enqueue("mail", {"from": name}, job_id=f"{name}-{number}", dedupe_key=f"{name}-{number}")
        claim = queue.claim(lease=3600)
        if claim is not None:
            follow_up = {"kind": "then", "job_id": f"{claim.job.id}-then", "lane": "then"}
            settled.append(queue.settle(claim, holdfast.Done(follow_ups=[follow_up])).id)
    queue.close()
except holdfast.HoldfastError as raised:
    error = type(raised).__name__
print(json.dumps({"version": holdfast.__version__, "settled": settled, "error": error}))
"""

_ADDITIVE = """-- Room for a remark beside each job, and a table that older code does not know.
alter table holdfast_job add column remark text;
create table holdfast_remark (seq integer primary key, remark text not null) strict;
create index holdfast_job_remark on holdfast_job (remark) where remark is not null;
"""

_BREAKING = """-- From here on, older code would do harm.
update holdfast_meta set value = '9.1.0' where name = 'code_version_min';
"""


def _version(folder: Path, number: str, *migrations: str) -> Path:
    """Make another version of the package: the same code with another number and additional migrations."""
    package = folder / "holdfast"
    shutil.copytree(_PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "version.py").write_text(f'"""Another version."""\n\n__version__ = "{number}"\n')
    for place, text in enumerate(migrations):
        name = f"{9000 + place}_later.sql"
        (package / "storage" / "sqlite" / "migrations" / name).write_text(text)
    return folder


@pytest.fixture
def current() -> Path:
    return _PACKAGE.parent


@pytest.fixture
def newer(tmp_path: Path) -> Path:
    return _version(tmp_path / "newer", "9.0.0", _ADDITIVE)


@pytest.fixture
def breaking(tmp_path: Path) -> Path:
    return _version(tmp_path / "breaking", "9.1.0", _ADDITIVE, _BREAKING)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


def _start(code: Path, path: Path, name: str, rounds: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _WORK, str(path), name, str(rounds)]
    environment = {**os.environ, "PYTHONPATH": str(code)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, cwd=path.parent)


def _end(started: subprocess.Popen[str]) -> Any:
    said, _ = started.communicate(timeout=120)
    return json.loads(said)


def _run(code: Path, path: Path, name: str, rounds: int) -> Any:
    return _end(_start(code, path, name, rounds))


@pytest.mark.slow("two versions run in processes")
def test_an_older_version_works_beside_a_newer_one_on_its_schema(path: Path, current: Path, newer: Path) -> None:
    assert _run(current, path, "first", 5)["error"] is None
    started = [_start(current, path, "old", 60), _start(newer, path, "new", 60), _start(current, path, "late", 60)]
    seen = [_end(process) for process in started]
    assert [(said["version"], said["error"]) for said in seen] == [
        (holdfast.__version__, None),
        ("9.0.0", None),
        (holdfast.__version__, None),
    ]
    settled = [job_id for said in seen for job_id in said["settled"]]
    assert len(settled) == len(set(settled))
    with holdfast.connect(str(path)) as queue:
        states = {job.id: job.state for job in queue.jobs(limit=1000)}
    expected = {f"{name}-{number}" for name in ("old", "new", "late") for number in range(60)}
    assert expected <= states.keys()
    assert {job_id for job_id in expected if states[job_id] == "done"} == set(settled) & expected
    assert {f"{job_id}-then" for job_id in settled} <= states.keys()
    history = History(acknowledged=dict.fromkeys(settled, ("done", 1)))
    assert complaints(str(path), history) == []


@pytest.mark.slow("two versions run in processes")
def test_a_version_that_is_too_old_is_refused_and_changes_nothing(
    path: Path, current: Path, newer: Path, breaking: Path
) -> None:
    assert _run(newer, path, "new", 5)["error"] is None
    assert _run(current, path, "old", 5)["error"] is None
    assert _run(breaking, path, "break", 5)["error"] is None
    before = path.read_bytes()
    for code in (current, newer):
        assert _run(code, path, "refused", 5) == {
            "version": "9.0.0" if code == newer else holdfast.__version__,
            "settled": [],
            "error": "SchemaMismatch",
        }
    assert path.read_bytes() == before
    for use in (holdfast.Queue.counts, lambda queue: queue.enqueue("mail")):
        with pytest.raises(holdfast.errors.SchemaMismatch, match=r"9\.1\.0"), holdfast.connect(str(path)) as queue:
            use(queue)
    assert _run(breaking, path, "again", 5)["error"] is None


def test_a_running_process_goes_on_while_a_newer_version_adds_to_the_schema(path: Path, newer: Path) -> None:
    with holdfast.connect(str(path)) as queue:
        queue.enqueue("mail", job_id="before", lane="mine")
        queue.counts()
        assert _run(newer, path, "new", 3)["error"] is None
        claim = queue.claim(lanes=["mine"])
        assert claim is not None
        assert queue.settle(claim, holdfast.Done()).state == "done"
        assert queue.get("new-0").state == "done"
        assert queue.enqueue("mail", job_id="after").created
    assert complaints(str(path), History()) == []
