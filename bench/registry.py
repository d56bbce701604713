"""All candidates that can be measured on this machine, and those that cannot."""

from __future__ import annotations

from bench import baselines, holdfast_candidates, peer_candidates, plainjob, statement_cost as sqlite_statements
from bench.candidates import Candidate, Engine
from bench.postgres import (
    holdfast_candidates as postgres_candidates,
    peer_candidates as postgres_peers,
    pgbench,
    statement_cost,
)


def all_candidates(engine: Engine) -> list[Candidate]:
    """Return Holdfast, the installed peers, and the engine without a queue."""
    if engine == "postgres":
        return [
            *postgres_candidates.candidates(),
            *postgres_peers.candidates(),
            *pgbench.candidates(),
            *statement_cost.candidates(),
        ]
    return [
        *holdfast_candidates.candidates(),
        *peer_candidates.candidates(),
        *plainjob.candidates(),
        *baselines.candidates(),
        *sqlite_statements.candidates(),
    ]


def absent(engine: Engine) -> dict[str, str]:
    """Return the candidates that cannot be measured, with the reason."""
    return {**postgres_peers.absent(), **pgbench.absent()} if engine == "postgres" else {}
