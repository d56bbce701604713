"""The set-up: pinned versions, one command for each task, and a working interpreter."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.project.sources import ROOT

TARGETS = [
    "help",
    "demo",
    "test",
    "test-cli",
    "test-service",
    "test-gateway",
    "test-browser",
    "test-tools",
    "test-long",
    "check",
    "test-pythons",
    "bench",
    "bench-quick",
    "bench-service",
    "bench-gateway",
    "bench-dashboard",
    "clean",
]
# Not run for every change: they take longer, or need more interpreters.
LONG = {"test-long", "test-pythons"}
PINNED = re.compile(r"([A-Za-z0-9._-]+)==[0-9][A-Za-z0-9.!+]*")


def _constraints() -> list[str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _run(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False, timeout=60)


def test_the_constraints_are_names_and_versions_only() -> None:
    assert [line for line in _constraints() if not PINNED.fullmatch(line)] == []


def test_every_requirement_of_the_project_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"].values()
    required = [*project["build-system"]["requires"], *(requirement for extra in extras for requirement in extra)]
    names = {_normal(re.split(r"[<>=\[ ]", requirement)[0]) for requirement in required} - {"holdfast"}
    pinned = {_normal(line.split("==")[0]) for line in _constraints()}

    assert names - pinned == set()


def test_the_pages_say_the_same_times_of_the_commands_as_make_help() -> None:
    time = re.compile(r"^(?:make )?([a-z-]+)(?:: ##| +#) .*\(([^)]*minute[^)]*)\)$", re.MULTILINE)
    makefile, contributing, readme = (
        (ROOT / name).read_text(encoding="utf-8") for name in ("Makefile", "CONTRIBUTING.md", "README.md")
    )
    times = dict(time.findall(makefile))

    assert "test" in times
    assert dict(time.findall(contributing)) == {
        name: text for name, text in times.items() if not name.startswith("bench")
    }
    assert f"`make test` ({times['test']})" in readme


def test_the_library_has_no_dependencies() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

    assert project["project"]["dependencies"] == []


def test_make_without_a_target_lists_all_targets() -> None:
    shown = _run("make", PATH=os.environ["PATH"])

    assert shown.returncode == 0
    assert re.findall(r"^  make ([a-z-]+)", shown.stdout, re.MULTILINE) == TARGETS


def test_the_gate_runs_the_tests_and_then_the_checks() -> None:
    gate = ROOT / ".ci" / "run"
    lines = gate.read_text(encoding="utf-8").splitlines()

    assert gate.stat().st_mode & 0o111
    assert "set -euo pipefail" in lines
    assert [line for line in lines if line.startswith("make ")] == [
        *(
            f"make {target} || again {target}"
            for target in TARGETS
            if target.startswith("test") and target not in LONG
        ),
        "make check",
    ]


@pytest.fixture
def shims(tmp_path: Path) -> Path:
    """A folder of shims that fail, as version managers leave them on PATH."""
    for name in ("python3", "python3.11", "python3.12", "python3.13"):
        shim = tmp_path / "shims" / name
        shim.parent.mkdir(exist_ok=True)
        shim.write_text("#!/bin/sh\necho 'not installed' >&2\nexit 127\n")
        shim.chmod(0o755)
    return tmp_path / "shims"


def test_an_interpreter_that_does_not_start_is_not_found(shims: Path, tmp_path: Path) -> None:
    _link_tools(tmp_path / "tools")

    found = _run("scripts/find-pythons", PATH=f"{shims}:{tmp_path / 'tools'}", HOME=str(tmp_path))

    assert (found.returncode, found.stdout) == (0, "")


def test_an_interpreter_in_a_version_managers_folder_is_found_behind_its_shims(shims: Path, tmp_path: Path) -> None:
    _link_tools(tmp_path / "tools")
    interpreter = tmp_path / ".pyenv" / "versions" / "one" / "bin" / "python3"
    interpreter.parent.mkdir(parents=True)
    interpreter.write_text("#!/bin/sh\necho '3.11 /somewhere/python3'\n")
    interpreter.chmod(0o755)

    found = _run("scripts/find-pythons", PATH=f"{shims}:{tmp_path / 'tools'}", HOME=str(tmp_path))

    assert found.stdout == "3.11 /somewhere/python3\n"


def test_of_interpreters_with_the_same_version_that_of_the_system_is_found(tmp_path: Path) -> None:
    _link_tools(tmp_path / "tools")
    folders = {"a": "3.12 /a a/python", "b": "3.11 /b/python", "c": "3.12 /usr/bin/python3.12", "d": "3.12 /d/python"}
    for folder, answer in folders.items():
        interpreter = tmp_path / folder / "python3"
        interpreter.parent.mkdir()
        interpreter.write_text(f"#!/bin/sh\necho '{answer}'\n")
        interpreter.chmod(0o755)

    found = _run("scripts/find-pythons", PATH=":".join(str(tmp_path / name) for name in (*folders, "tools")))

    assert found.stdout == "3.12 /usr/bin/python3.12\n3.11 /b/python\n"


def test_a_chosen_interpreter_that_does_not_start_is_named(shims: Path, tmp_path: Path) -> None:
    chosen = str(shims / "python3")

    refused = _run("scripts/prepare", str(tmp_path / "venv"), "test", PATH=os.environ["PATH"], PYTHON=chosen)

    assert refused.returncode == 1
    assert refused.stderr == f"PYTHON={chosen} does not start.\n"
    assert not (tmp_path / "venv").exists()


def _link_tools(folder: Path) -> None:
    # Only the tools of the script, which keeps real interpreters off PATH.
    folder.mkdir()
    for tool in ("sh", "awk", "env", "tr", "sed"):
        found = shutil.which(tool)
        assert found is not None
        (folder / tool).symlink_to(found)
