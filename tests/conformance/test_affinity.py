"""Affinity: a bounded preference for jobs with an affinity that the worker has loaded, never a requirement."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

import pytest

from holdfast import Claim, Done, NewJob, Queue
from tests.support.assertions import refused
from tests.support.claims import claim_one
from tests.support.clock import ManualClock


def enqueue_beside(queue: Queue, affinities: str) -> None:
    """Enqueue one job for each letter: the letter is its affinity, a dash means none."""
    queue.enqueue_many([NewJob("run", affinity=None if letter == "-" else letter) for letter in affinities])


def letters(claims: list[Claim]) -> str:
    return "".join(claim.job.affinity or "-" for claim in claims)


class TestThePreference:
    def test_jobs_with_a_loaded_affinity_go_first(self, queue: Queue) -> None:
        enqueue_beside(queue, "AB-AB-")
        assert letters(queue.claim_many(affinity="B")) == "BBA-A-"

    def test_a_worker_with_nothing_loaded_takes_all_in_order(self, queue: Queue) -> None:
        enqueue_beside(queue, "AB-BA-")
        assert letters(queue.claim_many()) == "AB-BA-"

    def test_an_affinity_without_jobs_changes_nothing(self, queue: Queue) -> None:
        enqueue_beside(queue, "AB-BA-")
        assert letters(queue.claim_many(affinity="X")) == "AB-BA-"

    def test_several_loaded_affinities_are_preferred_equally(self, queue: Queue) -> None:
        enqueue_beside(queue, "C-ABCBA")
        assert letters(queue.claim_many(affinity=["A", "B"])) == "ABBAC-C"

    def test_it_is_a_preference_and_not_a_requirement(self, queue: Queue) -> None:
        enqueue_beside(queue, "B-")
        assert letters(queue.claim_many(affinity="A")) == "B-"

    def test_a_higher_priority_takes_precedence(self, queue: Queue) -> None:
        enqueue_beside(queue, "AA")
        queue.enqueue("run", affinity="B", priority=1)
        assert letters(queue.claim_many(affinity="A")) == "BAA"

    def test_it_holds_across_kinds_and_lanes(self, queue: Queue) -> None:
        queue.enqueue("other", lane="side", affinity="B")
        queue.enqueue("run", lane="default", affinity="A")
        queue.enqueue("other", lane="default", affinity="B")
        assert letters(queue.claim_many(lanes=["default", "side"], affinity="B")) == "BBA"

    def test_many_jobs_with_other_affinities_do_not_hide_a_matching_one(self, queue: Queue) -> None:
        queue.enqueue_many([NewJob("run", affinity=f"model-{number % 40}") for number in range(2000)])
        beside = queue.enqueue("run", affinity="mine")
        assert claim_one(queue, affinity="mine").job.id == beside.id

    def test_one_affinity_is_drained_before_the_next(self, queue: Queue) -> None:
        enqueue_beside(queue, "ABCABCABC")
        loaded: str | None = None
        taken = ""
        while claim := queue.claim(affinity=loaded):
            loaded = claim.job.affinity
            taken += loaded or "-"
        assert taken == "AAABBBCCC"


class TestItsBound:
    @pytest.mark.parametrize("left", [None, 0.001, 60, timedelta(seconds=1)])
    def test_within_the_bound_the_loaded_affinity_is_preferred(
        self, queue: Queue, left: float | timedelta | None
    ) -> None:
        enqueue_beside(queue, "BABA")
        assert letters(queue.claim_many(limit=2, affinity="A", hold_left=left)) == "AA"

    @pytest.mark.parametrize("left", [0, 0.0, timedelta(0)])
    def test_past_the_bound_the_loaded_affinity_goes_last(self, queue: Queue, left: float | timedelta) -> None:
        enqueue_beside(queue, "ACABA")
        assert letters(queue.claim_many(limit=1, affinity="A", hold_left=left)) == "C"

    def test_past_the_bound_the_affinity_of_the_oldest_job_is_taken_and_drained(
        self, queue: Queue, clock: ManualClock
    ) -> None:
        enqueue_beside(queue, "AAA")
        clock.advance(1)
        enqueue_beside(queue, "CBCB")
        entry = queue.claim_many(affinity="A", hold_left=0)
        assert letters(entry) == "CCAAABB"

    def test_past_the_bound_a_job_without_affinity_is_taken_and_switches_nothing(self, queue: Queue) -> None:
        enqueue_beside(queue, "A-A-BAB")
        assert letters(queue.claim_many(affinity="A", hold_left=0)) == "--BBAAA"

    def test_past_the_bound_with_nothing_else_waiting_the_loaded_one_is_taken(self, queue: Queue) -> None:
        enqueue_beside(queue, "AAA")
        assert letters(queue.claim_many(affinity="A", hold_left=0)) == "AAA"

    def test_past_the_bound_priority_still_goes_first(self, queue: Queue) -> None:
        enqueue_beside(queue, "B")
        queue.enqueue("run", affinity="A", priority=1)
        assert letters(queue.claim_many(affinity="A", hold_left=0)) == "AB"

    def test_past_the_bound_fairness_holds_among_the_other_jobs(self, queue: Queue) -> None:
        for tenant, affinity in (("ada", "A"), ("ada", "B"), ("zoe", "B")):
            queue.enqueue("run", tenant=tenant, affinity=affinity)
        assert claim_one(queue, affinity="A", hold_left=0).job.tenant == "ada"

    def test_past_the_bound_due_times_order_the_other_jobs(self, queue: Queue, clock: ManualClock) -> None:
        queue.enqueue("one", affinity="A")
        clock.advance(1)
        behind = queue.enqueue("one", affinity="B")
        clock.advance(1)
        queue.enqueue("two", affinity="C")
        assert claim_one(queue, affinity="A", hold_left=0).job.id == behind.id

    def test_past_the_bound_the_one_job_behind_thousands_of_the_loaded_one_is_found(self, queue: Queue) -> None:
        queue.enqueue_many([NewJob("run", affinity="M") for _ in range(2000)])
        for affinity in "AZ":
            enqueue_beside(queue, affinity)
            assert claim_one(queue, affinity="M", hold_left=0).job.affinity == affinity

    def test_past_the_bound_affinities_that_wait_elsewhere_do_not_hide_one_here(self, queue: Queue) -> None:
        queue.enqueue_many([NewJob("run", lane="other", affinity=f"N{number}") for number in range(600)])
        enqueue_beside(queue, "MMAZ")
        taken = queue.claim_many(limit=2, affinity=["M"], hold_left=0)
        assert letters(taken) == "AM"
        assert claim_one(queue, affinity=["M", "A"], hold_left=0).job.affinity == "Z"

    def test_a_bound_without_an_affinity_has_no_effect(self, queue: Queue) -> None:
        enqueue_beside(queue, "AB-")
        assert letters(queue.claim_many(hold_left=0)) == "AB-"


class SwitchingWorker:
    """A worker that prefers its loaded affinity for up to *bound* seconds; each job takes one second."""

    def __init__(self, queue: Queue, clock: ManualClock, bound: int) -> None:
        self._queue, self._clock, self._bound = queue, clock, bound
        self._loaded: str | None = None
        self._left = bound

    def work(self) -> str:
        """Run one job and return its affinity."""
        claim = claim_one(self._queue, affinity=self._loaded, hold_left=self._left)
        if claim.job.affinity not in {None, self._loaded}:
            self._loaded, self._left = claim.job.affinity, self._bound
        self._queue.settle(claim, Done())
        self._clock.advance(1)
        self._left = max(self._left - 1, 0)
        return claim.job.affinity or "-"


class TestNoStarvation:
    def test_a_stream_of_the_loaded_affinity_delays_others_for_at_most_one_bound(
        self, queue: Queue, clock: ManualClock
    ) -> None:
        bound = 5
        worker = SwitchingWorker(queue, clock, bound)
        enqueue_beside(queue, "A" * 10)
        assert worker.work() == "A"
        enqueue_beside(queue, "B")
        taken = ""
        for _ in range(bound + 1):
            enqueue_beside(queue, "A")
            taken += worker.work()
        assert "B" in taken

    def test_jobs_without_affinity_are_not_starved_by_those_with_one(self, queue: Queue, clock: ManualClock) -> None:
        worker = SwitchingWorker(queue, clock, bound=4)
        enqueue_beside(queue, "AAAAAA")
        assert worker.work() == "A"
        enqueue_beside(queue, "---")
        taken = ""
        for _ in range(8):
            enqueue_beside(queue, "A")
            taken += worker.work()
        assert taken.count("-") == 3

    def test_three_affinities_in_demand_are_all_served(self, queue: Queue, clock: ManualClock) -> None:
        worker = SwitchingWorker(queue, clock, bound=3)
        taken = ""
        for _ in range(30):
            enqueue_beside(queue, "ABC")
            taken += worker.work()
        assert min(taken.count(letter) for letter in "ABC") >= 6
        switches = sum(one != other for one, other in pairwise(taken))
        assert switches <= 10


class TestHowManyAtOnce:
    """A worker takes no job that would exceed its number of loaded affinities."""

    def test_a_claim_ends_before_one_affinity_too_many(self, queue: Queue) -> None:
        enqueue_beside(queue, "A-ABA-C")
        assert letters(queue.claim_many(affinities_max=1)) == "A-A"
        assert letters(queue.claim_many(affinities_max=2)) == "BA-"

    def test_affinities_of_held_jobs_count(self, queue: Queue) -> None:
        enqueue_beside(queue, "BA")
        assert letters(queue.claim_many(affinities_max=1, affinities_held=["X"])) == ""
        assert letters(queue.claim_many(affinities_max=1, affinities_held=["A"], affinity="A")) == "A"
        assert letters(queue.claim_many(affinities_max=2, affinities_held=["X"])) == "B"

    def test_loaded_affinities_come_first_and_count_when_taken(self, queue: Queue) -> None:
        enqueue_beside(queue, "CBACBA")
        assert letters(queue.claim_many(affinity=["A"], affinities_max=2)) == "AAC"

    def test_jobs_without_affinity_are_never_too_many(self, queue: Queue) -> None:
        enqueue_beside(queue, "--A--")
        assert letters(queue.claim_many(affinities_max=1, affinities_held=["A"])) == "--A--"

    def test_priority_is_not_passed_over(self, queue: Queue) -> None:
        enqueue_beside(queue, "AA")
        queue.enqueue("run", affinity="B", priority=1)
        held = {"affinities_max": 1, "affinities_held": ["A"]}
        assert letters(queue.claim_many(affinity="A", **held)) == ""  # type: ignore[arg-type]  # named above
        assert letters(queue.claim_many(affinity="A", affinities_max=1)) == "B"

    def test_past_the_bound_the_limit_applies_to_new_affinities(self, queue: Queue) -> None:
        enqueue_beside(queue, "ABCBC")
        options = {"affinity": "A", "hold_left": 0, "affinities_max": 1}
        assert letters(queue.claim_many(**options, affinities_held=["A"])) == ""  # type: ignore[arg-type]  # as above
        assert letters(queue.claim_many(**options)) == "BB"  # type: ignore[arg-type]  # as above

    def test_the_limit_applies_beyond_one_page_of_jobs(self, queue: Queue) -> None:
        queue.enqueue_many([NewJob("run", affinity="A" if number % 7 else "B") for number in range(1, 400)])
        claims = queue.claim_many(affinity="A", affinities_max=1, limit=1000)
        assert len(claims) == 342
        assert set(letters(claims)) == {"A"}

    @pytest.mark.parametrize(
        ("options", "field"),
        [
            ({"affinities_max": 0}, "affinities_max"),
            ({"affinities_max": 65}, "affinities_max"),
            ({"affinities_held": "A"}, "affinities_held"),
            ({"affinities_held": ["x" * 201]}, "affinities_held[0]"),
        ],
    )
    def test_wrong_options_are_refused(self, queue: Queue, options: dict[str, object], field: str) -> None:
        with refused(queue, field):
            queue.claim_many(**options)  # type: ignore[arg-type]  # wrong on purpose
