"""The transitions of a job, tested for every state: total, fenced, bounded, and final states stay final."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, get_args

import pytest
from hypothesis import assume, given, strategies as st

from holdfast.domain import limits, transitions
from holdfast.domain.backoff import Backoff
from holdfast.domain.claim_order import Preference
from holdfast.domain.claims import ClaimRequest, JobFence
from holdfast.domain.clock import Now
from holdfast.domain.errors import Conflict, LeaseLost, Refused
from holdfast.domain.events import TERMINAL, EventName
from holdfast.domain.job import FINISHED, STATES, WAITING, JobRow, State, is_suspect, job_of
from holdfast.domain.new_job import NewJob, check_job, new_job
from holdfast.domain.outcomes import CheckedOutcome, Deferred, Done, Failed, Outcome, Released, check_outcome
from holdfast.domain.transitions import Transition

NOW = Now(wall_ms=10_000_000_000, lease_ms=5_000_000)
REQUEST = ClaimRequest(
    lanes=("default",),
    kinds=None,
    tenant=None,
    capabilities=frozenset(),
    preference=Preference(),
    listed=False,
    worker="new",
    incarnation="new-1",
    exclusive=False,
    lease_token="new-token",
    resent=False,
    lease_ms=30_000,
    wait_ms=0,
    limit=1,
)

# --- jobs in every state -------------------------------------------------------------------------------------------

BLANK = new_job(check_job(NewJob("kind"), fresh_id="job"), seq=7, fair_key="default", now=NOW)


@st.composite
def jobs(draw: st.DrawFn, states: tuple[State, ...] = STATES) -> JobRow:
    """Draw a job that a store may hold: any state, with any history that leads to it."""
    state = draw(st.sampled_from(states))
    max_attempts = draw(st.integers(1, 6))
    running, waiting = state == "running", state in WAITING
    attempt = draw(st.integers(1 if running else 0, max_attempts - 1 if waiting else max_attempts))
    epoch = attempt + draw(st.integers(0, 200))
    deferrals = draw(st.integers(0, 3))
    job = BLANK._replace(
        state=state,
        max_attempts=max_attempts,
        attempt=attempt,
        epoch=epoch,
        due_at_ms=NOW.wall_ms + (draw(st.integers(1, 10**6)) if state == "scheduled" else -1_000),
        deadline_at_ms=draw(st.none() | st.integers(-5_000, 5_000).map(lambda shift: NOW.wall_ms + shift)),
        cancel_requested=draw(st.integers(0, 1)) if running else 0,
        suspect=draw(st.integers(0, 1)),
        unacknowledged=draw(st.integers(0, 3)) if epoch else 0,
        deferrals=deferrals,
        deferred_since_ms=NOW.wall_ms - draw(st.integers(0, 8 * limits.DAY_MS)) if deferrals else None,
        releases=draw(st.sampled_from([0, 1, limits.RELEASES_MAX - 1, limits.RELEASES_MAX])),
        finished_at_ms=NOW.wall_ms - 10 if state in FINISHED else None,
        predecessor=3 if state == "blocked" else None,
    )
    return _claimed(draw, job) if epoch else job


def _claimed(draw: st.DrawFn, job: JobRow) -> JobRow:
    """Set the fields of the newest attempt."""
    lasts = draw(st.sampled_from([-1_000, 0, 1, 20_000]))
    return job._replace(
        worker="old",
        incarnation="old-1",
        lease_token="old-token",
        started_at_ms=NOW.wall_ms - 500,
        lease_until_ms=NOW.lease_ms + lasts if job.state == "running" else None,
        outcome=None if job.state == "running" else draw(st.sampled_from(["failed", "expired", "released"])),
        failure_class="transient",
        failure_reason="before",
        failure_message="an earlier attempt failed",
    )


def live_jobs() -> st.SearchStrategy[JobRow]:
    return jobs(("running",)).map(lambda job: job._replace(lease_until_ms=NOW.lease_ms + 1))


def is_late(job: JobRow) -> bool:
    return job.deadline_at_ms is not None and job.deadline_at_ms <= NOW.wall_ms


def lease_of(job: JobRow) -> JobFence:
    return JobFence(job.seq, job.id, job.epoch, job.lease_token or "")


def checked(outcome: Outcome) -> CheckedOutcome:
    return check_outcome(outcome, tenant="default", fresh_id=lambda: "fresh")


OUTCOMES = st.sampled_from(
    [
        checked(Done({"ok": True})),
        checked(Failed("broken")),
        checked(Failed("broken", permanent=True)),
        checked(Failed("broken", retry_after=5)),
        checked(Failed("broken", backoff=Backoff(base=0))),
        checked(Deferred(after=30)),
        checked(Deferred(after=0)),
        checked(Released()),
    ]
)
CHANCES = st.floats(0, 1)

Answer: TypeAlias = Transition | JobRow | None
Operation: TypeAlias = Callable[[JobRow, CheckedOutcome, float], Answer]

# Operations of callers, in any state of the job.
SENT: dict[str, Operation] = {
    "heartbeat": lambda job, _outcome, _chance: transitions.heartbeat(job, lease_of(job), 30_000, NOW),
    "progress": lambda job, _outcome, _chance: transitions.progress(job, lease_of(job), "loading", 40.0, NOW),
    "settle": lambda job, outcome, chance: transitions.settle(job, lease_of(job), outcome, NOW, chance),
    "cancel": lambda job, _outcome, _chance: transitions.cancel(job, force=False, now=NOW),
    "force": lambda job, _outcome, _chance: transitions.cancel(job, force=True, now=NOW),
    "requeue": lambda job, _outcome, _chance: transitions.requeue(job, NOW),
    "reprioritize": lambda job, _outcome, _chance: transitions.reprioritize(job, 9),
}

# Operations of the store itself, on jobs selected by their state.
OWN: dict[str, tuple[tuple[State, ...], Operation]] = {
    "claim": (("ready",), lambda job, _outcome, _chance: transitions.claim(job, REQUEST, 0, NOW)),
    "expire": (("running",), lambda job, _outcome, _chance: transitions.expire(job, NOW)),
    "revoke": (("running",), lambda job, _outcome, chance: transitions.revoke(job, NOW, chance)),
    "promote": (("scheduled",), lambda job, _outcome, _chance: transitions.promote(job)),
    "unblock": (("blocked",), lambda job, _outcome, _chance: transitions.unblock(job, NOW)),
    "miss_deadline": (WAITING, lambda job, _outcome, _chance: transitions.miss_deadline(job, NOW)),
    "retire": (WAITING, lambda job, _outcome, _chance: transitions.retire(job, NOW)),
}


def answer(name: str, job: JobRow, outcome: CheckedOutcome, chance: float) -> Answer | Refused:
    """Apply the operation; a refusal is a result too, and any other error is a defect."""
    operation = SENT[name] if name in SENT else OWN[name][1]
    try:
        return operation(job, outcome, chance)
    except Refused as refused:
        return refused


@st.composite
def steps(draw: st.DrawFn) -> tuple[str, Transition]:
    """Draw an operation that returns a transition; settlements often, because they have the most variants."""
    if draw(st.booleans()):
        job = draw(live_jobs())
        return "settle", transitions.settle(job, lease_of(job), draw(OUTCOMES), NOW, draw(CHANCES))
    name = draw(st.sampled_from(["cancel", "force", "requeue", "reprioritize", *OWN]))
    states = STATES if name in SENT else OWN[name][0]
    given_answer = answer(name, draw(jobs(states)), draw(OUTCOMES), draw(CHANCES))
    assume(isinstance(given_answer, Transition))
    assert isinstance(given_answer, Transition)
    return name, given_answer


# --- total ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SENT)
@given(job=jobs(), outcome=OUTCOMES, chance=CHANCES)
def test_what_callers_send_is_answered_or_refused_in_every_state(
    name: str, job: JobRow, outcome: CheckedOutcome, chance: float
) -> None:
    given_answer = answer(name, job, outcome, chance)
    if name in {"heartbeat", "progress"}:
        assert isinstance(given_answer, JobRow | Refused)
    elif name in {"cancel", "force"}:
        assert given_answer is None or isinstance(given_answer, Transition | Refused)
    else:
        assert isinstance(given_answer, Transition | Refused)
    if isinstance(given_answer, Transition):
        assert given_answer.before == job


@pytest.mark.parametrize("name", OWN)
@given(data=st.data(), outcome=OUTCOMES, chance=CHANCES)
def test_what_a_store_does_by_itself_is_never_refused(
    name: str, data: st.DataObject, outcome: CheckedOutcome, chance: float
) -> None:
    job = data.draw(jobs(OWN[name][0]))
    step = answer(name, job, outcome, chance)
    assert isinstance(step, Transition)
    assert step.before == job


@given(steps())
def test_every_step_names_a_known_event_and_a_last_one_exactly_when_the_job_ends(
    named: tuple[str, Transition],
) -> None:
    _, step = named
    assert step.event in get_args(EventName)
    assert (step.event in TERMINAL) == step.finishes


# --- invariants ----------------------------------------------------------------------------------------------------


@given(steps())
def test_no_job_goes_back_to_waiting_after_its_deadline(named: tuple[str, Transition]) -> None:
    _, step = named
    # A new priority leaves a job where it waits, also past its deadline.
    if step.before.state in {"running", "blocked"} and step.after.state != step.before.state:
        assert not transitions.overdue(step.after, NOW)


@given(steps())
def test_the_epoch_rises_with_a_claim_and_never_falls(named: tuple[str, Transition]) -> None:
    name, step = named
    assert step.after.epoch == step.before.epoch + (name == "claim")


@given(steps())
def test_the_attempt_stays_between_none_and_all(named: tuple[str, Transition]) -> None:
    _, step = named
    assert 0 <= step.after.attempt <= step.after.max_attempts
    if step.after.state in WAITING:
        assert step.after.attempt < step.after.max_attempts


@given(steps())
def test_only_a_requeue_leaves_a_finished_state(named: tuple[str, Transition]) -> None:
    name, step = named
    if step.before.finished:
        assert name == "requeue"
        assert step.before.state in {"failed", "cancelled"}
        assert step.after.state == "ready"


@given(steps())
def test_only_a_running_job_has_a_lease_and_only_a_finished_one_an_end(named: tuple[str, Transition]) -> None:
    _, step = named
    assert (step.after.lease_until_ms is not None) == (step.after.state == "running")
    assert (step.after.finished_at_ms is not None) == step.after.finished


@given(steps())
def test_a_scheduled_job_is_due_later_and_a_ready_one_is_due(named: tuple[str, Transition]) -> None:
    name, step = named
    if name in {"promote", "reprioritize"}:
        return
    if step.after.state == "scheduled":
        assert step.after.due_at_ms > NOW.wall_ms
    elif step.after.state == "ready":
        assert step.after.due_at_ms <= NOW.wall_ms


@given(steps())
def test_no_finished_or_freed_job_waits_for_a_predecessor(named: tuple[str, Transition]) -> None:
    name, step = named
    if step.after.finished or name == "unblock":
        assert step.after.predecessor is None


@given(jobs(FINISHED))
def test_a_finished_job_is_never_overdue(job: JobRow) -> None:
    assert not transitions.overdue(job, NOW)


# --- the lease check -----------------------------------------------------------------------------------------------

FENCED: dict[str, Callable[[JobRow, JobFence], object]] = {
    "heartbeat": lambda job, held: transitions.heartbeat(job, held, 30_000, NOW),
    "progress": lambda job, held: transitions.progress(job, held, "loading", None, NOW),
    "settle": lambda job, held: transitions.settle(job, held, checked(Done()), NOW, 0.5),
}


@pytest.mark.parametrize("name", FENCED)
@given(
    job=live_jobs() | jobs(),
    epoch_shift=st.sampled_from([0, 0, 1, -1]),
    token=st.sampled_from(["old-token", "other"]),
)
def test_a_write_passes_only_with_state_epoch_token_and_time_all_right(
    name: str, job: JobRow, epoch_shift: int, token: str
) -> None:
    held = JobFence(job.seq, job.id, job.epoch + epoch_shift, token)
    live = job.state == "running" and (job.lease_until_ms or 0) > NOW.lease_ms
    if live and epoch_shift == 0 and token == "old-token":
        FENCED[name](job, held)
        return
    with pytest.raises(LeaseLost) as lost:
        FENCED[name](job, held)
    assert (lost.value.job_id, lost.value.epoch) == (job.id, held.epoch)


@given(jobs(("ready",)))
def test_a_claim_starts_a_new_attempt_under_a_new_epoch_and_a_lease_by_the_lease_clock(job: JobRow) -> None:
    after = transitions.claim(job, REQUEST, 0, NOW).after
    assert (after.state, after.epoch, after.attempt) == ("running", job.epoch + 1, job.attempt + 1)
    assert (after.lease_until_ms, after.started_at_ms) == (NOW.lease_ms + 30_000, NOW.wall_ms)
    assert (after.worker, after.incarnation, after.lease_token) == ("new", "new-1", "new-token")
    assert (after.outcome, after.settle_digest, after.phase, after.percent) == (None, None, None, None)


@given(jobs(("running",)), st.integers(10, 60_000))
def test_a_heartbeat_never_shortens_a_lease_and_changes_nothing_else(job: JobRow, lease_ms: int) -> None:
    live = job._replace(lease_until_ms=NOW.lease_ms + 20_000)
    renewed = transitions.heartbeat(live, lease_of(live), lease_ms, NOW)
    assert renewed.lease_until_ms == NOW.lease_ms + max(20_000, lease_ms)
    assert renewed._replace(lease_until_ms=live.lease_until_ms) == live


# --- the end of an attempt -----------------------------------------------------------------------------------------


@given(live_jobs(), OUTCOMES, CHANCES)
def test_a_settle_ends_the_attempt_and_remembers_what_it_said(
    job: JobRow, outcome: CheckedOutcome, chance: float
) -> None:
    step = transitions.settle(job, lease_of(job), outcome, NOW, chance)
    assert step.before == job
    assert step.after.state != "running"
    assert step.after.suspect == 0
    assert transitions.settled_before(step.after, None, lease_of(job), outcome)


@given(live_jobs(), OUTCOMES, OUTCOMES)
def test_a_settle_sent_again_with_another_outcome_is_not_taken_for_the_same(
    job: JobRow, first: CheckedOutcome, second: CheckedOutcome
) -> None:
    step = transitions.settle(job, lease_of(job), first, NOW, 0.5)
    same = first.outcome == second.outcome
    assert transitions.settled_before(step.after, None, lease_of(job), second) == same
    other = lease_of(job)._replace(lease_token="other")
    assert not transitions.settled_before(step.after, None, other, first)


@given(live_jobs(), OUTCOMES.filter(lambda outcome: not isinstance(outcome.outcome, Done)))
def test_a_settlement_in_history_is_recognised_by_its_own_token_and_digest(
    job: JobRow, outcome: CheckedOutcome
) -> None:
    step = transitions.settle(job, lease_of(job), outcome, NOW, 0.5)
    again = step.after._replace(epoch=job.epoch + 1, lease_token="new-token", settle_digest=None)
    assert transitions.settled_before(again, ("old-token", outcome.digest), lease_of(job), outcome)
    assert not transitions.settled_before(again, ("old-token", "other"), lease_of(job), outcome)
    assert not transitions.settled_before(again, ("other", outcome.digest), lease_of(job), outcome)
    assert not transitions.settled_before(again, ("old-token", None), lease_of(job), outcome)
    assert not transitions.settled_before(again, None, lease_of(job), outcome)


@given(live_jobs())
def test_a_success_is_never_history_so_that_a_later_attempt_hides_it(job: JobRow) -> None:
    again = transitions.settle(job, lease_of(job), checked(Done()), NOW, 0.5).after._replace(epoch=job.epoch + 1)
    assert not transitions.settled_before(again, (job.lease_token, None), lease_of(job), checked(Done()))


@given(live_jobs(), st.sampled_from([checked(Deferred(after=30)), checked(Released()), checked(Failed("broken"))]))
def test_a_requested_cancel_leaves_no_way_back_to_waiting(job: JobRow, outcome: CheckedOutcome) -> None:
    asked = job._replace(cancel_requested=1)
    for step in (
        transitions.settle(asked, lease_of(asked), outcome, NOW, 0.5),
        transitions.expire(asked, NOW),
        transitions.revoke(asked, NOW, 0.5),
    ):
        assert step.after.state == "cancelled"


@given(live_jobs(), OUTCOMES, CHANCES)
def test_deferrals_and_releases_give_the_attempt_back_and_failures_do_not(
    job: JobRow, outcome: CheckedOutcome, chance: float
) -> None:
    step = transitions.settle(job, lease_of(job), outcome, NOW, chance)
    given_back = step.event in {"deferred", "released"}
    assert step.after.attempt == job.attempt - given_back


def acknowledged_jobs() -> st.SearchStrategy[JobRow]:
    return live_jobs().map(lambda job: job._replace(unacknowledged=0))


@given(live_jobs(), st.booleans(), st.integers(1, limits.UNACKNOWLEDGED_MAX))
def test_a_lease_never_acknowledged_spends_no_attempt_until_the_third_in_a_row(
    job: JobRow, was_alive: bool, unacknowledged: int
) -> None:
    job = job._replace(unacknowledged=unacknowledged)
    last = unacknowledged == limits.UNACKNOWLEDGED_MAX
    for step in (transitions.expire(job, NOW, was_alive=was_alive), transitions.revoke(job, NOW, 0.5)):
        assert step.before == job
        assert step.after.epoch == job.epoch
        if job.cancel_requested:
            assert step.after.state == "cancelled"
        elif is_late(job) and not last:
            assert (step.after.state, step.after.failure_reason) == ("failed", "deadline_passed")
        elif not last:
            assert (step.after.state, step.after.outcome) == ("ready", "released")
            assert (step.after.attempt, step.after.unacknowledged) == (job.attempt - 1, unacknowledged)
            assert (step.after.suspect, step.after.failure) == (job.suspect, job.failure)
            assert (step.after.releases, step.after.due_at_ms) == (job.releases, job.due_at_ms)
        else:
            assert step.after.unacknowledged == 0
    if last:
        assert transitions.expire(job, NOW).after.attempt == job.attempt
        assert transitions.expire(job, NOW).after.suspect == 1


@given(jobs(("ready",)), st.integers(0, 2))
def test_what_a_claim_takes_ahead_is_not_acknowledged(job: JobRow, ahead_from: int) -> None:
    request = REQUEST._replace(acknowledged=ahead_from)
    for place in range(3):
        after = transitions.claim(job, request, place, NOW).after
        assert after.unacknowledged == (0 if place < ahead_from else job.unacknowledged + 1)


@given(live_jobs(), OUTCOMES, CHANCES)
def test_acknowledging_and_settling_end_the_row_of_claims_not_acknowledged(
    job: JobRow, outcome: CheckedOutcome, chance: float
) -> None:
    assert transitions.heartbeat(job, lease_of(job), 1, NOW).unacknowledged == job.unacknowledged
    assert transitions.heartbeat(job, lease_of(job), 1, NOW, acknowledges=True).unacknowledged == 0
    assert transitions.settle(job, lease_of(job), outcome, NOW, chance).after.unacknowledged == 0


@given(live_jobs())
def test_a_withdrawn_claim_leaves_nothing_but_its_epoch(job: JobRow) -> None:
    waiting = job._replace(
        state="ready", attempt=job.attempt - 1, epoch=job.epoch - 1, cancel_requested=0, deadline_at_ms=None
    )
    claimed = transitions.claim(waiting, REQUEST._replace(acknowledged=0), 0, NOW).after
    step = transitions.withdraw(claimed, claimed, NOW)
    assert step is not None
    kept = ("state", "attempt", "due_at_ms", "suspect", "releases", "deferrals", "failure", "unacknowledged")
    assert [getattr(step.after, name) for name in kept] == [getattr(waiting, name) for name in kept]
    assert step.after.epoch == waiting.epoch + 1
    assert transitions.withdraw(claimed, claimed._replace(epoch=1_000), NOW) is None
    assert transitions.withdraw(step.after, claimed, NOW) is None
    # The caller of the same claim, sent again, has acknowledged it.
    acknowledged = transitions.heartbeat(claimed, lease_of(claimed), 1, NOW, acknowledges=True)
    assert transitions.withdraw(acknowledged, claimed, NOW) is None
    assert transitions.withdraw(acknowledged, acknowledged, NOW) is not None


@given(acknowledged_jobs())
def test_a_holder_that_lived_leaves_no_suspicion(job: JobRow) -> None:
    fresh = job._replace(suspect=0, cancel_requested=0)
    was_alive = transitions.expire(fresh, NOW, was_alive=True).after
    assert (was_alive.attempt, was_alive.suspect, is_suspect(job_of(was_alive))) == (job.attempt, 0, False)
    suspected = transitions.expire(fresh, NOW).after
    cleared = transitions.clear_suspicion(suspected, "old", "old-1")
    if suspected.state == "ready":
        assert is_suspect(job_of(suspected))
        assert cleared == was_alive
        assert transitions.clear_suspicion(suspected, "old", "old-2") is None
        assert transitions.clear_suspicion(suspected, "other", "old-1") is None
    else:
        assert cleared is None


@given(jobs())
def test_only_a_expire_leaves_a_suspicion_to_clear(job: JobRow) -> None:
    cleared = transitions.clear_suspicion(job, "old", "old-1")
    if cleared is not None:
        assert (job.suspect, job.outcome, job.state in WAITING) == (1, "expired", True)
        assert (cleared.suspect, cleared.epoch, cleared.attempt) == (0, job.epoch, job.attempt)


@given(acknowledged_jobs())
def test_a_expire_spends_the_attempt_and_makes_the_job_suspect(job: JobRow) -> None:
    step = transitions.expire(job, NOW)
    assert step.before == job
    assert (step.after.attempt, step.after.suspect) == (job.attempt, 1)
    used_up = job.attempt >= job.max_attempts
    if used_up and not job.cancel_requested:
        assert (step.after.state, step.after.failure_reason) == ("failed", "lease_expired")


@given(acknowledged_jobs(), CHANCES)
def test_taking_back_gives_the_attempt_back_as_often_as_a_release_may(job: JobRow, chance: float) -> None:
    step = transitions.revoke(job, NOW, chance)
    too_often = job.releases >= limits.RELEASES_MAX
    if not job.cancel_requested and not is_late(job):
        assert step.after.attempt == job.attempt - (not too_often)
        assert step.after.suspect == 1


@given(steps())
def test_the_attempt_that_ended_keeps_the_number_it_ran_under(named: tuple[str, Transition]) -> None:
    _, step = named
    ended = transitions.attempt_ended(step, NOW)
    if ended is not None:
        assert (ended.epoch, ended.number) == (step.before.epoch, step.before.attempt)
        assert ended.outcome is not None


@given(steps())
def test_an_attempt_goes_into_history_exactly_when_its_job_goes_on_without_it(named: tuple[str, Transition]) -> None:
    name, step = named
    leaves = step.before.state == "running" and step.after.state in WAITING
    runs_again = name == "requeue" and step.before.epoch > 0
    assert (transitions.attempt_ended(step, NOW) is not None) == (leaves or runs_again)


# --- operators -----------------------------------------------------------------------------------------------------


@given(jobs(("done", "failed", "retired")), st.booleans())
def test_a_finished_job_cannot_be_cancelled_and_a_cancelled_one_stays_so(job: JobRow, force: bool) -> None:
    with pytest.raises(Conflict):
        transitions.cancel(job, force=force, now=NOW)
    assert transitions.cancel(job._replace(state="cancelled"), force=force, now=NOW) is None


@given(jobs(("failed", "cancelled")))
def test_a_requeued_job_starts_afresh_but_keeps_its_epoch(job: JobRow) -> None:
    after = transitions.requeue(job, NOW).after
    assert (after.attempt, after.epoch, after.deadline_at_ms) == (0, job.epoch, None)
    assert (after.deferrals, after.deferred_since_ms, after.releases) == (0, None, 0)
    assert (after.cancel_requested, after.suspect, after.finished_at_ms) == (0, 0, None)
    assert after.due_at_ms == NOW.wall_ms
