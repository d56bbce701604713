"""Runs the roads: every candidate in every round, in an order that moves on, and medians over the rounds."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bench import ceilings
from bench.candidates import Candidate, Durability, Road


class Plan(NamedTuple):
    """How many jobs a road gets in each round."""

    road: Road
    full: int
    relaxed: int

    def count(self, durability: Durability) -> int:
        """Return how many jobs for one durability."""
        return self.full if durability == "full" else self.relaxed


PLANS = [
    Plan("single", 1_500, 5_000),
    Plan("threads-8", 3_200, 0),
    Plan("threads-64", 6_400, 0),
    Plan("bulk", 20_000, 20_000),
    Plan("drain", 1_500, 4_000),
    Plan("one-by-one", 1_000, 2_000),
]
DRAIN_FAST = 20_000
"""A candidate that settles in batches is given more, so that its time is not all start and end."""
_FAST = frozenset({"holdfast", "bare sqlite3"})

Say = Callable[[str], None]


class Cell(NamedTuple):
    """One candidate on one road: jobs per second in each round."""

    road: str
    candidate: str
    durability: Durability
    rates: list[float]

    @property
    def rate(self) -> float:
        """The median of the rounds."""
        return median(self.rates)


def scaled(count: int, scale: float) -> int:
    """Return a count for a smaller run; never so small that a batch is not filled."""
    return max(4, round(count * scale))


def run_roads(candidates: Sequence[Candidate], place: Path, *, rounds: int, scale: float, say: Say) -> list[Cell]:
    """Measure every road, the candidates of each round one after the other."""
    cells: dict[tuple[str, str, Durability], Cell] = {}
    for number in range(rounds):
        for name, seconds_of in (("overwrite", ceilings.overwrite_seconds), ("append", ceilings.append_seconds)):
            count = scaled(2_000, scale)
            with tempfile.TemporaryDirectory(dir=place) as folder:
                rate = count / seconds_of(Path(folder), count)
            cells.setdefault(("disk", name, "full"), Cell("disk", name, "full", [])).rates.append(rate)
        for plan in PLANS:
            say(f"round {number + 1} of {rounds}: {plan.road}")
            taking_part = [one for one in candidates if plan.road in one.roads and plan.count(one.durability)]
            # Who comes first changes with the round, so that nobody always follows the same neighbour.
            moved = number % max(1, len(taking_part))
            for candidate in taking_part[moved:] + taking_part[:moved]:
                key = (plan.road, candidate.name, candidate.durability)
                rate = _measure(candidate, plan, place, scale)
                cells.setdefault(key, Cell(*key, [])).rates.append(rate)
    return list(cells.values())


def _measure(candidate: Candidate, plan: Plan, place: Path, scale: float) -> float:
    count = plan.count(candidate.durability)
    if plan.road == "drain" and candidate.name in _FAST:
        count = DRAIN_FAST
    count = scaled(count, scale)
    with tempfile.TemporaryDirectory(dir=place) as folder:
        session = candidate.open(Path(folder))
        try:
            return count / session.measure(plan.road, count)
        finally:
            session.close()
