"""A store compared with a model: random calls, clock changes, crashes before any statement, results that are lost.

After every step store and model must agree. A call that crashed must not have changed the state. A call whose result
was lost must have changed it, and repeating the call must return the lost result.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from holdfast import Claim, Queue
from tests.support.faults import AnswerLost, Crashed
from tests.support.filesystems import MEMORY_FOLDER
from tests.support.model import Model, RefusalError, Request
from tests.support.stores import DURABLE_ENGINES, Harness
from tests.support.strategies import (
    FORGED,
    KINDS,
    LANES,
    LEASE_MS,
    OUTCOMES,
    Fault,
    Held,
    RepeatableClaim,
    asks,
    event_name_of,
    expected,
    faults,
    options_of,
    places,
    policies,
    requests,
    result_in,
    result_of,
    run_machine,
    same,
    shown,
    tenants,
)


class StoreAgainstModel(RuleBasedStateMachine):
    """Every rule applies the same call to the store and to the model."""

    engine: str

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory(dir=MEMORY_FOLDER)
        self.harness = Harness(self.engine, Path(self._folder.name))
        self.queue = self.harness.open()
        self.model = Model()
        self.requests: list[Request] = []
        self.claim_requests: list[RepeatableClaim] = []
        self.held: list[Held] = []
        self.settled: list[tuple[Held, tuple[Any, ...]]] = []
        self.seen: dict[str, list[tuple[int, str]]] = {}
        self.cursor = ""
        self._tell_time()

    @initialize(enqueued=st.lists(requests, min_size=1, max_size=5))
    def start_with_some_jobs(self, enqueued: list[Request]) -> None:
        self.cursor = self.queue.events().cursor
        self.enqueue(enqueued, Fault())
        self.claim(RepeatableClaim(LANES, None, limit=2, token="first"), Fault())

    def teardown(self) -> None:
        self.harness.close()
        self._folder.cleanup()

    # --- the same to both ------------------------------------------------------------------------------------------

    def _act(self, call: Callable[[Queue], object], predict: Callable[[], object], fault: Fault) -> None:
        """Make one call whose result the model predicts."""
        answer, was_lost = self._send(call, fault)
        if was_lost:
            # The lost call was committed, so the model makes it too; the result is that of the second call.
            result_of(predict)
            self._check_agreement()
            answer = result_of(lambda: call(self.queue))
        assert same(answer, result_of(predict)), f"store: {answer!r}"

    def _act_and_adopt(self, call: Callable[[Queue], Any], adopt: Callable[[Any], None], fault: Fault) -> None:
        """Make one call whose result the store chooses; a repeated call must choose the same."""
        answer, was_lost = self._send(call, fault)
        if was_lost:
            before = self._everything()
            answer = result_of(lambda: call(self.queue))
            assert self._everything() == before, "repeating the call changed something"
        adopt(answer)

    def _send(self, call: Callable[[Queue], object], fault: Fault) -> tuple[object, bool]:
        """Return the result, and whether it was lost."""
        if fault.crash_before:
            self.harness.faults.crash_before(fault.crash_before)
        if fault.lost:
            self.harness.faults.lose_reply()
        try:
            return result_of(lambda: call(self.queue)), False
        except Crashed:
            self.queue = self.harness.reopen()
            self._check_agreement()
            return result_of(lambda: call(self.queue)), False
        except AnswerLost:
            self.queue = self.harness.reopen()
            return None, True
        finally:
            self.harness.faults.calm()

    # --- enqueueing and claiming -----------------------------------------------------------------------------------

    @rule(enqueued=st.lists(requests, min_size=1, max_size=3), fault=faults)
    def enqueue(self, enqueued: list[Request], fault: Fault) -> None:
        for request in enqueued:
            self.requests.append(request)
            self._enqueue(request, fault)

    @rule(place=places, fault=faults)
    def enqueue_again(self, place: int, fault: Fault) -> None:
        self._enqueue(self.requests[place % len(self.requests)], fault)

    @rule(place=places, policy=policies, payload=st.integers(10, 19), fault=faults)
    def enqueue_a_duplicate(self, place: int, policy: str, payload: int, fault: Fault) -> None:
        keyed = [job for job in self.model.jobs.values() if job["key"] is not None and job["ended"] is None]
        running = [job for job in keyed if job["state"] == "running"]
        if found := running or keyed:
            request = found[place % len(found)]["request"] | {"policy": policy, "payload": payload}
            self.enqueue([{**request, "id": f"again-{len(self.requests)}"}], fault)

    def _enqueue(self, request: Request, fault: Fault) -> None:
        options = options_of(request)

        def call(queue: Queue) -> tuple[str, bool]:
            enqueued = queue.enqueue(request["kind"], request["payload"], **options)
            return enqueued.id, enqueued.created

        self._act(call, lambda: self.model.enqueue(request), fault)

    @rule(ask=asks, fault=faults)
    def claim(self, ask: RepeatableClaim, fault: Fault) -> None:
        self.claim_requests.append(ask)
        self._claim(ask, fault)

    @precondition(lambda self: self.claim_requests)
    @rule(place=places, fault=faults)
    def claim_again(self, place: int, fault: Fault) -> None:
        self._claim(self.claim_requests[-1 - place % len(self.claim_requests)], fault)

    def _claim(self, ask: RepeatableClaim, fault: Fault) -> None:
        self._act_and_adopt(ask.send, lambda claims: self._adopt(ask, claims), fault)

    def _adopt(self, ask: RepeatableClaim, claims: list[Claim]) -> None:
        """Check that each claim was a correct choice, and apply it to the model."""
        if held := self.model.held_under(ask.token):
            assert [claim.job.id for claim in claims] == held
            return
        self.model.upkeep()
        for place, claim in enumerate(claims):
            assert claim.job.id in self.model.allowed_next(ask.lanes, ask.tenant)
            acknowledged = ask.acknowledged is None or place < ask.acknowledged
            self.model.take(claim.job.id, ask.token, LEASE_MS, acknowledged=acknowledged)
            self.held.append(Held(claim, self.model.jobs[claim.job.id]["serial"]))
        assert len(claims) == ask.limit or not self.model.claimable(ask.lanes, ask.tenant)

    @precondition(lambda self: self.held)
    @rule(place=places, lease_ms=st.sampled_from([1_000, 60_000]), fault=faults)
    def heartbeat(self, place: int, lease_ms: int, fault: Fault) -> None:
        held = self._pick(place)

        def call(queue: Queue) -> tuple[int, bool]:
            renewal = queue.heartbeat(held.claim, lease=lease_ms / 1000)
            return round(renewal.lease_until.timestamp() * 1000), renewal.cancel_requested

        self._act(call, lambda: self.model.heartbeat(*held.proof, lease_ms), fault)

    @precondition(lambda self: self.held)
    @rule(place=places, fault=faults)
    def acknowledge(self, place: int, fault: Fault) -> None:
        held = self._pick(place)

        def call(queue: Queue) -> tuple[int, bool]:
            renewal = queue.acknowledge(held.claim)
            return round(renewal.lease_until.timestamp() * 1000), renewal.cancel_requested

        self._act(call, lambda: self.model.acknowledge(*held.proof, LEASE_MS), fault)

    # --- settling --------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.held)
    @rule(place=places, outcome=st.sampled_from(list(OUTCOMES)), fault=faults)
    def settle(self, place: int, outcome: tuple[Any, ...], fault: Fault) -> None:
        held = self._pick(place)
        self._remember_settled(held, outcome)
        self._settle(held, outcome, fault)

    @precondition(lambda self: self.settled)
    @rule(place=places, fault=faults)
    def settle_again(self, place: int, fault: Fault) -> None:
        self._settle(*self.settled[place % len(self.settled)], fault)

    def _settle(self, held: Held, outcome: tuple[Any, ...], fault: Fault) -> None:
        def call(queue: Queue) -> str:
            return queue.settle(held.claim, OUTCOMES[outcome]).state

        self._act(call, lambda: self.model.settle(*held.proof, outcome), fault)

    @precondition(lambda self: self.held)
    @rule(
        places=st.tuples(st.integers(0, 9), st.integers(0, 9)), outcome=st.sampled_from(list(OUTCOMES)), fault=faults
    )
    def settle_many(self, places: tuple[int, int], outcome: tuple[Any, ...], fault: Fault) -> None:
        both = list(dict.fromkeys(map(self._pick, places)))
        for held in both:
            self._remember_settled(held, outcome)

        def call(queue: Queue) -> list[object]:
            return list(map(result_in, queue.settle_many([(held.claim, OUTCOMES[outcome]) for held in both])))

        def predict() -> list[object]:
            return [result_of(partial(self.model.settle, *held.proof, outcome)) for held in both]

        self._act(call, predict, fault)

    @precondition(lambda self: self.held)
    @rule(place=places, outcome=st.sampled_from(list(OUTCOMES)), ask=asks, fault=faults)
    def settle_and_claim(self, place: int, outcome: tuple[Any, ...], ask: RepeatableClaim, fault: Fault) -> None:
        held = self._pick(place)
        self._remember_settled(held, outcome)
        self.claim_requests.append(ask)

        def call(queue: Queue) -> tuple[object, list[Claim]]:
            both = queue.settle_and_claim([(held.claim, OUTCOMES[outcome])], **ask.options)
            return result_in(both.settlements[0]), both.claims

        def adopt(answer: tuple[object, list[Claim]]) -> None:
            predicted = result_of(lambda: self.model.settle(*held.proof, outcome))
            if isinstance(predicted, RefusalError) or not fault.lost:
                assert same(answer[0], predicted)
            self._adopt(ask, answer[1])

        self._act_and_adopt(call, adopt, fault)

    # --- administration --------------------------------------------------------------------------------------------

    @rule(place=places, tenant=tenants, force=st.booleans(), fault=faults)
    def cancel(self, place: int, tenant: str | None, force: bool, fault: Fault) -> None:
        job_id = self._job_at(place)
        self._act(
            lambda queue: queue.cancel(job_id, force=force, tenant=tenant).state,
            lambda: self.model.cancel(job_id, tenant, force=force),
            fault,
        )

    @rule(place=places, tenant=tenants, fault=faults)
    def requeue(self, place: int, tenant: str | None, fault: Fault) -> None:
        job_id = self._job_at(place, "failed", "cancelled")
        self._act(
            lambda queue: queue.requeue(job_id, tenant=tenant).state,
            lambda: self.model.requeue(job_id, tenant),
            fault,
        )

    @rule(place=places, tenant=tenants, priority=st.integers(-1, 2), fault=faults)
    def reprioritize(self, place: int, tenant: str | None, priority: int, fault: Fault) -> None:
        job_id = self._job_at(place)
        self._act(
            lambda queue: queue.reprioritize(job_id, priority, tenant=tenant).priority,
            lambda: self.model.reprioritize(job_id, priority, tenant),
            fault,
        )

    @rule(
        what=st.sampled_from(["retire", "paused", "draining", "all", "terminal", "prune"]),
        kind=st.sampled_from(KINDS),
        lane=st.sampled_from(LANES),
        fault=faults,
    )
    def configure(self, what: str, kind: str, lane: str, fault: Fault) -> None:
        """Change a setting of the store, or restore it; most of the time jobs can be processed."""
        if self.model.retired:
            kind = min(self.model.retired)
            self._act(lambda queue: queue.kinds.restore(kind), lambda: self.model.restore(kind), fault)
        elif closed := [lane for lane, state in self.model.lanes.items() if state != "active"]:
            self._set_lane(closed[0], "active", fault)
        elif what in {"paused", "draining"}:
            self._set_lane(lane, what, fault)
        elif what in {"all", "terminal"}:
            self._set_events(lane, what)
        elif what == "retire":
            # It uses several transactions, so a crash may leave it incomplete, which this test does not check.
            self._act(lambda queue: queue.kinds.retire(kind), lambda: self.model.retire(kind), Fault())
        else:
            self._prune()

    def _set_lane(self, lane: str, state: Any, fault: Fault) -> None:
        self._act(
            lambda queue: queue.lanes.set(lane, state=state).state, lambda: self.model.set_lane(lane, state), fault
        )

    def _set_events(self, lane: str, scope: Any) -> None:
        self.queue.lanes.set(lane, events=scope)
        (self.model.recorded_lanes.add if scope == "all" else self.model.recorded_lanes.discard)(lane)

    def _prune(self) -> None:
        # Half seconds avoid ages that equal a timestamp.
        pruned = self.queue.admin.prune(older_than=20.5, events_older_than=50.5)
        assert pruned.jobs == self.model.prune(20_500)

    # --- time ------------------------------------------------------------------------------------------------------

    @rule(
        seconds=st.sampled_from([1, 5, 5, 10, 29, 30, 31, 60, 3 * 86_400]),
        jump=st.sampled_from([0, 0, -7_200, 7_200]),
    )
    def time_passes(self, seconds: int, jump: int) -> None:
        self.harness.clock.advance(seconds)
        self.harness.clock.shift_wall_clock(jump)
        self._tell_time()

    def _tell_time(self) -> None:
        now = self.harness.clock.now()
        self.model.wall_ms, self.model.lease_ms = now.wall_ms, now.lease_ms

    # --- what must hold --------------------------------------------------------------------------------------------

    @invariant()
    def store_and_model_agree(self) -> None:
        self._check_agreement()

    @invariant()
    def every_claim_is_one_attempt_and_tells_its_one_outcome(self) -> None:
        for job_id, job in self.model.jobs.items():
            history = self.queue.attempts(job_id) if job["epoch"] else []
            assert [attempt.epoch for attempt in history] == list(range(1, job["epoch"] + 1))
            settled = {attempt.epoch: attempt.outcome for attempt in history if attempt.epoch in job["settled"]}
            assert settled == {epoch: event_name_of(outcome) for epoch, (_, outcome) in job["settled"].items()}

    def _check_agreement(self) -> None:
        jobs = list(self.queue.jobs(limit=1_000))
        assert [job.id for job in jobs] == [
            job["id"] for job in sorted(self.model.jobs.values(), key=lambda job: -job["serial"])
        ]
        for job in jobs:
            assert shown(job) == expected(self.model.jobs[job.id])
        assert self.queue.counts() == self.model.counts()
        self._read_on()
        assert self.seen == self.model.told

    def _read_on(self) -> None:
        """Read new events by cursor."""
        if not self.cursor:
            return
        page = self.queue.events(after=self.cursor, limit=1_000)
        for event in page:
            self.seen.setdefault(event.job_id, []).append((event.number, event.name))
        self.cursor = page.cursor

    def _everything(self) -> tuple[object, ...]:
        jobs = list(self.queue.jobs(limit=1_000))
        events = self.queue.events(after=self.cursor, limit=1_000).events
        return jobs, events, [self.queue.attempts(job.id) for job in jobs]

    def _job_at(self, place: int, *states: str) -> str:
        """Return the id of a job, preferably in one of *states*, sometimes of a missing one."""
        matching = [job["id"] for job in self.model.jobs.values() if job["state"] in states]
        known = matching or list(self.model.jobs)
        return str(known[place % len(known)]) if known and place % 7 != 6 else "missing"

    def _pick(self, place: int) -> Held:
        """Return a claim, usually a valid one, the newest first; sometimes a forged one."""
        good = [held for held in self.held if self.model.is_held(*held.proof)]
        known = good if good and place % 3 != 2 else self.held
        held = known[-1 - place % len(known)]
        if place not in FORGED:
            return held
        forged = held.forged(place)
        # A forged epoch may be that of a later claim with the same token.
        return held if self.model.is_held(*forged.proof) else forged

    def _remember_settled(self, held: Held, outcome: tuple[Any, ...]) -> None:
        """Let the settlement be repeated; a forged one could name a later claim by then."""
        if held in self.held:
            self.settled.append((held, outcome))


@pytest.mark.slow("dozens of random histories are compared with a model")
@pytest.mark.parametrize("engine", DURABLE_ENGINES)
def test_the_store_does_what_the_model_does(engine: str) -> None:
    run_machine(StoreAgainstModel, engine, examples=16, steps=50, repeatable=True)


@pytest.mark.long
@pytest.mark.parametrize("engine", DURABLE_ENGINES)
def test_the_store_does_what_the_model_does_for_long_and_at_random(engine: str) -> None:
    run_machine(StoreAgainstModel, engine, examples=600, steps=80, repeatable=False)
