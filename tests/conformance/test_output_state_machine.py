"""Output streams compared with a model: attempts that emit, crash, are retried and turn into zombies, and readers.

The model is a list of texts for each job. Every reader must see exactly this list, wherever it starts and however
often it comes back.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from holdfast import Claim, Conflict, Deferred, Done, Failed, LeaseLost, Outcome, Queue, Released, WaitTimeout
from tests.support.faults import AnswerLost, Crashed
from tests.support.filesystems import MEMORY_FOLDER
from tests.support.stores import DURABLE_ENGINES, Harness
from tests.support.strategies import run_machine

LEASE_SECONDS = 30
OUTCOMES: list[Outcome] = [Done(), Failed("no", permanent=True), Failed("no", retry_after=0), Deferred(after=0)]
ENDS = (Done(), Failed("no", permanent=True))
crashes = st.sampled_from([0, 0, 0, 1, 2, 3, 4, 5])
which = st.integers(0, 30)
texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=4)


class ModelAttempt:
    """A claim of one job, and how many parts it has written."""

    def __init__(self, job: str, claim: Claim) -> None:
        self.job, self.claim = job, claim
        self.parts: list[str] = []
        self.numbers: list[int] = []


class OutputAgainstModel(RuleBasedStateMachine):
    """Every rule applies the same call to the store and to the model."""

    engine: str

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory(dir=MEMORY_FOLDER)
        self.harness = Harness(self.engine, Path(self._folder.name))
        self.queue = self.harness.open()
        self.stored: dict[str, list[tuple[int, str]]] = {}
        """Epoch and text of each chunk, by job."""
        self.attempts: list[ModelAttempt] = []
        self.current: dict[str, ModelAttempt | None] = {}
        """The attempt that holds each job."""
        self.finished: set[str] = set()
        self.readers: list[tuple[str, list[str]]] = []
        """Readers that come back: their job, and the texts they have seen."""

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

    @precondition(lambda self: len(self.stored) < 4)
    @rule()
    def enqueue(self) -> None:
        job = self.queue.enqueue("talk", max_attempts=1000).id
        self.stored[job], self.current[job] = [], None

    @rule()
    def claim(self) -> None:
        claim = self.queue.claim(lease=LEASE_SECONDS)
        waiting = [job for job, held in self.current.items() if held is None and job not in self.finished]
        assert (claim is None) == (not waiting)
        if claim is not None:
            attempt = ModelAttempt(claim.job.id, claim)
            self.attempts.append(attempt)
            self.current[claim.job.id] = attempt

    @precondition(lambda self: self.attempts)
    @rule(
        index=which,
        text=texts,
        crash=crashes,
        lose=st.booleans(),
    )
    def emit(self, index: int, text: str, crash: int, lose: bool) -> None:
        attempt = self.attempts[-1 - index % len(self.attempts)]
        part = len(attempt.parts)
        if self.current[attempt.job] is not attempt:
            with pytest.raises(LeaseLost):
                self.queue.emit(attempt.claim, text, part=part)
            return
        number = self._send(lambda queue: queue.emit(attempt.claim, text, part=part), crash, lose)
        self.stored[attempt.job].append((attempt.claim.epoch, text))
        assert number == len(self.stored[attempt.job])
        attempt.parts.append(text)
        attempt.numbers.append(number)

    @precondition(lambda self: any(attempt.parts for attempt in self.attempts))
    @rule(index=which, data=st.data())
    def emit_again(self, index: int, data: st.DataObject) -> None:
        written = [attempt for attempt in self.attempts if attempt.parts]
        attempt = written[-1 - index % len(written)]
        part = data.draw(st.integers(0, len(attempt.parts) - 1))
        if self.current[attempt.job] is attempt:
            assert self.queue.emit(attempt.claim, attempt.parts[part], part=part) == attempt.numbers[part]
            with pytest.raises(Conflict):
                self.queue.emit(attempt.claim, "gap", part=len(attempt.parts) + 1)
        else:
            with pytest.raises(LeaseLost):
                self.queue.emit(attempt.claim, attempt.parts[part], part=part)

    @precondition(lambda self: any(self.current.values()))
    @rule(index=which, outcome=st.sampled_from([*OUTCOMES, Released()]))
    def settle(self, index: int, outcome: Outcome) -> None:
        held = [attempt for attempt in self.current.values() if attempt is not None]
        attempt = held[index % len(held)]
        self.queue.settle(attempt.claim, outcome)
        self.current[attempt.job] = None
        if outcome in ENDS:
            self.finished.add(attempt.job)

    @rule()
    def expire_all(self) -> None:
        self.harness.clock.advance(LEASE_SECONDS + 1)
        self.current = dict.fromkeys(self.current)

    @precondition(lambda self: self.stored)
    @rule(index=which)
    def begin_reading(self, index: int) -> None:
        jobs = list(self.stored)
        self.readers.append((jobs[index % len(jobs)], []))

    @precondition(lambda self: self.readers)
    @rule(index=which, limit=st.integers(1, 3))
    def read_on(self, index: int, limit: int) -> None:
        job, seen = self.readers[index % len(self.readers)]
        page = self.queue.output(job, after=len(seen), limit=limit)
        assert [chunk.number for chunk in page] == list(range(len(seen) + 1, len(seen) + 1 + len(page)))
        seen += [chunk.text for chunk in page]
        assert page.ended == (job in self.finished and len(page) < limit)

    @precondition(lambda self: self.readers)
    @rule(index=which)
    def follow(self, index: int) -> None:
        job, seen = self.readers[index % len(self.readers)]
        try:
            for chunk in self.queue.stream(job, after=len(seen), timeout=0):
                seen.append(chunk.text)  # what was seen before the timeout stays
        except WaitTimeout:
            assert job not in self.finished
        else:
            assert job in self.finished
        assert seen == [text for _, text in self.stored[job]]

    @invariant()
    def every_reader_has_seen_a_prefix(self) -> None:
        for job, seen in self.readers:
            assert seen == [text for _, text in self.stored[job][: len(seen)]]

    @invariant()
    def the_store_has_what_the_model_has(self) -> None:
        for job, texts in self.stored.items():
            assert [(chunk.epoch, chunk.text) for chunk in self.queue.output(job)] == texts[:100]


@pytest.mark.slow("dozens of random histories are compared with a model")
@pytest.mark.parametrize("engine", DURABLE_ENGINES)
def test_streams_do_what_the_model_does(engine: str) -> None:
    run_machine(OutputAgainstModel, engine, examples=20, steps=40, repeatable=True)


@pytest.mark.long
@pytest.mark.parametrize("engine", DURABLE_ENGINES)
def test_streams_do_what_the_model_does_for_long_and_at_random(engine: str) -> None:
    run_machine(OutputAgainstModel, engine, examples=300, steps=60, repeatable=False)
