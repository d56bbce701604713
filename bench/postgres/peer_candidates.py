"""The peers on PostgreSQL, each in a separate process and environment, with its best documented settings."""

from __future__ import annotations

import os
import shutil
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bench.candidates import Candidate, Scenario
from bench.child import ChildSession
from bench.postgres.drivers.protocol import WARM_JOBS

ENVIRONMENTS = Path(__file__).resolve().parents[2] / ".bench"
_NODE = Path(__file__).resolve().parents[1] / "node"
_SCENARIOS: frozenset[Scenario] = frozenset({"single", "bulk", "drain", "pick-up"})


class _Peer(NamedTuple):
    name: str
    driver: str
    settings: str


_PYTHON_PEERS = [
    _Peer(
        "pgqueuer",
        "pgqueuer",
        "asyncpg pool, uvloop; enqueue of many in one call; QueueManager.run(batch_size=500)",
    ),
    _Peer(
        "procrastinate",
        "procrastinate",
        "PsycopgConnector with psycopg's C implementation; batch_defer_async; async worker with concurrency=30,"
        ' delete_jobs="successful"; drains 2,000 jobs, the others 10,000',
    ),
    _Peer(
        "awa-pg",
        "awa",
        "queue storage; insert, enqueue_many_copy; 500 slots, claim_batch_size=500; timed until shutdown has"
        " written its results",
    ),
    _Peer("oban", "oban", "psycopg, uvloop; enqueue, enqueue_many; one queue with a limit of 100"),
]
_NODE_PEERS = [
    _Peer(
        "graphile-worker",
        "graphile-worker.mjs",
        "addJob, addJobs; concurrentJobs=24, maxPoolSize=25, localQueue.size=500, completeJobBatchDelay=0 (from its"
        " page on performance)",
    ),
    _Peer(
        "pg-boss",
        "pg-boss.mjs",
        "send, insert; two loops that fetch and complete batches of 500; pick-up by a worker that polls every 0.5 s,"
        " its shortest interval",
    ),
]


def _python(peer: _Peer) -> Path:
    return ENVIRONMENTS / peer.name / "bin" / "python"


def _open_python(peer: _Peer, url: str) -> ChildSession:
    # Hide the packages of this environment.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [str(_python(peer)), "-m", f"bench.postgres.drivers.{peer.driver}", url]
    return ChildSession(command, warm=WARM_JOBS, environment=environment)


def _open_node(peer: _Peer, url: str) -> ChildSession:
    command = [shutil.which("node") or "node", str(_NODE / peer.driver), url]
    return ChildSession(command, warm=WARM_JOBS)


def _is_installed(peer: _Peer) -> bool:
    return shutil.which("node") is not None and (_NODE / "node_modules" / peer.name).is_dir()


def candidates() -> list[Candidate]:
    """Return the peers that are installed."""
    python = [(peer, partial(_open_python, peer)) for peer in _PYTHON_PEERS if _is_ready(peer)]
    node = [(peer, partial(_open_node, peer)) for peer in _NODE_PEERS if _is_installed(peer)]
    return [Candidate(peer.name, "full", peer.settings, _SCENARIOS, start) for peer, start in (*python, *node)]


def absent() -> dict[str, str]:
    """Return the peers that are not installed, each with the reason."""
    missing = {peer.name: _reason(peer) for peer in _PYTHON_PEERS if not _is_ready(peer)}
    for peer in _NODE_PEERS:
        if not _is_installed(peer):
            missing[peer.name] = "it is not installed; bench/node/install installs it if npm exists"
    return missing


def _is_ready(peer: _Peer) -> bool:
    return (ENVIRONMENTS / peer.name / ".prepared").exists()


def _reason(peer: _Peer) -> str:
    noted = ENVIRONMENTS / f"{peer.name}.missing"
    return (
        noted.read_text(encoding="utf-8").strip()
        if noted.exists()
        else "not installed; bench/postgres/prepare installs it"
    )
