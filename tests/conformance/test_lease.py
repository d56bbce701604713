"""Leases: every write of an attempt is fenced; a stale holder is refused and changes nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast import Artifact, Claim, Deferred, Done, Failed, JobNotFound, LeaseLost, NewJob, Outcome, Queue, Released
from holdfast.types import Renewal
from tests.support.assertions import refused
from tests.support.claims import changed_job, claim_one, known
from tests.support.clock import ManualClock, lease_end

LEASE = 30

# --- fencing: every write in every stale state ----------------------------------------------------------------------


def raise_error(answer: object) -> None:
    if isinstance(answer, Exception):
        raise answer


FULL = Done(1, follow_ups=[NewJob("next")], artifacts=[Artifact("log", b"late")])


def settle_in_transaction(queue: Queue, claim: Claim) -> None:
    with queue.transaction() as transaction:
        transaction.settle(claim, FULL)


WRITES: dict[str, Callable[[Queue, Claim], object]] = {
    "heartbeat": lambda queue, claim: queue.heartbeat(claim),
    "heartbeat_many": lambda queue, claim: raise_error(queue.heartbeat_many([claim])[0]),
    "progress": lambda queue, claim: queue.progress(claim, phase="late", percent=99),
    "attach": lambda queue, claim: queue.attach(claim, [Artifact("log", b"late")]),
    "settle done": lambda queue, claim: queue.settle(claim, Done({"late": True})),
    "settle done with follow-ups and artifacts": lambda queue, claim: queue.settle(claim, FULL),
    "settle failed": lambda queue, claim: queue.settle(claim, Failed("late")),
    "settle failed for good": lambda queue, claim: queue.settle(claim, Failed("late", permanent=True)),
    "settle deferred": lambda queue, claim: queue.settle(claim, Deferred(after=5)),
    "settle released": lambda queue, claim: queue.settle(claim, Released()),
    "settle_many": lambda queue, claim: raise_error(queue.settle_many([(claim, FULL)])[0].error),
    "settle in a transaction": settle_in_transaction,
}


def with_job(claim: Claim, **changes: object) -> Claim:
    """Return a forged claim whose job has *changes*."""
    return Claim(changed_job(claim.job, **changes), claim.lease_ms)


def expired_and_not_taken_back(queue: Queue, clock: ManualClock, claim: Claim) -> Claim:
    clock.advance(LEASE)
    return claim


def expired_and_claimed_again(queue: Queue, clock: ManualClock, claim: Claim) -> Claim:
    clock.advance(LEASE)
    claim_one(queue, lease=LEASE)
    return claim


def expired_and_claimed_again_with_the_same_token(queue: Queue, clock: ManualClock, claim: Claim) -> Claim:
    clock.advance(LEASE)
    assert claim_one(queue, lease=LEASE, lease_token=claim.lease_token).epoch == claim.epoch + 1
    return claim


def released(queue: Queue, clock: ManualClock, claim: Claim) -> Claim:
    queue.settle(claim, Failed("first", reason="first", retry_after=0))
    return claim


def released_and_claimed_again(queue: Queue, clock: ManualClock, claim: Claim) -> Claim:
    queue.settle(claim, Failed("first", reason="first", retry_after=0))
    claim_one(queue, lease=LEASE)
    return claim


def settled_otherwise(queue: Queue, clock: ManualClock, claim: Claim) -> Claim:
    queue.settle(claim, Done("first"))
    return claim


def cancelled_by_force(queue: Queue, clock: ManualClock, claim: Claim) -> Claim:
    queue.cancel(claim.job.id, force=True)
    return claim


def cancelled_and_requeued(queue: Queue, clock: ManualClock, claim: Claim) -> Claim:
    queue.cancel(claim.job.id, force=True)
    queue.requeue(claim.job.id)
    return claim


def with_a_wrong_token(queue: Queue, clock: ManualClock, claim: Claim) -> Claim:
    return with_job(claim, lease_token="wrong")


def with_an_older_epoch(queue: Queue, clock: ManualClock, claim: Claim) -> Claim:
    return with_job(claim, epoch=claim.epoch - 1)


def with_a_newer_epoch(queue: Queue, clock: ManualClock, claim: Claim) -> Claim:
    return with_job(claim, epoch=claim.epoch + 1)


STALE = [
    expired_and_not_taken_back,
    expired_and_claimed_again,
    expired_and_claimed_again_with_the_same_token,
    released,
    released_and_claimed_again,
    settled_otherwise,
    cancelled_by_force,
    cancelled_and_requeued,
    with_a_wrong_token,
    with_an_older_epoch,
    with_a_newer_epoch,
]


@pytest.mark.parametrize("become_stale", STALE, ids=lambda how: how.__name__)
def test_a_stale_holder_is_refused_and_changes_nothing(
    queue: Queue, clock: ManualClock, become_stale: Callable[[Queue, ManualClock, Claim], Claim]
) -> None:
    enqueued = queue.enqueue("mail", events="all", max_attempts=3)
    stale = become_stale(queue, clock, claim_one(queue, lease=LEASE))
    before = known(queue, enqueued.id)
    # A refused write changes nothing, so the next one meets the same state.
    for name, write in WRITES.items():
        with pytest.raises(LeaseLost) as lost:
            write(queue, stale)
        assert (lost.value.job_id, lost.value.epoch) == (enqueued.id, stale.epoch), name
        assert known(queue, enqueued.id) == before, name


@pytest.mark.parametrize("write", WRITES)
def test_a_holder_with_a_valid_lease_is_not_refused(queue: Queue, clock: ManualClock, write: str) -> None:
    enqueued = queue.enqueue("mail", events="all")
    claim = claim_one(queue, lease=LEASE)
    clock.advance(LEASE - 0.001)
    before = known(queue, enqueued.id)
    WRITES[write](queue, claim)
    assert known(queue, enqueued.id) != before


@pytest.mark.parametrize("write", WRITES)
def test_a_claim_on_a_deleted_job_is_refused(queue: Queue, clock: ManualClock, write: str) -> None:
    queue.enqueue("mail")
    claim = claim_one(queue)
    queue.cancel(claim.job.id, force=True)
    clock.advance(1)
    queue.admin.prune(older_than=0)
    with pytest.raises((LeaseLost, JobNotFound)):
        WRITES[write](queue, claim)
    assert queue.counts() == {}


def test_a_claim_of_one_job_gives_no_access_to_another(queue: Queue) -> None:
    queue.enqueue_many([NewJob("mail"), NewJob("mail")])
    first, second = queue.claim_many(lease_token="t1")
    queue.settle(first, Done())
    forged = with_job(first, id=second.job.id)
    with pytest.raises((LeaseLost, JobNotFound)):
        queue.settle(forged, Done("forged"))
    assert queue.get(second.job.id).state == "running"


# --- heartbeats ----------------------------------------------------------------------------------------------------


class TestHeartbeat:
    def test_it_extends_the_lease_by_its_original_duration_from_now(self, queue: Queue, clock: ManualClock) -> None:
        queue.enqueue("mail")
        claim = claim_one(queue, lease=LEASE)
        clock.advance(20)
        renewal = queue.heartbeat(claim)
        job = queue.get(claim.job.id)
        assert job.lease_until == lease_end(clock, LEASE)
        assert renewal == Renewal(Claim(job, claim.lease_ms).lease_until, cancel_requested=False)

    def test_it_may_set_another_duration(self, queue: Queue, clock: ManualClock) -> None:
        queue.enqueue("mail")
        claim = claim_one(queue, lease=LEASE)
        queue.heartbeat(claim, lease=300)
        assert queue.get(claim.job.id).lease_until == lease_end(clock, 300)

    def test_it_never_shortens_a_lease(self, queue: Queue, clock: ManualClock) -> None:
        queue.enqueue("mail")
        claim = claim_one(queue, lease=LEASE)
        renewal = queue.heartbeat(claim, lease=1)
        assert renewal.lease_until == claim.lease_until
        assert queue.get(claim.job.id) == claim.job

    def test_heartbeats_keep_a_lease_indefinitely(self, queue: Queue, clock: ManualClock) -> None:
        queue.enqueue("mail")
        claim = claim_one(queue, lease=LEASE)
        for _ in range(10):
            clock.advance(LEASE - 1)
            assert queue.claim() is None
            queue.heartbeat(claim)
        assert queue.settle(claim, Done()).attempt == 1

    def test_it_reports_a_requested_cancel(self, queue: Queue) -> None:
        queue.enqueue("mail")
        claim = claim_one(queue)
        assert not queue.heartbeat(claim).cancel_requested
        queue.cancel(claim.job.id)
        assert queue.heartbeat(claim).cancel_requested
        assert queue.heartbeat(claim, lease=0.01).cancel_requested

    def test_a_zombies_heartbeat_does_not_extend_the_new_lease(self, queue: Queue, clock: ManualClock) -> None:
        queue.enqueue("mail")
        zombie = claim_one(queue, lease=LEASE)
        clock.advance(LEASE)
        current = claim_one(queue, lease=LEASE)
        with pytest.raises(LeaseLost):
            queue.heartbeat(zombie, lease=3600)
        assert queue.get(current.job.id) == current.job

    def test_the_results_of_many_are_in_order(self, queue: Queue, clock: ManualClock) -> None:
        queue.enqueue_many([NewJob("mail") for _ in range(4)])
        claims = queue.claim_many(lease=LEASE)
        queue.settle(claims[1], Done())
        queue.cancel(claims[2].job.id)
        clock.advance(10)
        answers = queue.heartbeat_many([*claims, with_job(claims[3], lease_token="wrong")])
        kinds = [answer.cancel_requested if isinstance(answer, Renewal) else type(answer) for answer in answers]
        assert kinds == [False, LeaseLost, True, False, LeaseLost]
        for claim in (claims[0], claims[2], claims[3]):
            assert queue.get(claim.job.id).lease_until == lease_end(clock, LEASE)

    def test_an_empty_list_returns_an_empty_list(self, queue: Queue) -> None:
        assert queue.heartbeat_many([]) == []

    def test_each_of_many_keeps_its_own_duration(self, queue: Queue, clock: ManualClock) -> None:
        queue.enqueue_many([NewJob("mail"), NewJob("mail")])
        short, long = claim_one(queue, lease=10), claim_one(queue, lease=100)
        clock.advance(5)
        queue.heartbeat_many([long, short])
        ends = [queue.get(claim.job.id).lease_until for claim in (short, long)]
        assert ends == [lease_end(clock, 10), lease_end(clock, 100)]

    @pytest.mark.validation
    @pytest.mark.parametrize("lease", [0, -1, 86_401])
    def test_a_duration_out_of_bounds_is_refused(self, queue: Queue, lease: float) -> None:
        queue.enqueue("mail")
        claim = claim_one(queue)
        with refused(queue, "lease"):
            queue.heartbeat(claim, lease=lease)


# --- progress and artifacts of a running job -----------------------------------------------------------------------


class TestProgress:
    def test_progress_of_a_running_job_is_stored(self, queue: Queue) -> None:
        queue.enqueue("mail")
        claim = claim_one(queue)
        job = queue.progress(claim, phase="loading", percent=40)
        assert (job.phase, job.percent) == ("loading", 40)
        assert queue.get(job.id) == job

    def test_an_option_that_is_not_given_is_unchanged(self, queue: Queue) -> None:
        queue.enqueue("mail")
        claim = claim_one(queue)
        queue.progress(claim, phase="loading", percent=40)
        queue.progress(claim, percent=60)
        job = queue.progress(claim, phase="working")
        assert (job.phase, job.percent) == ("working", 60)

    def test_it_does_not_extend_the_lease(self, queue: Queue, clock: ManualClock) -> None:
        queue.enqueue("mail")
        claim = claim_one(queue, lease=LEASE)
        clock.advance(10)
        assert queue.progress(claim, percent=1).lease_until == claim.job.lease_until

    def test_a_new_attempt_starts_without_progress(self, queue: Queue) -> None:
        queue.enqueue("mail")
        claim = claim_one(queue)
        queue.progress(claim, phase="loading", percent=40)
        queue.settle(claim, Released())
        again = claim_one(queue).job
        assert (again.phase, again.percent) == (None, None)

    @pytest.mark.validation
    @pytest.mark.parametrize("percent", [-1, 101, float("nan")])
    def test_a_percentage_out_of_bounds_is_refused(self, queue: Queue, percent: float) -> None:
        queue.enqueue("mail")
        claim = claim_one(queue)
        with refused(queue, "percent"):
            queue.progress(claim, percent=percent)


class TestAttach:
    def test_artifacts_of_a_running_job_are_stored_with_its_epoch(self, queue: Queue, clock: ManualClock) -> None:
        enqueued = queue.enqueue("mail")
        queue.settle(claim_one(queue), Released())
        claim = claim_one(queue)
        queue.attach(claim, [Artifact("log", b"one", "text/plain"), Artifact("plot", b"two")])
        log, plot = queue.artifacts(enqueued.id)
        assert (log.name, log.media_type, log.size, log.epoch) == ("log", "text/plain", 3, 2)
        assert (plot.name, log.created_at) == ("plot", clock.time)
        assert queue.artifact(enqueued.id, "plot") == Artifact("plot", b"two")

    def test_an_artifact_of_the_same_name_is_replaced(self, queue: Queue) -> None:
        enqueued = queue.enqueue("mail")
        claim = claim_one(queue)
        queue.attach(claim, [Artifact("log", b"one")])
        queue.attach(claim, [Artifact("log", b"another", "text/plain")])
        assert queue.artifact(enqueued.id, "log") == Artifact("log", b"another", "text/plain")


# --- the epoch -----------------------------------------------------------------------------------------------------


def test_the_epoch_increases_with_every_way_to_run_again(queue: Queue, clock: ManualClock) -> None:
    enqueued = queue.enqueue("mail", max_attempts=3)
    again: list[Outcome] = [Failed("no", retry_after=0), Released(), Deferred(after=0)]
    epochs = []
    for outcome in again:
        claim = claim_one(queue)
        epochs.append(claim.epoch)
        queue.settle(claim, outcome)
    epochs.append(claim_one(queue, lease=1).epoch)
    clock.advance(1)
    claim = claim_one(queue, worker="w", incarnation="1", exclusive=True)
    epochs.append(claim.epoch)
    claim = claim_one(queue, worker="w", incarnation="2", exclusive=True)
    epochs.append(claim.epoch)
    queue.settle(claim, Failed("for good", permanent=True))
    queue.requeue(enqueued.id)
    epochs.append(claim_one(queue).epoch)
    queue.cancel(enqueued.id, force=True)
    queue.requeue(enqueued.id)
    epochs.append(claim_one(queue).epoch)
    assert epochs == list(range(1, 9))
