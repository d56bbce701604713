"""The checker can fail: a small sound history, doctored in one way for each rule, is found out by that rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import pytest

import holdfast
from holdfast import Done, Event, Failed, NewJob, Outcome
from tests.chaos.actor import claimed, settled
from tests.chaos.checker import RULES, History, breaches
from tests.chaos.history import Act, moment
from tests.support.job_states import all_events

Doctor: TypeAlias = Callable[[History], object]


class _Storyteller:
    """Lives through a few jobs on a real queue and writes them down."""

    def __init__(self) -> None:
        self.queue = holdfast.connect(":memory:")
        self.acts: list[Act] = []
        self._claim: holdfast.Claim | None = None

    def tell(self, did: Callable[[], list[Act]]) -> None:
        started = moment()
        acts = did()
        self.acts += [replace(act, actor="teller", started=started, ended=moment()) for act in acts]

    def enqueue(self, job_id: str, key: str | None = None) -> None:
        job = NewJob("task", job_id=job_id, events="all", dedupe_key=key, tags={"key": key} if key else {})
        made = self.queue.enqueue(job.kind, **job.options)
        self.tell(lambda: [Act(deed="enqueue", job=made.id, created=made.created)])

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
        words = {"job": held.job.id, "epoch": held.epoch, "token": held.lease_token}

        def renewing() -> list[Act]:
            until = self.queue.heartbeat(held, lease=60).lease_until
            return [Act(deed="heartbeat", until_ms=round(until.timestamp() * 1000), **words)]  # type: ignore[arg-type]

        self.tell(renewing)
        self.queue.progress(held, percent=1)
        self.tell(lambda: [Act(deed="progress", **words)])  # type: ignore[arg-type]
        self.tell(lambda: settled(held, outcome, self.queue.settle(held, outcome), ledger=ledger))

    def requeue(self, job_id: str) -> None:
        self.queue.requeue(job_id)
        self.tell(lambda: [Act(deed="requeue", job=job_id)])


def sound() -> History:
    """Return a history in which `a` fails once and is done, `b` and then `c` hold one key, and `c` is requeued."""
    teller = _Storyteller()
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
    )


# --- ways to doctor it ---------------------------------------------------------------------------------------------


def find(history: History, deed: str, job: str, epoch: int = 0) -> int:
    return next(
        place for place, act in enumerate(history.acts) if (act.deed, act.job, act.epoch) == (deed, job, epoch)
    )


def change(deed: str, job: str, epoch: int, **words: object) -> Doctor:
    """Change what an act says."""

    def doctor(history: History) -> None:
        place = find(history, deed, job, epoch)
        history.acts[place] = replace(history.acts[place], **words)  # type: ignore[arg-type]

    return doctor


def late(deed: str, job: str, epoch: int, by: float = 600_000) -> Doctor:
    """Let an act have happened later."""

    def doctor(history: History) -> None:
        place = find(history, deed, job, epoch)
        act = history.acts[place]
        assert act.ended is not None
        history.acts[place] = replace(act, started=act.started + by, ended=act.ended + by)

    return doctor


def add(deed: str, job: str, epoch: int = 0, /, **words: object) -> Doctor:
    """Tell of an act once more, with other words."""

    def doctor(history: History) -> None:
        act = history.acts[find(history, deed, job, epoch)]
        history.acts.append(replace(act, **words))  # type: ignore[arg-type]

    return doctor


def forget(deed: str, job: str, epoch: int) -> Doctor:
    return lambda history: history.acts.pop(find(history, deed, job, epoch))


def job_is(job: str, **words: object) -> Doctor:
    return lambda history: history.jobs.update({job: history.jobs[job]._replace(**words)})  # type: ignore[arg-type]


def both(*doctors: Doctor) -> Doctor:
    return lambda history: [doctor(history) for doctor in doctors]


def short_lease(job: str, epoch: int) -> Doctor:
    """Let a claim's lease have been a millisecond long, so that only its renewal kept it."""

    def doctor(history: History) -> None:
        place = find(history, "claim", job, epoch)
        act = history.acts[place]
        history.acts[place] = replace(act, until_ms=act.decided_ms + 1, lease_ms=1)

    return doctor


def event_at(history: History, job: str, name: str) -> int:
    return next(place for place, event in enumerate(history.events) if (event.job_id, event.name) == (job, name))


