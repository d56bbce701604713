"""The checker detects breaches: a small valid history is changed in one way for each rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import pytest

import holdfast
from holdfast import Done, Failed, NewJob, Outcome
from holdfast.types import Event
from tests.chaos.actor import claimed, settled
from tests.chaos.checker import RULES, History, breaches
from tests.chaos.history import Act, now_ms
from tests.support.claims import changed_job
from tests.support.job_states import all_events

Change: TypeAlias = Callable[[History], object]


class _HistoryBuilder:
    """Processes a few jobs on a real queue and records them."""

    def __init__(self) -> None:
        self.queue = holdfast.connect(":memory:")
        self.acts: list[Act] = []
        self._claim: holdfast.Claim | None = None

    def tell(self, did: Callable[[], list[Act]]) -> None:
        started = now_ms()
        acts = did()
        self.acts += [replace(act, actor="teller", started=started, ended=now_ms()) for act in acts]

    def enqueue(self, job_id: str, key: str | None = None) -> None:
        job = NewJob("task", job_id=job_id, events="all", dedupe_key=key, tags={"key": key} if key else {})
        made = self.queue.enqueue(job.kind, **job.options)
        self.tell(lambda: [Act(operation="enqueue", job=made.id, created=made.created)])

    def run(self, outcome: Outcome, *, ledger: bool = False) -> None:
        claim = None

        def claiming() -> list[Act]:
            nonlocal claim
            claim = self.queue.claim(lease=30)
            assert claim is not None
            return [claimed(claim)]

        self.tell(claiming)
        assert claim is not None
        held = claim
        fields = {"job": held.job.id, "epoch": held.epoch, "token": held.lease_token}

        def renewing() -> list[Act]:
            until = self.queue.heartbeat(held, lease=60).lease_until
            return [Act(operation="heartbeat", until_ms=round(until.timestamp() * 1000), **fields)]  # type: ignore[arg-type]

        self.tell(renewing)
        self.queue.progress(held, percent=1)
        self.tell(lambda: [Act(operation="progress", **fields)])  # type: ignore[arg-type]
        self.tell(lambda: settled(held, outcome, self.queue.settle(held, outcome), ledger=ledger))

    def requeue(self, job_id: str) -> None:
        self.queue.requeue(job_id)
        self.tell(lambda: [Act(operation="requeue", job=job_id)])


def sound() -> History:
    """Return a history in which `a` fails once and is done, `b` and then `c` hold one key, and `c` is requeued."""
    teller = _HistoryBuilder()
    teller.enqueue("a")
    teller.run(Failed("once", retry_after=0))
    teller.run(Done(), ledger=True)
    teller.enqueue("b", key="k")
    teller.run(Done())
    teller.enqueue("c", key="k")
    teller.run(Failed("for good", permanent=True))
    teller.requeue("c")
    teller.run(Done())
    events = all_events(teller.queue)
    return History(
        acts=teller.acts,
        jobs={job.id: job for job in teller.queue.jobs()},
        events=events,
        seen=[(event.job_id, event.number) for event in events],
        ledger=[("a", 2)],
        at_once={"task": 1},
    )


# --- changes -------------------------------------------------------------------------------------------------------


def find(history: History, operation: str, job: str, epoch: int = 0) -> int:
    return next(
        place
        for place, act in enumerate(history.acts)
        if (act.operation, act.job, act.epoch) == (operation, job, epoch)
    )


def change(operation: str, job: str, epoch: int, **fields: object) -> Change:
    """Change fields of an act."""

    def apply_change(history: History) -> None:
        place = find(history, operation, job, epoch)
        history.acts[place] = replace(history.acts[place], **fields)  # type: ignore[arg-type]

    return apply_change


def late(operation: str, job: str, epoch: int, by: float = 600_000) -> Change:
    """Move an act to a later time."""

    def apply_change(history: History) -> None:
        place = find(history, operation, job, epoch)
        act = history.acts[place]
        assert act.ended is not None
        history.acts[place] = replace(act, started=act.started + by, ended=act.ended + by)

    return apply_change


def add(operation: str, job: str, epoch: int = 0, /, **fields: object) -> Change:
    """Repeat an act with other fields."""

    def apply_change(history: History) -> None:
        act = history.acts[find(history, operation, job, epoch)]
        history.acts.append(replace(act, **fields))  # type: ignore[arg-type]

    return apply_change


def forget(operation: str, job: str, epoch: int) -> Change:
    return lambda history: history.acts.pop(find(history, operation, job, epoch))


def job_is(job: str, **fields: object) -> Change:
    return lambda history: history.jobs.update({job: changed_job(history.jobs[job], **fields)})


def both(*changes: Change) -> Change:
    return lambda history: [apply_change(history) for apply_change in changes]


def short_lease(job: str, epoch: int) -> Change:
    """Shorten a claim's lease to a millisecond; only its renewal extends it."""

    def apply_change(history: History) -> None:
        place = find(history, "claim", job, epoch)
        act = history.acts[place]
        history.acts[place] = replace(act, until_ms=act.decided_ms + 1, lease_ms=1)

    return apply_change


