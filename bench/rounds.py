"""Runs the roads: every candidate in every round, in an order that moves on, and medians over the rounds."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import NamedTuple

from bench import baselines
from bench.candidates import Candidate, Durability, Ground, Road
from bench.failures import Failures, unless_it_fails


class Plan(NamedTuple):
    """How many jobs a road gets in each round, and who gets another number, so that nobody's time is all overhead."""

    road: Road
    full: int
    relaxed: int
    special: Mapping[str, int] = MappingProxyType({})

    def count(self, candidate: Candidate) -> int:
        """Return how many jobs for one candidate."""
        usual = self.full if candidate.durability == "full" else self.relaxed
        return self.special.get(candidate.name, usual) if usual else 0


SQLITE_PLANS = [
    Plan("single", 1_500, 5_000),
    Plan("threads-8", 3_200, 0),
    Plan("threads-64", 6_400, 0),
    Plan("bulk", 20_000, 20_000),
    # Who settles in batches is given more, so that its time is not all start and end.
    Plan("drain", 1_500, 4_000, {"holdfast": 20_000, "bare sqlite3": 20_000}),
    Plan("one-by-one", 1_000, 2_000),
]
POSTGRES_PLANS = [
    Plan("single", 1_500, 0),
    Plan("threads-8", 4_000, 0),
    Plan("threads-32", 8_000, 0),
    Plan("bulk", 20_000, 0),
    # procrastinate settles some hundred jobs a second, and would keep the others waiting.
    Plan("drain", 10_000, 0, {"procrastinate": 2_000}),
    Plan("workers-4", 20_000, 0),
    Plan("workers-8", 20_000, 0),
]

Say = Callable[[str], None]
Fresh = Callable[[], AbstractContextManager[Ground]]


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


def run_roads(
    candidates: Sequence[Candidate],
    plans: Sequence[Plan],
    fresh: Fresh,
    *,
    rounds: int,
    scale: float,
    say: Say,
    failures: Failures,
    disk: Path | None = None,
) -> list[Cell]:
    """Measure every road, the candidates of each round one after the other, each on *fresh* ground.

    With *disk* the disk under that folder is measured at the beginning of each round. A peer that breaks down has no
    figure on that road, in no round, and stands in *failures*.
    """
    cells: dict[tuple[str, str, Durability], Cell] = {}
    for number in range(rounds):
        for name, rate in [] if disk is None else _disk_rates(disk, scale):
            cells.setdefault(("disk", name, "full"), Cell("disk", name, "full", [])).rates.append(rate)
        for plan in plans:
            say(f"round {number + 1} of {rounds}: {plan.road}")
            for candidate in _in_turn(candidates, plan, number):
                key = (plan.road, candidate.name, candidate.durability)
                measure = partial(_measure, candidate, plan, fresh, scale)
                rate_or_none = unless_it_fails(candidate, plan.road, failures, measure)
                if rate_or_none is None:
                    cells.pop(key, None)
                else:
                    cells.setdefault(key, Cell(*key, [])).rates.append(rate_or_none)
    return list(cells.values())


def _in_turn(candidates: Sequence[Candidate], plan: Plan, number: int) -> list[Candidate]:
    taking_part = [one for one in candidates if plan.road in one.roads and plan.count(one)]
    # Who comes first changes with the round, so that nobody always follows the same neighbour.
    moved = number % max(1, len(taking_part))
    return taking_part[moved:] + taking_part[:moved]


def _disk_rates(place: Path, scale: float) -> Iterator[tuple[str, float]]:
    for name, seconds_of in (("overwrite", baselines.overwrite_seconds), ("append", baselines.append_seconds)):
        count = scaled(2_000, scale)
        with tempfile.TemporaryDirectory(dir=place) as folder:
            yield name, count / seconds_of(Path(folder), count)


def _measure(candidate: Candidate, plan: Plan, fresh: Fresh, scale: float) -> float:
    count = scaled(plan.count(candidate), scale)
    with fresh() as ground:
        session = candidate.open(ground)
        try:
            return count / session.measure(plan.road, count)
        finally:
            session.close()