def drop_event(job: str, name: str) -> Doctor:
    """Take an event out of the log and close the gap it leaves."""

    def doctor(history: History) -> None:
        gone = history.events.pop(event_at(history, job, name))
        history.events[:] = [_renumbered(event, gone) for event in history.events]
        history.seen = [(event.job_id, event.number) for event in history.events]

    return doctor


def _renumbered(event: Event, gone: Event) -> Event:
    moved = event.job_id == gone.job_id and event.number > gone.number
    return event._replace(number=event.number - 1) if moved else event


def move_event(job: str, name: str, before: tuple[str, str]) -> Doctor:
    """Move an event to another place in the log."""

    def doctor(history: History) -> None:
        event = history.events.pop(event_at(history, job, name))
        history.events.insert(event_at(history, *before), event)

    return doctor


DOCTORED: dict[str, list[Doctor]] = {
    "acknowledged_jobs_exist": [lambda history: history.jobs.pop("a")],
    "an_id_is_created_once": [add("enqueue", "a")],
    "every_job_ended": [job_is("a", state="running")],
    "nothing_done_is_undone": [job_is("a", state="failed"), job_is("a", epoch=3)],
    "transactions_are_whole": [
        lambda history: history.ledger.append(("a", 2)),
        lambda history: history.ledger.append(("a", 1)),
        lambda history: history.ledger.append(("nobody", 1)),
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
    "no_write_is_taken_after_a_expire": [late(deed, "a", 2) for deed in ("heartbeat", "progress", "settle")],
    "no_write_is_taken_once_outranked": [late(deed, "a", 1, 50_000) for deed in ("heartbeat", "progress", "settle")],
    "an_epoch_is_settled_once": [add("settle", "a", 2), add("settle", "a", 1, outcome="released")],
    "a_job_is_done_once": [add("settle", "a", 2, epoch=3)],
    "event_numbers_have_no_gap": [lambda history: history.events.pop(1)],
    "each_end_is_told_once": [
        drop_event("a", "done"),
        forget("requeue", "c", 0),
        add("requeue", "c"),
        job_is("a", state="cancelled"),
    ],
    "recorded_lives_are_possible": [
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


def test_a_sound_history_has_no_breach() -> None:
    assert breaches(sound()) == []


def test_every_rule_is_put_to_the_test() -> None:
    assert list(DOCTORED) == [rule.__name__ for rule in RULES]


@pytest.mark.parametrize(
    ("rule", "doctor"), [(rule, doctor) for rule, doctors in DOCTORED.items() for doctor in doctors]
)
def test_a_doctored_history_is_found_out(rule: str, doctor: Doctor) -> None:
    history = sound()
    doctor(history)
    assert rule in {breach.partition(":")[0] for breach in breaches(history)}


class TestWhatIsNotKnown:
    """Nobody is accused of what may have been otherwise."""

    def test_a_settle_without_an_answer_may_have_ended_the_lease(self) -> None:
        history = sound()
        change("settle", "a", 1, ended=None)(history)
        assert breaches(history) == []

    def test_a_requeue_without_an_answer_may_have_brought_another_end(self) -> None:
        history = sound()
        change("requeue", "c", 0, ended=None)(history)
        assert breaches(history) == []

    def test_a_renewal_without_an_answer_may_have_kept_the_lease(self) -> None:
        history = sound()
        both(change("heartbeat", "a", 2, ended=None, until_ms=1 << 60), late("settle", "a", 2))(history)
        assert breaches(history) == []

    def test_a_settle_sent_again_may_come_late_and_outranked(self) -> None:
        history = sound()
        both(add("settle", "a", 1, again=True), late("settle", "a", 1, 0))(history)
        history.acts[-1] = replace(history.acts[-1], started=moment() + 1e6, ended=moment() + 2e6)
        assert breaches(history) == []

    def test_a_forced_cancel_ends_a_lease_at_once(self) -> None:
        history = sound()
        settle = history.acts[find(history, "settle", "a", 1)]
        forget("settle", "a", 1)(history)
        history.acts.append(replace(settle, deed="cancel", forced=True, epoch=0))
        assert breaches(history) == []

    def test_a_claim_may_be_held_up_between_reading_the_clock_and_being_given(self) -> None:
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

    @pytest.mark.parametrize("doctor", DOCTORED["live_leases_never_overlap"])
    def test_but_not_beyond_the_answer(self, doctor: Doctor) -> None:
        history = sound()
        history.one_writer = False
        doctor(history)
        assert any(breach.startswith("live_leases_never_overlap") for breach in breaches(history))
