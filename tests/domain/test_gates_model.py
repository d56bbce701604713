"""A model of limits by key: transactions that overlap, commit or are rolled back, and the rules of decision 28.

Ends, cancels and claims are transactions that stay open for a while: others see their writes after the commit only,
and skip what they have locked. A crash is a rollback. The model has no clock: only wake rows keep
jobs moving.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import pytest

Rule = Literal["wake at an end", "wake when an offered job is cancelled", "lock", "turns"]
TENANTS = ("a", "b", "c")
ROUTES = (0, 1)


@dataclass
class ModelJob:
    tenant: str
    route: int
    key: int
    state: str = "ready"
    gate: int | None = None


@dataclass
class ModelTransaction:
    """Changes that are visible after the commit; the gates and jobs that it has locked."""

    changes: dict[int, str]
    wakes: list[int] = field(default_factory=list)
    gates: set[int] = field(default_factory=set)


class Model:
    """The store, and what its processes do to it."""

    def __init__(self, seed: int, without: Rule | None = None) -> None:
        self.random = random.Random(seed)
        self.limit = self.random.choice((1, 2))
        self.without = without
        self.jobs: list[ModelJob] = []
        self.wakes: list[int] = []
        self.turns: dict[tuple[int, int], str] = {}
        self.open: list[ModelTransaction] = []
        self.order: list[str] = []

    # --- what others have locked ------------------------------------------------------------------------------------

    def locked(self, number: int) -> bool:
        return any(number in one.changes for one in self.open)

    def busy(self, gate: int) -> bool:
        return self.without != "lock" and any(gate in one.gates for one in self.open)

    def running(self, gate: int) -> int:
        """Return the running jobs of a gate that a claim with its lock sees."""
        return sum(job.state == "running" and job.gate == gate for job in self.jobs)

    # --- transactions -----------------------------------------------------------------------------------------------

    def enqueue(self) -> None:
        chosen = self.random.choice
        self.jobs.append(ModelJob(chosen(TENANTS), chosen(ROUTES), chosen((0, 1))))

    def end(self) -> None:
        """Settle a running job, in a transaction that a caller may keep open."""
        numbers = [n for n, job in enumerate(self.jobs) if job.state == "running" and not self.locked(n)]
        if numbers:
            number = self.random.choice(numbers)
            wakes = [] if self.without == "wake at an end" else [self.jobs[number].gate or 0]
            state = self.random.choice(["done", "done", "ready"])
            self.open.append(ModelTransaction({number: state}, wakes))

    def cancel(self) -> None:
        numbers = [n for n, job in enumerate(self.jobs) if job.state in {"parked", "ready"} and not self.locked(n)]
        if numbers:
            number = self.random.choice(numbers)
            gate = self.jobs[number].gate
            wakes = [] if gate is None or self.without == "wake when an offered job is cancelled" else [gate]
            self.open.append(ModelTransaction({number: "cancelled"}, wakes))

    def close(self, *, crash: float = 0.2) -> None:
        """Commit one open transaction, or roll it back."""
        if self.open:
            one = self.open.pop(self.random.randrange(len(self.open)))
            if self.random.random() >= crash:
                for number, state in one.changes.items():
                    self.jobs[number].state = state
                self.wakes += one.wakes

    def claim(self, routes: tuple[int, ...], limit: int, *, stays_open: bool = False) -> None:
        """Fold wake rows, and start jobs if there is room for them."""
        self.fold()
        held: set[int] = set()
        starts: Counter[int] = Counter()
        taken: list[int] = []
        parked: list[tuple[int, int]] = []
        wakes: list[int] = []
        candidates = [n for n, job in enumerate(self.jobs) if job.state == "ready" and job.route in routes]
        for number in [n for n in candidates if not self.locked(n)]:
            job = self.jobs[number]
            if len(taken) == limit:
                break
            if self.busy(job.key):
                wakes.append(job.key)
                parked.append((number, job.key))
            elif self.running(job.key) + starts[job.key] < self.limit:
                starts[job.key] += 1
                taken.append(number)
            else:
                parked.append((number, job.key))
            held.add(job.key)
        for number, gate in parked:
            self.jobs[number].state, self.jobs[number].gate = "parked", gate
        for number in taken:
            self.jobs[number].gate = self.jobs[number].key
        self.wakes += wakes
        self.order += [self.jobs[number].tenant for number in taken]
        one = ModelTransaction(dict.fromkeys(taken, "running"), [], {gate for gate in held if not self.busy(gate)})
        self.open.append(one)
        if not stays_open:
            self.open.remove(one)
            for number in taken:
                self.jobs[number].state = "running"

    def fold(self) -> None:
        self.wakes = [gate for gate in self.wakes if self.busy(gate) or self.offer(gate)]

    def offer(self, gate: int) -> bool:
        """Offer the room at a gate on every route; return whether to look again."""
        again = False
        for route in ROUTES:
            mine = [job for job in self.jobs if job.gate == gate and job.route == route]
            count = self.limit - self.running(gate) - sum(job.state == "ready" for job in mine)
            for _ in range(count):
                parked = [
                    n
                    for n, job in enumerate(self.jobs)
                    if job.state == "parked" and job.gate == gate and job.route == route
                ]
                if not parked:
                    break
                last = "" if self.without == "turns" else self.turns.get((gate, route), "")
                number = min(parked, key=lambda n: (self.jobs[n].tenant <= last, self.jobs[n].tenant, n))
                if self.locked(number):
                    again = True
                    break
                self.jobs[number].state = "ready"
                self.turns[gate, route] = self.jobs[number].tenant
        return again

    # --- what must hold ---------------------------------------------------------------------------------------------

    def check(self) -> None:
        claimed = Counter(
            self.jobs[n].gate for one in self.open for n, state in one.changes.items() if state == "running"
        )
        for gate in (0, 1):
            assert self.running(gate) + claimed[gate] <= self.limit, "the limit is exceeded"

    def drain(self) -> None:
        while self.open:
            self.close()
        waiting = self.jobs
        for _ in range(12 * (len(self.jobs) + 1)):
            self.claim(ROUTES, 3)
            self.end()
            while self.open:
                self.close(crash=0)
            waiting = [job for job in self.jobs if job.state in {"ready", "parked", "running"}]
            if not waiting:
                break
        assert not waiting, f"stuck: {waiting[:2]}"


def histories(without: Rule | None, seeds: int) -> Iterator[Model]:
    for seed in range(seeds):
        model = Model(seed, without)
        for step in range(90):
            action = model.random.random()
            if action < 0.25 and step < 40:
                model.enqueue()
            elif action < 0.5:
                routes = model.random.choice([(0,), (1,), (0, 1)])
                model.claim(routes, model.random.randint(1, 3), stays_open=model.random.random() < 0.3)
            elif action < 0.65:
                model.end()
            elif action < 0.8:
                model.cancel()
            else:
                model.close()
            model.check()
        yield model


def drain_all(without: Rule | None, seeds: int) -> None:
    for model in histories(without, seeds):
        model.drain()


def test_limits_hold_and_no_job_is_stuck() -> None:
    drain_all(None, 150)


@pytest.mark.parametrize("rule", ["wake at an end", "wake when an offered job is cancelled", "lock"])
def test_each_rule_is_needed(rule: Rule) -> None:
    with pytest.raises(AssertionError, match=r"exceeded|stuck"):
        drain_all(rule, 1_000)


@pytest.mark.parametrize(("without", "starved"), [(None, False), ("turns", True)])
def test_tenants_take_turns_at_a_shared_gate(without: Rule | None, starved: bool) -> None:
    model = Model(1, without)
    model.limit = 1
    model.jobs = [ModelJob("a", 0, 0, "running", 0)]
    model.jobs += [ModelJob(tenant, 0, 0, "parked", 0) for tenant in TENANTS for _ in range(30)]
    for _ in range(9):
        number = next(n for n, job in enumerate(model.jobs) if job.state == "running")
        model.jobs[number].state = "done"
        model.wakes.append(0)
        model.claim(ROUTES, 1)
    # Without turns the tenant whose name is first is always served.
    assert (set(model.order) == {"a"}) == starved
    assert starved or Counter(model.order) == {"a": 3, "b": 3, "c": 3}
