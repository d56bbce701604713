"""Run the scenarios: every candidate in every round, in a rotating order, and medians over the rounds."""

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
from bench.candidates import Candidate, Durability, Location, Scenario
from bench.failures import Failures, measure_or_record_failure


class Plan(NamedTuple):
    """The number of jobs of a scenario per round, with exceptions for slow and fast candidates."""

    scenario: Scenario
    full: int
    relaxed: int
    special: Mapping[str, int] = MappingProxyType({})

    def count(self, candidate: Candidate) -> int:
        """Return the number of jobs for one candidate."""
        usual = self.full if candidate.durability == "full" else self.relaxed
        return self.special.get(candidate.name, usual) if usual else 0


SQLITE_PLANS = [
    Plan("single", 1_500, 5_000),
    Plan("threads-8", 3_200, 0),
    Plan("threads-64", 6_400, 0),
    Plan("bulk", 20_000, 20_000),
    # Candidates that settle in batches get more jobs: start and end would dominate.
    Plan("drain", 1_500, 4_000, {"holdfast": 20_000, "bare sqlite3": 20_000}),
    # Enough that the first growth of the log, up to a checkpoint, does not count: candidates with a bulk enqueue have
    # not grown it before.
    Plan("one-by-one", 4_000, 2_000),
]
POSTGRES_PLANS = [
    Plan("single", 1_500, 0),
    Plan("threads-8", 4_000, 0),
    Plan("threads-32", 8_000, 0),
    Plan("bulk", 20_000, 0),
    # procrastinate settles a few hundred jobs per second.
    Plan("drain", 10_000, 0, {"procrastinate": 2_000}),
    Plan("workers-4", 20_000, 0),
    Plan("workers-8", 20_000, 0),
]

Log = Callable[[str], None]
Fresh = Callable[[], AbstractContextManager[Location]]


class Cell(NamedTuple):
    """One candidate in one scenario: jobs per second in each round."""

    scenario: str
    candidate: str
    durability: Durability
    rates: list[float]

    @property
    def rate(self) -> float:
        """The median of the rounds."""
        return median(self.rates)


def scaled(count: int, scale: float) -> int:
    """Return the count for a smaller run, at least one full batch."""
    return max(4, round(count * scale))


def run_scenarios(
    candidates: Sequence[Candidate],
    plans: Sequence[Plan],
    fresh: Fresh,
    *,
    rounds: int,
    scale: float,
    log: Log,
    failures: Failures,
    disk: Path | None = None,
) -> list[Cell]:
    """Measure every scenario, the candidates of each round one after the other, each on a new store from *fresh*.

    With *disk*, the disk of that folder is measured at the beginning of each round. A peer that fails has no figure
    in that scenario and is listed in *failures*.
    """
    cells: dict[tuple[str, str, Durability], Cell] = {}
    for number in range(rounds):
        for name, rate in [] if disk is None else _disk_rates(disk, scale):
            cells.setdefault(("disk", name, "full"), Cell("disk", name, "full", [])).rates.append(rate)
        for plan in plans:
            log(f"round {number + 1} of {rounds}: {plan.scenario}")
            for candidate in _in_turn(candidates, plan, number):
                key = (plan.scenario, candidate.name, candidate.durability)
                measure = partial(_measure, candidate, plan, fresh, scale)
                rate_or_none = measure_or_record_failure(candidate, plan.scenario, failures, measure)
                if rate_or_none is None:
                    cells.pop(key, None)
                else:
                    cells.setdefault(key, Cell(*key, [])).rates.append(rate_or_none)
    return list(cells.values())


def _in_turn(candidates: Sequence[Candidate], plan: Plan, number: int) -> list[Candidate]:
    taking_part = [one for one in candidates if plan.scenario in one.scenarios and plan.count(one)]
    # Rotate the order: no candidate always follows the same one.
    moved = number % max(1, len(taking_part))
    return taking_part[moved:] + taking_part[:moved]


def _disk_rates(place: Path, scale: float) -> Iterator[tuple[str, float]]:
    for name, seconds_of in (("overwrite", baselines.overwrite_seconds), ("append", baselines.append_seconds)):
        count = scaled(2_000, scale)
        with tempfile.TemporaryDirectory(dir=place) as folder:
            yield name, count / seconds_of(Path(folder), count)


def _measure(candidate: Candidate, plan: Plan, fresh: Fresh, scale: float) -> float:
    count = scaled(plan.count(candidate), scale)
    with fresh() as location:
        session = candidate.open(location)
        try:
            return count / session.measure(plan.scenario, count)
        finally:
            session.close()