def event_at(history: History, job: str, name: str) -> int:
    return next(place for place, event in enumerate(history.events) if (event.job_id, event.name) == (job, name))


def drop_event(job: str, name: str) -> Change:
    """Remove an event from the log and renumber the rest."""

    def apply_change(history: History) -> None:
        gone = history.events.pop(event_at(history, job, name))
        history.events[:] = [_renumbered(event, gone) for event in history.events]
        history.seen = [(event.job_id, event.number) for event in history.events]

    return apply_change


def _renumbered(event: Event, gone: Event) -> Event:
    moved = event.job_id == gone.job_id and event.number > gone.number
    return replace(event, number=event.number - 1) if moved else event


def move_event(job: str, name: str, before: tuple[str, str]) -> Change:
    """Move an event to another position in the log."""

    def apply_change(history: History) -> None:
        event = history.events.pop(event_at(history, job, name))
        history.events.insert(event_at(history, *before), event)

    return apply_change


CHANGED: dict[str, list[Change]] = {
    "acknowledged_jobs_exist": [lambda history: history.jobs.pop("a")],
    "an_id_is_created_once": [add("enqueue", "a")],
    "every_job_ended": [job_is("a", state="running")],
    "nothing_done_is_undone": [job_is("a", state="failed"), job_is("a", epoch=3)],
    "transactions_are_atomic": [
        lambda history: history.ledger.append(("a", 2)),
        lambda history: history.ledger.append(("a", 1)),
        lambda history: history.ledger.append(("missing", 1)),
        lambda history: history.ledger.clear(),
    ],
    "epochs_strictly_increase": [
        add("claim", "a", 1, token="another"),
        both(late("claim", "a", 1)),
    ],
    "the_last_epoch_is_the_stores": [job_is("a", epoch=1)],
    "live_leases_never_overlap": [
        forget("settle", "a", 1),
        both(short_lease("a", 1), forget("settle", "a", 1)),
        late("settle", "a", 1),
    ],
    "the_lease_clock_runs_evenly": [
        lambda history: change(
            "claim", "a", 1, until_ms=history.acts[find(history, "claim", "a", 1)].until_ms + 60_000
        )(history)
    ],
    "a_limit_is_never_exceeded": [late("settle", "a", 1), forget("settle", "a", 2)],
    "no_write_is_accepted_after_expiry": [
        late(operation, "a", 2) for operation in ("heartbeat", "progress", "settle")
    ],
    "no_write_of_an_older_epoch_is_accepted": [
        late(operation, "a", 1, 50_000) for operation in ("heartbeat", "progress", "settle")
    ],
    "an_epoch_is_settled_once": [add("settle", "a", 2), add("settle", "a", 1, outcome="released")],
    "a_job_is_done_once": [add("settle", "a", 2, epoch=3)],
    "event_numbers_have_no_gap": [lambda history: history.events.pop(1)],
    "each_end_is_recorded_once": [
        drop_event("a", "done"),
        forget("requeue", "c", 0),
        add("requeue", "c"),
        job_is("a", state="cancelled"),
    ],
    "recorded_transitions_are_valid": [
        move_event("a", "done", ("a", "claimed")),
        drop_event("c", "requeued"),
        drop_event("a", "retrying"),
    ],
    "acknowledged_acts_are_recorded": [
        drop_event("a", "claimed"),
        drop_event("a", "retrying"),
        drop_event("b", "done"),
    ],
    "a_reader_sees_every_event_once_in_order": [
        lambda history: history.seen.pop(3),
        lambda history: history.seen.pop(),
        lambda history: history.seen.append(history.seen[-1]),
        lambda history: history.seen.insert(0, history.seen.pop(1)),
    ],
    "a_key_has_one_holder": [move_event("b", "done", ("c", "claimed"))],
}


