"""The results of one run on one engine: what was measured, and how it is stored."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from bench.candidates import CEILINGS, Durability, Engine
from bench.claim_cost import Cost
from bench.isolation import IsolationFigures
from bench.memory import Memory
from bench.pickup import Latency
from bench.postgres.claim_cost import Pinned
from bench.rounds import Cell
from bench.sessions import WorkerProcesses
from bench.worker import WorkerFigures

NAMES: dict[Engine, str] = {"sqlite": "SQLite", "postgres": "PostgreSQL"}


@dataclass
class Results:
    """Everything one run found on one engine."""

    engine: Engine
    machine: dict[str, str]
    method: dict[str, Any]
    settings: dict[str, str]
    cells: list[Cell] = field(default_factory=list)
    latencies: list[Latency] = field(default_factory=list)
    costs: list[Cost] = field(default_factory=list)
    memory: Memory | None = None
    pinned: Pinned | None = None
    session_costs: list[Cost] = field(default_factory=list)
    crew: WorkerProcesses | None = None
    worker: WorkerFigures | None = None
    isolation: IsolationFigures | None = None
    absent: dict[str, str] = field(default_factory=dict)

    def cell(self, road: str, candidate: str, durability: Durability) -> Cell | None:
        """Return one candidate on one road, if it was measured."""
        key = (road, candidate, durability)
        return next((cell for cell in self.cells if (cell.road, cell.candidate, cell.durability) == key), None)

    def peers(self, road: str, durability: Durability) -> list[Cell]:
        """Return the peers on one road, the quickest first."""
        return sorted(
            (
                cell
                for cell in self.cells
                if (cell.road, cell.durability) == (road, durability)
                and cell.candidate not in CEILINGS | {"holdfast"}
            ),
            key=lambda cell: -cell.rate,
        )

    def latency(self, candidate: str, durability: Durability) -> Latency | None:
        """Return the pick-up of one candidate, if it was measured."""
        key = (candidate, durability)
        return next((one for one in self.latencies if (one.candidate, one.durability) == key), None)


def ratio(ours: Cell | None, theirs: Cell | None) -> float | None:
    """Return how many times as quick ours is: the median of the rounds' own ratios, which share their noise."""
    if ours is None or theirs is None:
        return None
    return median(mine / other for mine, other in zip(ours.rates, theirs.rates, strict=True))


def store(runs: list[Results], path: Path) -> None:
    """Write the results as JSON, small enough to be kept; what is known of another engine stays."""
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    kept = {engine: known[engine] for engine in ("sqlite", "postgres") if engine in known}
    told = kept | {results.engine: as_json(results) for results in runs}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


def as_json(results: Results) -> dict[str, Any]:
    """Return *results* as they are stored."""
    return {
        "machine": results.machine,
        "method": results.method,
        "settings": results.settings,
        "not_measured": results.absent,
        "roads": [_cell(cell) for cell in results.cells],
        "pickup": [_latency(one) for one in results.latencies],
        "claim_cost": [_cost(cost) for cost in results.costs],
        "session_cost": [_cost(cost) for cost in results.session_costs],
        "session_crew": None if results.crew is None else results.crew._asdict(),
        "memory": None if results.memory is None else results.memory._asdict(),
        "worker": None if results.worker is None else _worker(results.worker),
        "isolation": None if results.isolation is None else results.isolation._asdict(),
        "pinned_snapshot": None if results.pinned is None else results.pinned._asdict(),
    }


def _cost(cost: Cost) -> dict[str, Any]:
    return {
        "filter": cost.filter,
        "microseconds": {str(size): round(took * 1e6, 1) for size, took in cost.seconds.items()},
    }


def _cell(cell: Cell) -> dict[str, Any]:
    return {
        "road": cell.road,
        "candidate": cell.candidate,
        "durability": cell.durability,
        "jobs_per_second": [round(rate, 1) for rate in cell.rates],
    }


def _latency(one: Latency) -> dict[str, Any]:
    return {
        "candidate": one.candidate,
        "durability": one.durability,
        "jobs": len(one.seconds),
        "p50_ms": round(one.percentile(0.5) * 1e3, 3),
        "p99_ms": round(one.percentile(0.99) * 1e3, 3),
    }


def _worker(found: WorkerFigures) -> dict[str, Any]:
    rates = {name: round(value, 1) for name, value in found._asdict().items() if name != "idle_share"}
    return {"jobs_per_second": rates, "idle_share_of_a_core": round(found.idle_share, 5)}
