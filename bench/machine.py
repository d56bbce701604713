"""The facts of the machine that a reader needs to judge the figures."""

from __future__ import annotations

import json
import os
import platform
import sqlite3
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import holdfast

_PEERS = ("huey", "litequeue", "persist-queue")
_NODE_PEERS = ("plainjob", "better-sqlite3")
_NODE_MODULES = Path(__file__).parent / "node" / "node_modules"


def facts(place: Path) -> dict[str, str]:
    """Return what was measured on, and with which versions."""
    return {
        "processor": f"{_processor()}, {os.cpu_count()} cores",
        "memory": _memory(),
        "system": f"{platform.system()} {platform.release()}",
        "file system": _file_system(place),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "holdfast": holdfast.__version__,
        **{name: _version(name) for name in _PEERS},
        **{name: _node_version(name) for name in _NODE_PEERS},
    }


def load() -> float:
    """Return how many processes wanted to run during the last minute."""
    return os.getloadavg()[0]


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _node_version(name: str) -> str:
    try:
        told = json.loads((_NODE_MODULES / name / "package.json").read_text(encoding="utf-8"))
    except OSError:
        return "not installed"
    return str(told["version"])


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
        Path(words[1]): words[2]
        for line in mounts.read_text(encoding="utf-8").splitlines()
        if (words := line.split())
    }
    return next((kinds[folder] for folder in (here, *here.parents) if folder in kinds), "unknown")
