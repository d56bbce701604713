"""The results of one run on one engine, and their storage as JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from bench.call_cost import CallCosts
from bench.candidates import BASELINES, Durability, Engine
from bench.claim_cost import Cost
from bench.isolation import IsolationFigures
from bench.memory import Memory
from bench.pickup import Latency
from bench.postgres.claim_cost import Pinned
from bench.rounds import Cell
from bench.sessions import WorkerProcesses
from bench.worker import WorkerFigures
from bench.writers import WriterTimes

NAMES: dict[Engine, str] = {"sqlite": "SQLite", "postgres": "PostgreSQL"}


@dataclass
class Results:
    """All results of one run on one engine."""

    engine: Engine
    machine: dict[str, str]
    method: dict[str, Any]
    settings: dict[str, str]
    cells: list[Cell] = field(default_factory=list)
    latencies: list[Latency] = field(default_factory=list)
    costs: list[Cost] = field(default_factory=list)
    memory: Memory | None = None
    calls: CallCosts | None = None
    writers: dict[str, WriterTimes] = field(default_factory=dict)
    pinned: Pinned | None = None
    session_costs: list[Cost] = field(default_factory=list)
    crew: WorkerProcesses | None = None
    worker: WorkerFigures | None = None
    isolation: IsolationFigures | None = None
    absent: dict[str, str] = field(default_factory=dict)

    def cell(self, scenario: str, candidate: str, durability: Durability) -> Cell | None:
        """Return the result of one candidate in one scenario, or None."""
        key = (scenario, candidate, durability)
        return next((cell for cell in self.cells if (cell.scenario, cell.candidate, cell.durability) == key), None)

    def peers(self, scenario: str, durability: Durability) -> list[Cell]:
        """Return the peers in one scenario, the fastest first."""
        return sorted(
            (
                cell
                for cell in self.cells
                if (cell.scenario, cell.durability) == (scenario, durability)
                and cell.candidate not in (*BASELINES, "holdfast")
            ),
            key=lambda cell: -cell.rate,
        )

    def latency(self, candidate: str, durability: Durability) -> Latency | None:
        """Return the pick-up of one candidate, or None."""
        key = (candidate, durability)
        return next((one for one in self.latencies if (one.candidate, one.durability) == key), None)


def ratio(ours: Cell | None, theirs: Cell | None) -> float | None:
    """Return how many times faster *ours* is: the median of the ratios per round, which share their noise."""
    if ours is None or theirs is None:
        return None
    return median(mine / other for mine, other in zip(ours.rates, theirs.rates, strict=True))


def store(runs: list[Results], path: Path) -> None:
    """Write the results as JSON; stored results of another engine are kept."""
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    kept = {engine: known[engine] for engine in ("sqlite", "postgres") if engine in known}
    stored = kept | {results.engine: as_json(results) for results in runs}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")


def as_json(results: Results) -> dict[str, Any]:
    """Return the JSON document of *results*."""
    return {
        "machine": results.machine,
        "method": results.method,
        "settings": results.settings,
        "not_measured": results.absent,
        "scenarios": [_cell(cell) for cell in results.cells],
        "pickup": [_latency(one) for one in results.latencies],
        "claim_cost": [_cost(cost) for cost in results.costs],
        "session_cost": [_cost(cost) for cost in results.session_costs],
        "session_crew": None if results.crew is None else results.crew._asdict(),
        "memory": None if results.memory is None else results.memory._asdict(),
        "calls": None if results.calls is None else results.calls._asdict(),
        "writers": {name: times._asdict() for name, times in results.writers.items()},
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
        "scenario": cell.scenario,
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
