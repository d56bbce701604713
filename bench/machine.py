"""Properties of the machine that a reader needs to judge the figures."""

from __future__ import annotations

import json
import os
import platform
import sqlite3
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import holdfast
from bench.postgres.peer_candidates import ENVIRONMENTS

_PEERS = ("huey", "litequeue", "persist-queue")
_POSTGRES_PEERS = ("pgqueuer", "procrastinate", "awa-pg", "oban")
_NODE_MODULES = Path(__file__).parent / "node" / "node_modules"


def sqlite_facts(place: Path) -> dict[str, str]:
    """Return machine and versions of a run on SQLite."""
    return {
        **_facts(place),
        "sqlite": sqlite3.sqlite_version,
        **{name: _version(name) for name in _PEERS},
        **{name: _node_version(name) for name in ("plainjob", "better-sqlite3")},
    }


def postgres_facts(place: Path, server: str) -> dict[str, str]:
    """Return machine and versions of a run on PostgreSQL; *server* is the server's description."""
    return {
        **_facts(place),
        "postgres": server,
        "psycopg": _version("psycopg"),
        **{name: _environment_version(name) for name in _POSTGRES_PEERS},
        **{name: _node_version(name) for name in ("graphile-worker", "pg-boss")},
    }


def _facts(place: Path) -> dict[str, str]:
    return {
        "processor": f"{_processor()}, {os.cpu_count()} cores",
        "memory": _memory(),
        "system": f"{platform.system()} {platform.release()}",
        "file system": _file_system(place),
        "python": f"{platform.python_version()}, {'of the system' if sys.base_prefix == '/usr' else 'built apart'}",
        "holdfast": holdfast.__version__,
    }


def load() -> float:
    """Return the load average of the last minute."""
    return os.getloadavg()[0]


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _environment_version(name: str) -> str:
    """Return the version of a peer in its environment, and of its Python."""
    packages = ENVIRONMENTS.glob(f"{name}/lib/python*/site-packages/{name.replace('-', '_')}-*.dist-info")
    found = next(packages, None)
    if found is None:
        return "not installed"
    return f"{found.stem.rpartition('-')[2]}, {found.parents[1].name}"


def _node_version(name: str) -> str:
    try:
        package = json.loads((_NODE_MODULES / name / "package.json").read_text(encoding="utf-8"))
    except OSError:
        return "not installed"
    return str(package["version"])


def _first(path: str, key: str) -> str:
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return "unknown"
    found = [line.split(":", 1)[1].strip() for line in lines if line.startswith(key)]
    return found[0] if found else "unknown"


def _processor() -> str:
    return _first("/proc/cpuinfo", "model name")


def _memory() -> str:
    kilobytes = _first("/proc/meminfo", "MemTotal").split()[0]
    return f"{int(kilobytes) / (1 << 20):.0f} GiB" if kilobytes.isdigit() else "unknown"


def _file_system(place: Path) -> str:
    mounts = Path("/proc/mounts")
    if not mounts.exists():
        return "unknown"
    here = place.resolve()
    kinds = {
        Path(fields[1]): fields[2]
        for line in mounts.read_text(encoding="utf-8").splitlines()
        if (fields := line.split())
    }
    return next((kinds[folder] for folder in (here, *here.parents) if folder in kinds), "unknown")
