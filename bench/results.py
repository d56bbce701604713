"""The results of one run: what was measured, and how it is stored."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from bench.candidates import Durability
from bench.claim_cost import Cost
from bench.memory import Memory
from bench.pickup import Latency
from bench.rounds import Cell


@dataclass
class Results:
    """Everything one run found."""

    machine: dict[str, str]
    method: dict[str, Any]
    settings: dict[str, str]
    cells: list[Cell] = field(default_factory=list)
    latencies: list[Latency] = field(default_factory=list)
    costs: list[Cost] = field(default_factory=list)
    memory: Memory | None = None

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
                and cell.candidate not in {"holdfast", "bare sqlite3"}
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


def store(results: Results, path: Path) -> None:
    """Write the results as JSON, small enough to be kept."""
    told = {
        "machine": results.machine,
        "method": results.method,
        "settings": results.settings,
        "roads": [_cell(cell) for cell in results.cells],
        "pickup": [_latency(one) for one in results.latencies],
        "claim_cost": [
            {
                "filter": cost.filter,
                "microseconds": {str(size): round(took * 1e6, 1) for size, took in cost.seconds.items()},
            }
            for cost in results.costs
        ],
        "memory": None if results.memory is None else results.memory._asdict(),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


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
