"""Sessions compared with a model: random calls, clock changes, crashes before any statement, lost results.

The model predicts the entries of each claim; after every step store and model must agree.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from holdfast import Deferred, Done, Failed, LeaseLost, Outcome, Queue, Released
from holdfast.types import SessionClaim
from tests.support.faults import AnswerLost, Crashed
from tests.support.filesystems import MEMORY_FOLDER
from tests.support.session_model import LEASE_MS, MAX_ATTEMPTS, ModelEntry, SessionModel
from tests.support.stores import DURABLE_ENGINES, Harness
from tests.support.strategies import run_machine

NAMES = ("a", "b", "c")
OUTCOMES: dict[str, Outcome] = {
    "done": Done(),
    "permanent": Failed("no", permanent=True),
    "retry": Failed("no", retry_after=5),
    "deferred": Deferred(after=10),
    "released": Released(),
}
names = st.sampled_from(NAMES)
limits = st.sampled_from([1, 2, 10])
crashes = st.sampled_from([0, 0, 0, 1, 3, 5, 8])
lost = st.booleans()
entries = st.fixed_dictionaries(
    {
        "entry_type": st.sampled_from(["message", "message", "message", "command"]),
        "delivery": st.sampled_from(["checkpoint"] * 3 + ["next_turn"]),
        "join": st.sampled_from([True, True, True, True, "group", False, False]),
        "message_id": st.sampled_from([None, None, "k1", "k2"]),
        "delay_ms": st.sampled_from([0, 0, 0, 0, 4_000]),
    }
).map(lambda options: {**options, "join": False} if options["entry_type"] == "command" else options)


class SessionsAgainstModel(RuleBasedStateMachine):
    """Every rule applies the same call to the store and to the model."""

    engine: str

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory(dir=MEMORY_FOLDER)
        self.harness = Harness(self.engine, Path(self._folder.name))
        self.queue = self.harness.open()
        self.model = SessionModel(self.harness.clock.now().wall_ms)
        self.held: list[tuple[SessionClaim, list[tuple[ModelEntry, int]]]] = []
        self._tokens = 0

    def teardown(self) -> None:
        self.harness.close()
        self._folder.cleanup()

    def _send(self, call: Callable[[Queue], Any], crash: int, lose: bool) -> Any:
        """Make a call, and repeat it if it crashed or its result was lost."""
        if crash:
            self.harness.faults.crash_before(crash)
        elif lose:
            self.harness.faults.lose_reply()
        try:
            return call(self.queue)
        except (Crashed, AnswerLost):
            self.queue = self.harness.reopen()
            return call(self.queue)
        finally:
            self.harness.faults.calm()

    def _adopt(self, claim: SessionClaim | None, predicted: list[ModelEntry]) -> None:
        assert _serials(claim) == [entry.serial for entry in predicted]
        if claim is not None:
            self.held.append((claim, [(entry, entry.epoch) for entry in predicted]))

    @rule(name=names, options=entries, crash=crashes, lose=lost)
    def say(self, name: str, options: dict[str, Any], crash: int, lose: bool) -> None:
        serial, created = self.model.say(name, options)
        job_options = {option: value for option, value in options.items() if option != "delay_ms"}
        if not created or options["message_id"] is None:
            # Without a key a repeated call would add another entry, so its result is not lost.
            crash, lose = (crash, lose) if not created else (0, False)
        enqueued = self._send(
            lambda queue: queue.enqueue(
                "say",
                serial,
                session=name,
                delay=options["delay_ms"] / 1000,
                max_attempts=MAX_ATTEMPTS,
                **job_options,
            ),
            crash,
            lose,
        )
        assert enqueued.job.payload == serial
        assert enqueued.created == created or crash or lose

    @rule(name=names, only=st.sampled_from(["message", "command", None]), limit=limits, crash=crashes, lose=lost)
    def claim(self, name: str, only: Any, limit: int, crash: int, lose: bool) -> None:
        options = self._options(limit)
        claim = self._send(lambda queue: queue.sessions.claim(name, only=only, **options), crash, lose)
        self._adopt(claim, self.model.claim(name, only, limit))
        assert claim is None or claim.fencing_token == self.model.session(name).fence

    @rule(limit=limits, crash=crashes, lose=lost)
    def claim_any(self, limit: int, crash: int, lose: bool) -> None:
        options = self._options(limit)
        claim = self._send(lambda queue: queue.sessions.claim_next(**options), crash, lose)
        name, predicted = self.model.claim_any(limit)
        assert name == (None if claim is None else claim.session)
        self._adopt(claim, predicted)

    def _options(self, limit: int) -> dict[str, Any]:
        self._tokens += 1
        return {"limit": limit, "worker": "w", "lease_token": f"n{self._tokens}", "lease": LEASE_MS / 1000}

    @precondition(lambda self: self.held)
    @rule(place=st.integers(0, 5), limit=limits, crash=crashes, lose=lost)
    def take_in_more(self, place: int, limit: int, crash: int, lose: bool) -> None:
        turn, named = self.held[-1 - place % len(self.held)]

        def call(queue: Queue) -> SessionClaim | None:
            return queue.sessions.checkpoint(turn, limit=limit)

        if not self.model.holds(named):
            with pytest.raises(LeaseLost):
                self._send(call, crash, lose)
            return
        held_besides = [entry for entry in self.model.running(turn.session) if entry not in [b for b, _ in named]]
        more = self._send(call, crash, lose)
        taken = held_besides or self.model.take_in(turn.session, limit)
        if held_besides and any(entry.lease_until <= self.model.now for entry in held_besides):
            taken = [entry for entry in held_besides if entry.lease_until > self.model.now]
        assert sorted(_serials(more)) == sorted(entry.serial for entry in taken)
        if more is not None:
            by_serial = {entry.serial: entry for entry in taken}
            found = [by_serial[job.payload] for job in more.entries]
            self.held[-1 - place % len(self.held)] = (
                turn.joined(more),
                [*named, *((entry, entry.epoch) for entry in found)],
            )

    @precondition(lambda self: self.held)
    @rule(place=st.integers(0, 5), outcome=st.sampled_from(sorted(OUTCOMES)), crash=crashes, lose=lost)
    def settle(self, place: int, outcome: str, crash: int, lose: bool) -> None:
        turn, named = self.held.pop(-1 - place % len(self.held))
        if self.model.holds(named):
            self._send(lambda queue: queue.sessions.settle(turn, OUTCOMES[outcome]), crash, lose)
            self.model.settle(named, outcome)
        else:
            with pytest.raises(LeaseLost):
                self.queue.sessions.settle(turn, OUTCOMES[outcome])

    @precondition(lambda self: self.held)
    @rule(place=st.integers(0, 5))
    def heartbeat(self, place: int) -> None:
        turn, named = self.held[-1 - place % len(self.held)]
        if self.model.holds(named):
            self.queue.sessions.heartbeat(turn)
            for entry, _ in named:
                entry.lease_until = max(entry.lease_until, self.model.now + LEASE_MS)
        else:
            with pytest.raises(LeaseLost):
                self.queue.sessions.heartbeat(turn)

    @rule(name=names, crash=crashes, lose=lost)
    def take_over_and_close(self, name: str, crash: int, lose: bool) -> None:
        self._tokens += 1
        token = f"t{self._tokens}"
        lease = self._send(
            lambda queue: queue.sessions.open(name, worker="r", take_over=True, lease_token=token), crash, lose
        )
        self.model.take_over(name)
        self.queue.sessions.close(lease)

    @rule(seconds=st.sampled_from([1, 4, 5, 10, 31]))
    def advance(self, seconds: int) -> None:
        self.harness.clock.advance(seconds)
        self.model.now += seconds * 1000

    @invariant()
    def the_store_holds_what_the_model_holds(self) -> None:
        for name in self.model.sessions:
            stored = {job.payload: _shown(job.state, job.epoch, job.attempt) for job in self.queue.jobs(session=name)}
            kept = self.model.session(name).entries
            assert stored == {entry.serial: _shown(entry.state, entry.epoch, entry.attempt) for entry in kept}


def _shown(state: str, epoch: int, attempt: int) -> tuple[str, int, int]:
    return state, epoch, attempt


def _serials(claim: SessionClaim | None) -> list[int]:
    return [] if claim is None else [job.payload for job in claim.entries]


@pytest.mark.slow("dozens of random histories are compared with a model")
@pytest.mark.parametrize("engine", DURABLE_ENGINES)
def test_sessions_do_what_the_model_does(engine: str) -> None:
    run_machine(SessionsAgainstModel, engine, examples=16, steps=40, repeatable=True)


@pytest.mark.long
@pytest.mark.parametrize("engine", DURABLE_ENGINES)
def test_sessions_do_what_the_model_does_for_long_and_at_random(engine: str) -> None:
    run_machine(SessionsAgainstModel, engine, examples=400, steps=60, repeatable=False)
