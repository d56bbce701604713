"""Random calls under limits that change, while the clock moves: no limit is exceeded, and every job ends."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import pytest

from holdfast import Conflict, Deferred, Done, Failed, LeaseLost, Outcome, Queue, Released
from holdfast.errors import LimitNotFound
from holdfast.operations import flow_limits
from holdfast.storage.runners import SyncRunner
from tests.support.clock import ManualClock
from tests.support.limited import finish
from tests.support.stores import store_of

TENANTS, MODELS, KINDS = "xyz", "12", ("a", "b", "s")
KEYS = ("all", *TENANTS, *MODELS, *(f"{tenant} / {model}" for tenant in TENANTS for model in MODELS))
ENDED = {"done", "failed", "cancelled"}


class History:
    """A store, and what its callers do to it."""

    def __init__(self, queue: Queue, clock: ManualClock, seed: int) -> None:
        self.queue = queue
        self.clock = clock
        self.chance = random.Random(seed)
        self.claims: list[Any] = []
        self.turns: list[Any] = []

    def step(self) -> None:
        calls = [self.enqueue, self.enqueue, self.claim, self.claim, self.settle, self.change, self.cancel, self.wait]
        with contextlib.suppress(LeaseLost, Conflict, LimitNotFound):
            self.chance.choice(calls)()

    def enqueue(self) -> None:
        chance = self.chance
        for _ in range(chance.randint(1, 5)):
            kind, tenant = chance.choice(KINDS), chance.choice(TENANTS)
            options: Any = {"tenant": tenant, "max_attempts": 50, "priority": chance.randint(0, 1)}
            if chance.random() < 0.8:
                options["tags"] = {"model": chance.choice(MODELS)}
            if kind == "s":
                del options["priority"]
                options |= {"session": f"{tenant}{chance.randrange(3)}", "join": chance.random() < 0.5}
            self.queue.enqueue(kind, {"tokens": chance.randint(1, 25)}, **options)

    def claim(self) -> None:
        before = self.running()
        lease = self.chance.choice([5, 60])
        if self.chance.random() < 0.3:
            turn = self.queue.sessions.claim_next(lease=lease)
            self.turns += [] if turn is None else [turn]
        else:
            kinds = self.chance.choice([["a"], ["b"], ["a", "b"]])
            self.claims += self.queue.claim_many(limit=self.chance.randint(1, 5), lease=lease, kinds=kinds)
        for (name, key), running in self.running().items():
            at_once = self.queue.limits.get(name).concurrency
            assert at_once is None or running <= max(at_once, before.get((name, key), 0)), (name, key)

    def running(self) -> dict[tuple[str, str], int]:
        return {(use.limit, use.key): use.running or 0 for key in KEYS for use in self.queue.limits.show(key)}

    def settle(self) -> None:
        if self.claims:
            self.queue.settle(self.claims.pop(self.chance.randrange(len(self.claims))), self.outcome())
        if self.turns:
            self.queue.sessions.settle(self.turns.pop(self.chance.randrange(len(self.turns))), self.outcome())

    def outcome(self) -> Outcome:
        chance = self.chance
        usage = {"tokens": chance.randint(0, 30)} if chance.random() < 0.4 else None
        outcomes: list[Outcome] = [
            Done(usage=usage),
            Failed("no", retry_after=chance.choice([0, 5]), usage=usage),
            Failed("no", permanent=True, usage=usage),
            Deferred(after=chance.randint(1, 40), closes=chance.random() < 0.5, usage=usage),
            Released(),
        ]
        return chance.choice(outcomes)

    def change(self) -> None:
        chance, name = self.chance, self.chance.choice(["first", "second"])
        if chance.random() < 0.2:
            self.queue.limits.remove(name)
            return
        key = chance.choice(["all", "tenant", "tag:model", "tenant+tag:model"])
        limit: Any = {"kinds": chance.choice([["a"], ["a", "b"], ["s", "a"], ["s"]]), "key": key}
        if chance.random() < 0.5:
            limit["concurrency"] = chance.randint(1, 3)
        if "concurrency" not in limit or chance.random() < 0.3:
            limit |= {"rate": chance.randint(1, 20), "per": chance.choice([1, 10, 60])}
            limit |= {"burst": chance.randint(1, 20)} if chance.random() < 0.5 else {}
            limit |= {"weight": "tokens"} if chance.random() < 0.5 else {}
        self.queue.limits.set(name, **limit)

    def cancel(self) -> None:
        if jobs := list(self.queue.jobs(limit=20)):
            self.queue.cancel(self.chance.choice(jobs).id, force=self.chance.random() < 0.3)

    def wait(self) -> None:
        self.clock.advance(self.chance.choice([0.1, 1, 7, 61]))

    def end(self) -> None:
        """Settle all that is left."""
        for _ in range(300):
            claims = self.queue.claim_many(limit=10, lease=30)
            finish(self.queue, claims)
            if (turn := self.queue.sessions.claim_next(lease=30)) is not None:
                self.queue.sessions.settle(turn, Done())
            if not claims and turn is None:
                self.clock.advance(self.chance.choice([0.3, 2, 20, 3_000]))
                if set(self.queue.counts()) <= ENDED:
                    return
        raise AssertionError([self.queue.why(job.id).summary for job in self.queue.jobs(state="parked")])


@pytest.mark.slow("it makes some hundred calls")
@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(n, marks=pytest.mark.long) for n in range(6, 100))])
def test_no_limit_is_exceeded_and_every_job_ends(queue: Queue, clock: ManualClock, seed: int) -> None:
    history, runner = History(queue, clock, seed), SyncRunner(store_of(queue))
    for _ in range(60):
        history.step()
        assert [one.detail for one in runner.read(flow_limits.findings) if one.status != "ok"] == []
    history.end()
    assert [one.detail for one in runner.read(flow_limits.findings) if one.status != "ok"] == []