def test_a_valid_history_has_no_breach() -> None:
    assert breaches(sound()) == []


def test_every_rule_is_tested() -> None:
    assert list(CHANGED) == [rule.__name__ for rule in RULES]


@pytest.mark.parametrize(
    ("rule", "apply_change"), [(rule, apply_change) for rule, changes in CHANGED.items() for apply_change in changes]
)
def test_a_changed_history_is_detected(rule: str, apply_change: Change) -> None:
    history = sound()
    apply_change(history)
    assert rule in {breach.partition(":")[0] for breach in breaches(history)}


class TestUnknownResults:
    """A call with an unknown result is no breach."""

    def test_a_settle_without_a_result_may_have_ended_the_lease(self) -> None:
        history = sound()
        change("settle", "a", 1, ended=None)(history)
        assert breaches(history) == []

    def test_a_requeue_without_a_result_may_have_led_to_another_end(self) -> None:
        history = sound()
        change("requeue", "c", 0, ended=None)(history)
        assert breaches(history) == []

    def test_a_renewal_without_a_result_may_have_extended_the_lease(self) -> None:
        history = sound()
        both(change("heartbeat", "a", 2, ended=None, until_ms=1 << 60), late("settle", "a", 2))(history)
        history.at_once.clear()  # the other jobs run in between
        assert breaches(history) == []

    def test_a_repeated_settle_may_be_late_and_outdated(self) -> None:
        history = sound()
        both(add("settle", "a", 1, again=True), late("settle", "a", 1, 0))(history)
        history.acts[-1] = replace(history.acts[-1], started=now_ms() + 1e6, ended=now_ms() + 2e6)
        assert breaches(history) == []

    @pytest.mark.parametrize("fields", [{"ended": None}, {"uncounted": True}])
    def test_only_what_a_claim_has_certainly_taken_counts_for_a_limit(self, fields: dict[str, object]) -> None:
        history = sound()
        both(forget("settle", "a", 2), change("claim", "a", 2, **fields))(history)
        assert not any(breach.startswith("a_limit_is_never_exceeded") for breach in breaches(history))

    def test_a_forced_cancel_ends_a_lease_at_once(self) -> None:
        history = sound()
        settle = history.acts[find(history, "settle", "a", 1)]
        forget("settle", "a", 1)(history)
        history.acts.append(replace(settle, operation="cancel", forced=True, epoch=0))
        assert breaches(history) == []

    def test_a_claim_may_be_delayed_between_reading_the_clock_and_its_commit(self) -> None:
        history = sound()
        both(short_lease("a", 1), forget("heartbeat", "a", 1), forget("settle", "a", 1))(history)
        claim = history.acts[find(history, "claim", "a", 2)]
        earlier = history.acts[find(history, "claim", "a", 1)]
        assert claim.ended is not None
        change("claim", "a", 2, started=earlier.started, until_ms=earlier.decided_ms + claim.lease_ms)(history)
        assert any(breach.startswith("live_leases_never_overlap") for breach in breaches(history))
        history.one_writer = False
        change("claim", "a", 2, ended=claim.ended + 100)(history)
        assert not any(breach.startswith("live_leases_never_overlap") for breach in breaches(history))

    @pytest.mark.parametrize("apply_change", CHANGED["live_leases_never_overlap"])
    def test_but_not_beyond_its_return(self, apply_change: Change) -> None:
        history = sound()
        history.one_writer = False
        apply_change(history)
        assert any(breach.startswith("live_leases_never_overlap") for breach in breaches(history))
