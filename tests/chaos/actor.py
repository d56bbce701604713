"""One process of the chaos test.

It makes random calls and records each of them, until the folder contains a file named `stop`. It may be stopped and
killed at any time.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

from holdfast import (
    Claim,
    Deferred,
    Done,
    Failed,
    Job,
    NewJob,
    Outcome,
    Queue,
    Refused,
    Released,
    Transaction,
    Unavailable,
)
from holdfast.domain.job import row_of
from tests.chaos.engines import Engine, Own, open_engine
from tests.chaos.history import Act, Recorder
from tests.chaos.processes import keep_errors

LIMITED = "limited"
KEYS = [f"key-{number}" for number in range(6)]
LEASES = (0.2, 0.35, 0.5)
DOZES = 0.004
KNOWN_MAX = 40
HELD_MAX = 12


class _Answer:
    """The acts of a call that returned."""

    def __init__(self) -> None:
        self.acts: list[Act] = []


class Actor:
    """Makes random calls and records them."""

    def __init__(self, engine: Engine, recorder: Recorder, name: str, seed: str) -> None:
        self._engine = engine
        self._queue: Queue = engine.queue
        self._recorder = recorder
        self._name = name
        self._chance = random.Random(seed)
        self._made = 0
        self._known: list[str] = []
        self._fallen: list[str] = []
        self._held: list[Claim] = []
        self._settled: list[tuple[Claim, Outcome]] = []
        self._last_new: NewJob | None = None

    def act(self) -> None:
        """Make one call, or sleep for longer than most leases last."""
        if self._chance.random() < DOZES:
            time.sleep(LEASES[1])
        doings: list[tuple[Callable[[], None], int]] = [
            (self.enqueue, 6),
            (self.enqueue_many, 2),
            (self.enqueue_again, 1),
            (self.claim, 4),
            (self.claim_many, 3),
            (self.heartbeat, 3),
            (self.progress, 2),
            (self.settle, 8),
            (self.settle_again, 1),
            (self.settle_and_claim, 3),
            (self.settle_in_transaction, 2),
            (self.settle_on_own_connection, 2),
            (self.cancel, 1),
            (self.requeue, 2),
        ]
        [doing] = self._chance.choices([doing for doing, _ in doings], [weight for _, weight in doings])
        doing()

    # --- recording -------------------------------------------------------------------------------------------------

    @contextmanager
    def _recorded(self, may: Sequence[Act] = ()) -> Iterator[_Answer]:
        call, answer = self._recorder.announce(may), _Answer()
        try:
            yield answer
        except Refused as refusal:
            self._recorder.refused(call, refusal.code)
        except Unavailable as failure:
            self._recorder.unknown(call, failure.code)
        else:
            self._recorder.acknowledge(call, answer.acts)

    def _know(self, job_id: str) -> None:
        self._known = [*self._known[-KNOWN_MAX:], job_id]

    # --- enqueue ---------------------------------------------------------------------------------------------------

    def _new(self) -> NewJob:
        self._made += 1
        chance = self._chance
        job = NewJob(
            chance.choice(["task", "task", LIMITED]),
            {"n": self._made, "pad": "x" * chance.randrange(200)},
            job_id=f"{self._name}-{self._made}",
            tenant=chance.choice(["red", "blue"]),
            priority=chance.randrange(3),
            max_attempts=4,
            delay=chance.choice([0, 0, 0, 0.05]),
        )
        if chance.random() < 0.3:
            key = chance.choice(KEYS)
            # The key counts within tenant and kind; the tag shows it in the events.
            job.options["tags"] = {"key": f"{job.options['tenant']} {job.kind} {key}"}
            job.options["dedupe_key"] = key
            job.options["on_duplicate"] = chance.choice(["keep", "keep", "replace"])
            job.options["events"] = "all"
        elif chance.random() < 0.6:
            job.options["events"] = "all"
        return job

    def enqueue(self) -> None:
        job = self._last_new = self._new()
        self._enqueue(job)

    def enqueue_again(self) -> None:
        if self._last_new is not None:
            self._enqueue(self._last_new)

    def _enqueue(self, job: NewJob) -> None:
        with self._recorded([_may_enqueue(job)]) as answer:
            made = self._queue.enqueue(job.kind, job.payload, **job.options)
            answer.acts.append(Act(operation="enqueue", job=made.id, created=made.created))
            self._know(made.id)

    def enqueue_many(self) -> None:
        jobs = [self._new() for _ in range(self._chance.randrange(2, 5))]
        with self._recorded([_may_enqueue(job) for job in jobs]) as answer:
            for made in self._queue.enqueue_many(jobs):
                answer.acts.append(Act(operation="enqueue", job=made.id, created=made.created))
                self._know(made.id)

    # --- claim and lease -------------------------------------------------------------------------------------------

    def claim(self) -> None:
        with self._recorded() as answer:
            claim = self._queue.claim(worker=self._name, lease=self._chance.choice(LEASES))
            answer.acts += self._hold([] if claim is None else [claim])

    def claim_many(self) -> None:
        with self._recorded() as answer:
            limit = self._chance.randrange(1, 6)
            claims = self._queue.claim_many(worker=self._name, lease=self._chance.choice(LEASES), limit=limit)
            answer.acts += self._hold(claims)

    def _hold(self, claims: Sequence[Claim]) -> list[Act]:
        self._held = [*self._held, *claims][-HELD_MAX:]
        for claim in claims:
            self._know(claim.job.id)
        return [claimed(claim) for claim in claims]

    def heartbeat(self) -> None:
        if not self._held:
            return
        claim = self._chance.choice(self._held)
        # Without a result the lease may have been extended to an unknown time; assume that it never expires.
        with self._recorded([_of("heartbeat", claim, until_ms=1 << 60)]) as answer:
            renewal = self._queue.heartbeat(claim, lease=self._chance.choice(LEASES))
            until_ms = round(renewal.lease_until.timestamp() * 1000)
            answer.acts.append(_of("heartbeat", claim, until_ms=until_ms))

    def progress(self) -> None:
        if not self._held:
            return
        claim = self._chance.choice(self._held)
        with self._recorded() as answer:
            self._queue.progress(claim, percent=self._chance.randrange(100))
            answer.acts.append(_of("progress", claim))

    # --- settle ----------------------------------------------------------------------------------------------------

    def _outcome(self, claim: Claim) -> Outcome:
        follow_up = NewJob("task", job_id=f"{claim.job.id}.{claim.epoch}", max_attempts=4, events="all")
        outcomes: list[Outcome] = [
            Done({"by": self._name}),
            Done(follow_ups=[follow_up] if len(claim.job.id) < 40 else []),
            Failed("it broke", retry_after=self._chance.choice([0, 0.03])),
            Failed("it is broken", permanent=True),
            Deferred(after=self._chance.choice([0, 0.03])),
            Released(),
        ]
        [outcome] = self._chance.choices(outcomes, [8, 2, 3, 1, 1, 1])
        return outcome

    def _drop_one(self) -> tuple[Claim, Outcome] | None:
        if not self._held:
            return None
        claim = self._held.pop(self._chance.randrange(len(self._held)))
        outcome = self._outcome(claim)
        self._settled = [*self._settled[-5:], (claim, outcome)]
        if isinstance(outcome, Failed) and outcome.permanent:
            self._fallen = [*self._fallen[-5:], claim.job.id]
        return claim, outcome

    def settle(self) -> None:
        if settlement_args := self._drop_one():
            with self._recorded(_may_settle(*settlement_args)) as answer:
                answer.acts += settled(*settlement_args, self._queue.settle(*settlement_args))

    def settle_again(self) -> None:
        if self._settled:
            settlement_args = self._chance.choice(self._settled)
            with self._recorded(_may_settle(*settlement_args)) as answer:
                answer.acts += settled(*settlement_args, self._queue.settle(*settlement_args), again=True)

    def settle_and_claim(self) -> None:
        requests = [one for one in [self._drop_one(), self._drop_one()] if one is not None]
        with self._recorded([act for one in requests for act in _may_settle(*one)]) as answer:
            lease = self._chance.choice(LEASES)
            both = self._queue.settle_and_claim(requests, limit=2, worker=self._name, lease=lease)
            for (claim, outcome), settlement in zip(requests, both.settlements, strict=True):
                if settlement.job is not None:
                    answer.acts += settled(claim, outcome, settlement.job)
            answer.acts += self._hold(both.claims)

    # --- within a transaction --------------------------------------------------------------------------------------

    def settle_in_transaction(self) -> None:
        if settlement_args := self._drop_one():
            with self._recorded(_may_settle(*settlement_args)) as answer, self._queue.transaction() as transaction:
                answer.acts += self._settle_with_ledger(transaction, transaction, *settlement_args)

    def settle_on_own_connection(self) -> None:
        if settlement_args := self._drop_one():
            with (
                self._recorded(_may_settle(*settlement_args)) as answer,
                self._engine.own_transaction() as (joined, own),
            ):
                answer.acts += self._settle_with_ledger(joined, own, *settlement_args)

    def _settle_with_ledger(self, joined: Transaction, own: Own, claim: Claim, outcome: Outcome) -> list[Act]:
        job = joined.settle(claim, outcome)
        if job.state == "done":
            self._engine.write_ledger(own, job.id, claim.epoch)
        return settled(claim, outcome, job, ledger=job.state == "done")

    # --- operate ---------------------------------------------------------------------------------------------------

    def cancel(self) -> None:
        if self._known:
            job_id, forced = self._chance.choice(self._known), self._chance.random() < 0.3
            with self._recorded([Act(operation="cancel", job=job_id, forced=forced)]) as answer:
                job = self._queue.cancel(job_id, force=forced)
                answer.acts.append(Act(operation="cancel", job=job_id, forced=forced, state=job.state))

    def requeue(self) -> None:
        if self._known:
            # Prefer jobs that may have failed: few others can be requeued.
            job_id = self._fallen.pop() if self._fallen else self._chance.choice(self._known)
            with self._recorded([Act(operation="requeue", job=job_id)]) as answer:
                self._queue.requeue(job_id)
                answer.acts.append(Act(operation="requeue", job=job_id))


# --- acts ----------------------------------------------------------------------------------------------------------


def _may_enqueue(job: NewJob) -> Act:
    return Act(operation="enqueue", job=job.options.get("job_id") or "")


def _of(operation: str, claim: Claim, **fields: object) -> Act:
    known = {"job": claim.job.id, "epoch": claim.epoch, "token": claim.lease_token}
    return Act(operation=operation, **known, **fields)  # type: ignore[arg-type]  # fields are checked where acts are read


def claimed(claim: Claim) -> Act:
    """Return the act of a claim."""
    until_ms = row_of(claim.job).lease_until_ms
    return _of("claim", claim, until_ms=until_ms, lease_ms=claim.lease_ms, worker=claim.job.worker)


def _may_settle(claim: Claim, outcome: Outcome) -> list[Act]:
    return [_of("settle", claim, outcome=type(outcome).__name__.lower())]


def settled(claim: Claim, outcome: Outcome, job: Job, *, again: bool = False, ledger: bool = False) -> list[Act]:
    """Return the acts of a settle: the settlement and its follow-ups."""
    # A repeated settle returns the current job, whose state may have changed.
    state = "" if again else job.state
    acts = [_of("settle", claim, outcome=type(outcome).__name__.lower(), state=state, again=again, ledger=ledger)]
    if isinstance(outcome, Done) and not again:
        acts += [
            Act(operation="enqueue", job=one.options["job_id"] or "", created=True)
            for one in outcome.follow_ups
            if isinstance(one, NewJob)
        ]
    return acts


def act_until_stopped(_pipe: Connection, url: str, folder: Path, name: str, seed: str) -> None:
    """Run an actor. Its standard error goes to a file in *folder*."""
    keep_errors(folder / f"{name}.errors")
    stop = folder / "stop"
    actor = Actor(open_engine(url), Recorder(folder / f"{name}.log", name), name, seed)
    while not stop.exists():
        actor.act()
