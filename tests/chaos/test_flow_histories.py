"""Random calls on everything that waits, while the clock moves: it is found again after each of them, and ends."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from typing import Any

import pytest

import holdfast
from holdfast import Deferred, Done, Failed, NewJob, Outcome, Released
from holdfast.errors import HoldfastError, InvalidInput
from tests.chaos.engines import Engine, open_engine
from tests.chaos.test_dependencies import check, check_gates
from tests.support.clock import ManualClock

KINDS, TENANTS, KEYS = ("a", "b", "c"), ("x", "y"), ("one", "two")
ENDED = {"done", "failed", "cancelled", "retired"}


class Program:
    """A store with limits, groups, dependencies, sessions and schedules, and what its callers do to it."""

    def __init__(self, engine: Engine, clock: ManualClock, seed: int) -> None:
        self.engine, self.queue, self.clock = engine, engine.queue, clock
        self.chance = random.Random(seed)
        self.claims: list[Any] = []
        self.turns: list[Any] = []
        self.groups = 0

    def step(self) -> None:
        usual = [self.add, self.add, self.add_group, self.claim, self.claim, self.settle, self.settle, self.wait]
        rare = [self.cancel, self.cancel, self.requeue, self.requeue, self.limit, self.schedule, self.lane]
        rare += [self.retire, self.prune]
        try:
            self.chance.choice(usual if self.chance.random() < 0.7 else rare)()
        except InvalidInput:
            raise
        except HoldfastError:
            # A lane that drains, a kind that is retired, a group that is sealed, a lease that is lost.
            pass

    def job(self, earlier: int = 0) -> NewJob:
        """Return a job that may depend on some of the jobs and of the *earlier* ones of its call."""
        chance = self.chance
        options: dict[str, Any] = {"tenant": "x", "max_attempts": 20, "priority": chance.randint(0, 1)}
        if chance.random() < 0.4:
            options["limit_key"] = chance.choice(KEYS)
        if chance.random() < 0.2:
            options["dedupe_key"] = chance.choice(KEYS)
            options |= chance.choice(
                [{}, {"on_duplicate": "replace"}, {"on_duplicate": "run_again"}, {"debounce": 5}]
            )
        elif chance.random() < 0.3:
            known = [job.id for job in self.queue.jobs(limit=30, tenant="x") if not job.id.startswith("holdfast:")]
            after: list[Any] = chance.sample(known, min(len(known), chance.randint(0, 2)))
            after += [chance.randrange(earlier)] if earlier else []
            options |= {"after": after, "on_failed": chance.choice(["cancel", "run"])} if after else {}
        if chance.random() < 0.1:
            options |= {"on_end": {"kind": chance.choice(KINDS)}}
        if chance.random() < 0.2 and "debounce" not in options:
            options["delay"] = chance.choice([1, 30])
        if chance.random() < 0.1:
            options["deadline"] = chance.choice([5, 50])
        return NewJob(chance.choice(KINDS), {"tokens": chance.randint(1, 20)}, **options)

    def add(self) -> None:
        if self.chance.random() < 0.3:
            session, kind = self.chance.choice(KEYS), self.chance.choice(KINDS)
            self.queue.enqueue(kind, session=session, tenant=self.chance.choice(TENANTS), join=True)
        else:
            self.queue.enqueue_many([self.job(earlier) for earlier in range(self.chance.randint(1, 4))])

    def add_group(self) -> None:
        callbacks: Any = {event: {"kind": "a"} for event in ("on_end", "on_success", "on_first_failure")}
        self.groups += self.chance.random() < 0.8
        with self.queue.group(f"g{self.groups}", **callbacks, tenant="x", seal=self.chance.random() < 0.7) as group:
            for earlier in range(self.chance.randint(0, 4)):
                group.enqueue(self.job(earlier))

    def claim(self) -> None:
        lease = self.chance.choice([5, 60])
        if self.chance.random() < 0.3:
            turn = self.queue.sessions.claim_next(lease=lease)
            self.turns += [] if turn is None else [turn]
        else:
            kinds = self.chance.sample(KINDS, self.chance.randint(1, 3))
            self.claims += self.queue.claim_many(limit=self.chance.randint(1, 6), lease=lease, kinds=kinds)

    def settle(self) -> None:
        settling = [self.claims.pop(self.chance.randrange(len(self.claims))) for _ in self.claims[:3]]
        if len(settling) > 1 and self.chance.random() < 0.5:
            self.queue.settle_and_claim([(claim, Done()) for claim in settling], limit=2, lease=30)
        for claim in settling:
            with contextlib.suppress(HoldfastError):
                self.queue.settle(claim, self.outcome())
        if self.turns:
            self.queue.sessions.settle(self.turns.pop(), self.outcome())

    def outcome(self) -> Outcome:
        chance = self.chance
        usage = {"tokens": chance.randint(0, 30)} if chance.random() < 0.3 else None
        outcomes: list[Outcome] = [
            Done(usage=usage),
            Done(follow_ups=[NewJob(chance.choice(KINDS), limit_key="one")]),
            Failed("no", retry_after=chance.choice([0, 5])),
            Failed("no", permanent=True, usage=usage),
            Deferred(after=chance.randint(1, 40), closes=chance.random() < 0.6),
            Released(),
        ]
        return chance.choice(outcomes)

    def wait(self) -> None:
        self.clock.advance(self.chance.choice([0.1, 1, 7, 61]))

    def any_job(self, **filters: Any) -> str:
        return self.chance.choice([job.id for job in self.queue.jobs(limit=50, **filters)] or ["none"])

    def cancel(self) -> None:
        if self.chance.random() < 0.3:
            self.queue.groups.cancel(f"g{self.chance.randint(0, self.groups)}", tenant="x", force=True)
        elif self.chance.random() < 0.3:
            self.queue.cancel(root=self.any_job())
        else:
            self.queue.cancel(self.any_job(), force=self.chance.random() < 0.5)

    def requeue(self) -> None:
        self.queue.requeue(self.any_job(state=["failed", "cancelled"]), with_children=self.chance.random() < 0.7)

    def limit(self) -> None:
        chance, name = self.chance, self.chance.choice(["first", "second"])
        if chance.random() < 0.2:
            self.queue.limits.remove(name)
            return
        limit: dict[str, Any] = {"kinds": chance.choice([["a"], ["a", "b"], ["c"], ["b", "c"]])}
        limit["key"] = chance.choice(["all", "tenant", "given"])
        if chance.random() < 0.5:
            limit["concurrency"] = chance.randint(1, 3)
        if "concurrency" not in limit or chance.random() < 0.3:
            limit |= {"rate": chance.randint(1, 20), "per": chance.choice([1, 10, 60])}
            limit |= {"weight": "tokens"} if chance.random() < 0.4 else {}
        self.queue.limits.set(name, **limit)

    def schedule(self) -> None:
        chance, name = self.chance, self.chance.choice(KEYS)
        overlap: Any = chance.choice(["allow", "skip"])
        calls: list[Callable[[], object]] = [
            lambda: self.queue.schedules.set(name, every=chance.choice([10, 100]), kind="b", overlap=overlap),
            lambda: self.queue.schedules.pause(name),
            lambda: self.queue.schedules.resume(name),
            lambda: self.queue.schedules.run(name),
            lambda: self.queue.schedules.remove(name),
        ]
        chance.choice(calls)()

    def lane(self) -> None:
        self.queue.lanes.set(
            "default", state=self.chance.choice(["active", "active", "active", "paused", "draining"])
        )

    def retire(self) -> None:
        self.queue.kinds.retire("c")
        if self.chance.random() < 0.7:
            self.queue.kinds.restore("c")

    def prune(self) -> None:
        self.queue.admin.prune(older_than=self.chance.choice([0, 60]))

    def check(self) -> None:
        check(self.engine)
        if self.queue.limits.list():
            check_gates(self.queue)

    def end(self) -> None:
        """Let all that is left end."""
        queue = self.queue
        queue.lanes.set("default", state="active")
        for schedule in queue.schedules.list():
            queue.schedules.remove(schedule.name)
        for group in queue.groups.list(limit=1_000):
            if group.state == "open":
                queue.groups.cancel(group.name, tenant="x")
        for _ in range(300):
            claims = queue.claim_many(limit=20, lease=30)
            queue.settle_many([(claim, Done()) for claim in claims])
            if (turn := queue.sessions.claim_next(lease=30)) is not None:
                queue.sessions.settle(turn, Done())
            if not claims and turn is None:
                self.clock.advance(self.chance.choice([0.3, 2, 20, 3_000]))
                if set(queue.counts()) <= ENDED and all(one.finished for one in queue.groups.list(limit=1_000)):
                    return
        waiting = queue.jobs(state=["ready", "scheduled", "parked", "dependent", "blocked"])
        raise AssertionError([queue.why(job.id).summary for job in waiting])


@pytest.mark.slow("it makes some hundred calls")
@pytest.mark.parametrize("seed", [11, 16, *(pytest.param(n, marks=pytest.mark.long) for n in range(100, 160))])
def test_whatever_waits_is_found_again_after_any_call_and_ends(store_url: str, seed: int) -> None:
    engine, clock = open_engine(store_url), ManualClock()
    engine.prepare()
    engine.queue.close()
    engine.queue = holdfast.connect(store_url, clock=clock)
    program = Program(engine, clock, seed)
    program.queue.limits.set("first", kinds=["a", "b"], concurrency=1)
    for _ in range(120):
        program.step()
        program.check()
    program.end()
    program.check()
    assert engine.damage() == []
    engine.queue.close()
