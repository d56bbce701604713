"""All candidates that can be measured here, and those that cannot."""

from __future__ import annotations

from bench import baselines, holdfast_candidates, peer_candidates, plainjob
from bench.candidates import Candidate, Engine
from bench.postgres import holdfast_candidates as postgres_candidates
from bench.postgres import peer_candidates as postgres_peers
from bench.postgres import pgbench


def everyone(engine: Engine) -> list[Candidate]:
    """Return Holdfast, its peers that are installed, and what the engine does without a queue."""
    if engine == "postgres":
        return [*postgres_candidates.candidates(), *postgres_peers.candidates(), *pgbench.candidates()]
    return [
        *holdfast_candidates.candidates(),
        *peer_candidates.candidates(),
        *plainjob.candidates(),
        *baselines.candidates(),
    ]


def absent(engine: Engine) -> dict[str, str]:
    """Return who should have been measured and cannot be, with the reason."""
    return {**postgres_peers.absent(), **pgbench.absent()} if engine == "postgres" else {}
