"""A process may die before any statement, and a result may be lost after any commit.

Every operation is interrupted before each of its statements: the store must be unchanged. Every call that may be
repeated is repeated after its result was lost: it must return the same and change nothing. Every store must pass this
file unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, Literal, NamedTuple

import pytest

from holdfast import Artifact, Claim, Deferred, Done, Failed, Outcome, Queue, Released
from holdfast.types import SessionClaim, SessionLease, Upload
from tests.support.claims import claim_one
from tests.support.faults import AnswerLost, Crashed
from tests.support.stores import Harness


class Case(NamedTuple):
    """An operation and its preparation."""

    arrange: Callable[[Harness, Queue], Any]
    """Prepares the store and returns the argument of the call."""
    call: Callable[[Queue, Any], Any]


def nothing(_harness: Harness, _queue: Queue) -> None:
    """Leave the store empty."""


def one_waiting(_harness: Harness, queue: Queue) -> None:
    queue.enqueue("work", job_id="a", tags={"order": "1"}, dedupe_key="k", events="all")


def one_running(harness: Harness, queue: Queue) -> Claim:
    one_waiting(harness, queue)
    return claim_one(queue, lease=30)


def one_running_and_succeeded(harness: Harness, queue: Queue) -> Claim:
    claim = one_running(harness, queue)
    queue.enqueue("work", dedupe_key="k", on_duplicate="run_again")
    return claim


def one_failed(harness: Harness, queue: Queue) -> None:
    queue.settle(one_running(harness, queue), Failed("no", permanent=True))


def due_maintenance(harness: Harness, queue: Queue) -> None:
    """Create one job that is due, one expired, one past its deadline and one ready."""
    queue.enqueue("work", delay=10, job_id="due")
    queue.enqueue("work", job_id="expired", tenant="b")
    claim_one(queue, lease=5)
    queue.enqueue("work", deadline=5, job_id="overdue")
    queue.enqueue("work", job_id="ready", tenant="c", affinity="m")
    harness.clock.advance(20)


def gates_full(_harness: Harness, queue: Queue) -> Claim:
    """Fill one gate of two; the other has room, and jobs are parked at the first."""
    queue.limits.set("llm", kinds=["call"], key="tenant", concurrency=1)
    queue.limits.set("rate", kinds=["call"], rate=10)
    for tenant in ("a", "a", "a", "b"):
        queue.enqueue("call", tenant=tenant)
    claim = claim_one(queue, tenant="a", lease=30)
    assert queue.claim(tenant="a") is None
    return claim


def room_at_a_gate(harness: Harness, queue: Queue) -> None:
    queue.settle(gates_full(harness, queue), Done())


def gates_of_a_removed_limit(harness: Harness, queue: Queue) -> None:
    gates_full(harness, queue)
    queue.limits.remove("llm")


def tokens_in_use(_harness: Harness, queue: Queue) -> Claim:
    """Let a job use more than half of what its key has; another one waits."""
    queue.limits.set("tokens", kinds=["call"], key="tenant", rate=100, weight="tokens")
    for _ in range(2):
        queue.enqueue("call", limit_weight=60)
    [claim] = queue.claim_many(limit=2, lease=30)
    return claim


def tokens_returned(harness: Harness, queue: Queue) -> None:
    queue.settle(tokens_in_use(harness, queue), Done(usage={"tokens": 5}))


def one_debounced(_harness: Harness, queue: Queue) -> None:
    queue.enqueue("work", 1, dedupe_key="k", debounce=5, events="all")


def turns_full(_harness: Harness, queue: Queue) -> SessionClaim:
    """Let a turn of one session fill the gate; others wait, of which one has met it and is parked."""
    queue.limits.set("turns", kinds=["say"], key="tenant", concurrency=1)
    for n in range(4):
        queue.enqueue("say", n, session="s" if n < 2 else f"s{n}", join=True, events="all")
    turn = queue.sessions.claim("s", lease_token="first", worker="w", incarnation="i", lease=30)
    assert turn is not None
    assert queue.sessions.claim("s2") is None
    return turn


def turn_ended(harness: Harness, queue: Queue) -> None:
    queue.sessions.settle(turns_full(harness, queue), Done())


def turns_of_a_removed_limit(harness: Harness, queue: Queue) -> None:
    turns_full(harness, queue)
    queue.limits.remove("turns")


def turns_without_a_limit(_harness: Harness, queue: Queue) -> None:
    """Let a turn run while other sessions and jobs wait."""
    for n in range(3):
        queue.enqueue("say", n, session=f"s{n // 2}", join=True)
        queue.enqueue("say", n)
    assert queue.sessions.claim("s0", limit=2) is not None
    assert queue.claim() is not None


def lane_late(harness: Harness, queue: Queue) -> None:
    queue.lanes.set("default", target_age=60)
    queue.enqueue("work", job_id="a", events="all")
    queue.claim_many(kinds=["none"])
    harness.clock.advance(70)


def lane_recovered(harness: Harness, queue: Queue) -> None:
    lane_late(harness, queue)
    queue.claim_many(kinds=["none"])
    queue.settle(claim_one(queue), Done())
    harness.clock.advance(60)


def session_lane_late(harness: Harness, queue: Queue) -> None:
    queue.lanes.set("default", target_age=60)
    session_waiting(harness, queue)
    queue.claim_many(kinds=["none"])
    harness.clock.advance(70)


def schedules_due(harness: Harness, queue: Queue) -> None:
    """Set three schedules of which two are due and one is paused."""
    overlaps: dict[str, Literal["allow", "skip"]] = {"a": "allow", "b": "skip", "c": "allow"}
    for name, overlap in overlaps.items():
        queue.schedules.set(name, kind=f"kind {name}", every=60, overlap=overlap)
    queue.schedules.pause("c")
    harness.clock.advance(60)


def parents_of_one(harness: Harness, queue: Queue) -> Claim:
    """Create a job that depends on one that runs and on one that is done, and one that depends on the first."""
    queue.enqueue_many([{"kind": "work", "job_id": name, "priority": 1} for name in ("a", "b")])
    queue.enqueue("work", job_id="c", after=["a", "b"], events="all")
    queue.enqueue("work", job_id="d", after=["c"])
    first, second = queue.claim_many(worker="w", incarnation="i", lease=30)
    queue.settle(second, Done())
    return first


def parents_ended(harness: Harness, queue: Queue) -> None:
    queue.settle(parents_of_one(harness, queue), Done())


def parent_failed(harness: Harness, queue: Queue) -> None:
    queue.settle(parents_of_one(harness, queue), Failed("no", permanent=True))


def children_cancelled(harness: Harness, queue: Queue) -> None:
    parent_failed(harness, queue)
    for _ in range(2):
        queue.claim_many(kinds=["none"])


def held_by_an_earlier_start(harness: Harness, queue: Queue) -> None:
    one_waiting(harness, queue)
    claim_one(queue, worker="gpu", incarnation="first", exclusive=True)


def one_taken_ahead(_: Harness, queue: Queue) -> Any:
    queue.enqueue("work", job_id="a", events="all")
    return claim_one(queue, worker="w", incarnation="i", lease=30, acknowledged=0)


def taken_ahead_and_expired(harness: Harness, queue: Queue) -> Any:
    one_taken_ahead(harness, queue)
    harness.clock.advance(60)


def suspect_and_expired(harness: Harness, queue: Queue) -> Any:
    """Create one suspect job, and one whose lease has expired but was not taken back."""
    queue.enqueue("work", job_id="a")
    claim_one(queue, worker="w", incarnation="i", lease=5)
    harness.clock.advance(5)
    queue.claim_many(kinds=[])
    queue.enqueue("work", job_id="b", priority=1)
    claim_one(queue, worker="w", incarnation="i", lease=5)
    harness.clock.advance(5)


def make_group(queue: Queue) -> None:
    callbacks: Any = {event: {"kind": event} for event in ("on_end", "on_success", "on_first_failure")}
    with queue.group("g", **callbacks) as group:
        group.enqueue("page", job_id="failed", events="all", max_attempts=1)
        group.enqueue("page", job_id="late", after=["failed"], on_failed="run")
        group.enqueue("other", job_id="done")


def member_ended(_harness: Harness, queue: Queue) -> None:
    """Create a group of which one member is done, one has failed and one is cancelled."""
    make_group(queue)
    queue.settle(claim_one(queue, kinds=["page"]), Failed("no", permanent=True))
    queue.settle(claim_one(queue, kinds=["other"]), Done())
    queue.cancel("late")


def member_counted(harness: Harness, queue: Queue) -> None:
    """Create a group of which one member has failed, which was counted."""
    make_group(queue)
    queue.settle(claim_one(queue, kinds=["page"]), Failed("no", permanent=True))
    queue.claim_many(kinds=[])


def one_uploaded(_harness: Harness, queue: Queue) -> Upload:
    return queue.uploads.send(b"u" * 300_000)


def one_with_inputs(_harness: Harness, queue: Queue) -> None:
    queue.enqueue("work", job_id="a", dedupe_key="k", events="all", artifacts=[Artifact("old", b"o")])


def one_running_and_uploaded(harness: Harness, queue: Queue) -> tuple[Claim, Upload]:
    return one_running(harness, queue), one_uploaded(harness, queue)


def session_waiting(_harness: Harness, queue: Queue) -> None:
    for n in range(3):
        queue.enqueue("say", n, session="s", join=True, message_id=str(n), events="all")


def session_running(harness: Harness, queue: Queue) -> SessionClaim:
    session_waiting(harness, queue)
    claim = queue.sessions.claim("s", limit=2, lease_token="n", worker="w", incarnation="i")
    assert claim is not None
    return claim


def session_open(harness: Harness, queue: Queue) -> SessionLease:
    session_waiting(harness, queue)
    lease = queue.sessions.open("s", worker="w", lease_token="t")
    queue.sessions.claim("s", session_lease=lease, limit=2)
    harness.clock.advance(1)
    return lease


def session_with_due_maintenance(harness: Harness, queue: Queue) -> None:
    """Create a session with an entry that is due, one expired and one past its deadline."""
    queue.enqueue("say", "due", session="s", delay=10, message_id="due")
    queue.enqueue("say", "expired", session="s", message_id="expired")
    queue.sessions.claim("s", lease=5)
    queue.enqueue("say", "overdue", session="s", deadline=5, message_id="overdue")
    harness.clock.advance(20)


REPEATABLE = {"kind": "say", "session": "s", "join": True}


def settled(outcome: Outcome) -> Callable[[Queue, Any], Any]:
    return lambda queue, claim: queue.settle(claim, outcome)


FOLLOWED = Done({"n": 1}, follow_ups=[{"kind": "next", "job_id": "f"}], artifacts=[Artifact("out", b"x")])

CASES = {
    "enqueue": Case(nothing, lambda queue, _: queue.enqueue("work", {"n": 1}, job_id="a", events="all")),
    "enqueue_many": Case(
        nothing, lambda queue, _: queue.enqueue_many([{"kind": f"kind{n}", "job_id": str(n)} for n in range(3)])
    ),
    "enqueue onto a key": Case(
        one_waiting,
        lambda queue, _: queue.enqueue("work", {"n": 2}, dedupe_key="k", on_duplicate="replace"),
    ),
    "enqueue with a key that is kept": Case(
        nothing, lambda queue, _: queue.enqueue("work", job_id="a", dedupe_key="once", dedupe_for=60)
    ),
    "enqueue a successor": Case(
        one_running,
        lambda queue, _: queue.enqueue("work", {"n": 2}, job_id="s", dedupe_key="k", on_duplicate="run_again"),
    ),
    "claim": Case(one_waiting, lambda queue, _: queue.claim_many(worker="w", incarnation="i", lease_token="t")),
    "claim and maintain": Case(
        due_maintenance, lambda queue, _: queue.claim_many(worker="w", incarnation="i", lease_token="t", limit=10)
    ),
    "claim as an exclusive worker": Case(
        held_by_an_earlier_start,
        lambda queue, _: queue.claim_many(worker="gpu", incarnation="second", exclusive=True, lease_token="t"),
    ),
    "acknowledge": Case(one_taken_ahead, lambda queue, claim: queue.acknowledge(claim)),
    "acknowledge and claim": Case(
        one_taken_ahead,
        lambda queue, claim: queue.settle_and_claim([], started=[claim], worker="w", lease_token="t", kinds=[]),
    ),
    "claim after leases that were not acknowledged": Case(
        taken_ahead_and_expired, lambda queue, _: queue.claim_many(worker="w", incarnation="i", lease_token="t")
    ),
    "claim after being cut off": Case(
        suspect_and_expired,
        lambda queue, _: queue.claim_many(worker="w", incarnation="i", lease_token="t", kinds=[], cut_off=True),
    ),
    "heartbeat": Case(one_running, lambda queue, claim: queue.heartbeat(claim, lease=60)),
    "progress": Case(one_running, lambda queue, claim: queue.progress(claim, phase="loading", percent=5)),
    "attach": Case(one_running, lambda queue, claim: queue.attach(claim, [Artifact("out", b"x")])),
    "enqueue with artifacts": Case(
        one_uploaded,
        lambda queue, upload: queue.enqueue(
            "work", job_id="a", events="all", artifacts=[Artifact("in", b"x"), upload.artifact("large")]
        ),
    ),
    "enqueue other artifacts onto a key": Case(
        one_with_inputs,
        lambda queue, _: queue.enqueue(
            "work", dedupe_key="k", on_duplicate="replace", artifacts=[Artifact("new", b"n")]
        ),
    ),
    "settle with an upload": Case(
        one_running_and_uploaded,
        lambda queue, needed: queue.settle(needed[0], Done(artifacts=[needed[1].artifact("out")])),
    ),
    "emit": Case(one_running, lambda queue, claim: queue.emit(claim, "text", part=0)),
    "settle done": Case(one_running, settled(Done({"n": 1}))),
    "settle done with follow-ups": Case(one_running, settled(FOLLOWED)),
    "settle done before a successor": Case(one_running_and_succeeded, settled(Done())),
    "settle failed": Case(one_running, settled(Failed("no"))),
    "settle deferred": Case(one_running, settled(Deferred(after=5))),
    "settle released": Case(one_running, settled(Released())),
    "settle and claim": Case(
        one_running_and_succeeded,
        lambda queue, claim: queue.settle_and_claim([(claim, Done())], worker="w", incarnation="i", lease_token="t"),
    ),
    "cancel": Case(one_waiting, lambda queue, _: queue.cancel("a")),
    "cancel by force": Case(one_running_and_succeeded, lambda queue, _: queue.cancel("a", force=True)),
    "requeue": Case(one_failed, lambda queue, _: queue.requeue("a")),
    "requeue many": Case(one_failed, lambda queue, _: queue.admin.requeue_many(["a", "none"])),
    "reprioritize": Case(one_waiting, lambda queue, _: queue.reprioritize("a", 7)),
    "enqueue into a session": Case(
        session_waiting,
        lambda queue, _: queue.enqueue_many([{**REPEATABLE, "payload": n, "message_id": f"k{n}"} for n in range(3)]),
    ),
    "claim a session": Case(
        session_waiting,
        lambda queue, _: queue.sessions.claim("s", limit=2, lease_token="n", worker="w", incarnation="i"),
    ),
    "claim any session": Case(
        session_waiting,
        lambda queue, _: queue.sessions.claim_next(limit=2, lease_token="n", worker="w", incarnation="i"),
    ),
    "claim a session and maintain": Case(
        session_with_due_maintenance,
        lambda queue, _: queue.sessions.claim("s", lease_token="n", worker="w", incarnation="i"),
    ),
    "claim any session and maintain": Case(
        session_with_due_maintenance,
        lambda queue, _: queue.sessions.claim_next(lease_token="n", worker="w", incarnation="i"),
    ),
    "take in more at a checkpoint": Case(session_running, lambda queue, turn: queue.sessions.checkpoint(turn)),
    "heartbeat of a session claim": Case(
        session_running, lambda queue, turn: queue.sessions.heartbeat(turn, lease=60)
    ),
    "settle a session claim": Case(
        session_running, lambda queue, turn: queue.sessions.settle(turn, [FOLLOWED, Failed("no", retry_after=5)])
    ),
    "release a session claim": Case(session_running, lambda queue, turn: queue.sessions.settle(turn, Released())),
    "take a session over": Case(
        session_running,
        lambda queue, _: queue.sessions.open("s", worker="other", take_over=True, lease_token="t2"),
    ),
    "renew a session lease": Case(session_open, lambda queue, lease: queue.sessions.renew(lease)),
    "close a session": Case(session_open, lambda queue, lease: queue.sessions.close(lease)),
    "cancel a session": Case(session_waiting, lambda queue, _: queue.sessions.cancel("s")),
    "enqueue after others": Case(
        one_running,
        lambda queue, _: queue.enqueue_many(
            [{"kind": "work", "job_id": "b"}, {"kind": "work", "job_id": "c", "after": ["a", 0]}]
        ),
    ),
    "enqueue with a callback": Case(
        nothing, lambda queue, _: queue.enqueue("work", job_id="a", on_end={"kind": "undo"}, events="all")
    ),
    "requeue with children": Case(children_cancelled, lambda queue, _: queue.requeue("a", with_children=True)),
    "cancel a tree": Case(parents_of_one, lambda queue, _: queue.cancel(root="a", force=True)),
    "settle a parent": Case(parents_of_one, settled(Done())),
    "fail a parent": Case(parents_of_one, settled(Failed("no", permanent=True))),
    "release a child": Case(
        parents_ended, lambda queue, _: queue.claim_many(worker="w", incarnation="i", lease_token="t")
    ),
    "cancel children": Case(
        parent_failed, lambda queue, _: queue.claim_many(worker="w", incarnation="i", lease_token="t")
    ),
    "store a group": Case(one_running, lambda queue, _: make_group(queue)),
    "count members": Case(
        member_ended, lambda queue, _: queue.claim_many(worker="w", incarnation="i", lease_token="t", kinds=[])
    ),
    "requeue a member": Case(member_counted, lambda queue, _: queue.requeue("failed")),
    "cancel a group": Case(member_counted, lambda queue, _: queue.groups.cancel("g")),
    "set a limit": Case(one_running, lambda queue, _: queue.limits.set("a", kinds=["work"], concurrency=1)),
    "change the key of a limit": Case(
        gates_full, lambda queue, _: queue.limits.set("llm", kinds=["call"], concurrency=1)
    ),
    "remove a limit": Case(gates_full, lambda queue, _: queue.limits.remove("llm")),
    "claim at gates": Case(
        gates_full, lambda queue, _: queue.claim_many(limit=9, worker="w", incarnation="i", lease_token="t")
    ),
    "offer room at a gate": Case(
        room_at_a_gate, lambda queue, _: queue.claim_many(limit=9, worker="w", incarnation="i", lease_token="t")
    ),
    "close a gate": Case(gates_full, lambda queue, claim: queue.settle(claim, Deferred(after=20, closes=True))),
    "report usage": Case(tokens_in_use, settled(Done(usage={"tokens": 90}))),
    "return what was not used": Case(
        tokens_returned, lambda queue, _: queue.claim_many(limit=2, worker="w", incarnation="i", lease_token="t")
    ),
    "change a rate": Case(
        tokens_in_use,
        lambda queue, _: queue.limits.set("tokens", kinds=["call"], key="tenant", rate=90, weight="tokens"),
    ),
    "postpone a debounced job": Case(
        one_debounced, lambda queue, _: queue.enqueue("work", 2, dedupe_key="k", debounce=9)
    ),
    "claim after a limit was removed": Case(
        gates_of_a_removed_limit, lambda queue, _: queue.claim_many(limit=9, worker="w", lease_token="t")
    ),
    "set a limit on a backlog of turns": Case(
        turns_without_a_limit, lambda queue, _: queue.limits.set("turns", kinds=["say"], concurrency=1)
    ),
    "give a limit of turns another key": Case(
        turns_full, lambda queue, _: queue.limits.set("turns", kinds=["say"], concurrency=2)
    ),
    "remove a limit of turns": Case(turns_full, lambda queue, _: queue.limits.remove("turns")),
    "claim a session without room": Case(turns_full, lambda queue, _: queue.sessions.claim("s3", lease_token="t")),
    "claim any session after a limit was removed": Case(
        turns_of_a_removed_limit,
        lambda queue, _: queue.sessions.claim_next(lease_token="t", worker="w", incarnation="i"),
    ),
    "settle a turn at a gate": Case(turns_full, lambda queue, turn: queue.sessions.settle(turn, Done())),
    "close the gate of a turn": Case(
        turns_full, lambda queue, turn: queue.sessions.settle(turn, Deferred(after=20, closes=True))
    ),
    "offer room to a session": Case(
        turn_ended, lambda queue, _: queue.sessions.claim_next(lease_token="t", worker="w", incarnation="i")
    ),
    "cancel a session at a gate": Case(turns_full, lambda queue, _: queue.sessions.cancel("s2")),
    "set a target age": Case(one_waiting, lambda queue, _: queue.lanes.set("default", target_age=60)),
    "find a lane late": Case(
        lane_late, lambda queue, _: queue.claim_many(worker="w", lease_token="t", kinds=["none"])
    ),
    "find a lane late by a session": Case(
        session_lane_late, lambda queue, _: queue.claim_many(worker="w", lease_token="t", kinds=["none"])
    ),
    "find a lane recovered": Case(
        lane_recovered, lambda queue, _: queue.claim_many(worker="w", lease_token="t", kinds=["none"])
    ),
    "set a schedule": Case(nothing, lambda queue, _: queue.schedules.set("a", kind="work", every=60)),
    "change a schedule": Case(schedules_due, lambda queue, _: queue.schedules.set("a", kind="work", every=90)),
    "fire schedules": Case(
        schedules_due, lambda queue, _: queue.claim_many(worker="w", incarnation="i", lease_token="t")
    ),
    "pause a schedule": Case(schedules_due, lambda queue, _: queue.schedules.pause("a")),
    "resume a schedule": Case(schedules_due, lambda queue, _: queue.schedules.resume("c")),
    "run a schedule": Case(schedules_due, lambda queue, _: queue.schedules.run("a")),
    "remove a schedule": Case(schedules_due, lambda queue, _: queue.schedules.remove("a")),
    "set a lane": Case(one_waiting, lambda queue, _: queue.lanes.set("default", state="draining")),
}

# A repeated requeue is refused, because the job is no longer failed, as is the removal of what is gone; a schedule
# that is run twice enqueues two jobs, a group that is stored twice is sealed, and a debounced job is postponed again.
# All other calls are repeated.
_ONCE = {
    *("requeue", "requeue with children", "requeue a member", "store a group", "postpone a debounced job"),
    *("run a schedule", "remove a schedule", "remove a limit", "remove a limit of turns"),
}
REPEATED = [name for name in CASES if name not in _ONCE]


def snapshot(queue: Queue) -> object:
    jobs = queue.jobs(limit=1000).jobs
    return (
        jobs,
        queue.events(limit=1000).events,
        queue.lanes.list(),
        queue.schedules.list(),
        queue.groups.list(),
        queue.limits.list(),
        [(queue.attempts(job.id), queue.artifacts(job.id), queue.output(job.id)) for job in jobs],
    )


@pytest.mark.parametrize("name", CASES)
def test_a_crash_before_any_statement_leaves_the_store_as_it_was(durable_harness: Harness, name: str) -> None:
    harness, case = durable_harness, CASES[name]
    queue = harness.open()
    needed = case.arrange(harness, queue)
    before, rows = snapshot(queue), harness.rows()
    crashes = 0
    for statement in count(1):
        harness.faults.crash_before(statement)
        try:
            case.call(queue, needed)
        except Crashed:
            crashes += 1
            queue = harness.reopen()
            assert harness.rows() == rows, f"after a crash before statement {statement}"
        else:
            break
    harness.faults.calm()
    # Begin, at least one write, and commit: fewer crashes mean that the fault was not injected.
    assert crashes >= 3
    assert snapshot(queue) != before


@pytest.mark.parametrize("name", REPEATED)
def test_a_call_whose_answer_was_lost_can_be_repeated(durable_harness: Harness, name: str) -> None:
    harness, case = durable_harness, CASES[name]
    queue = harness.open()
    needed = case.arrange(harness, queue)
    before = snapshot(queue)
    harness.faults.lose_reply()
    with pytest.raises(AnswerLost):
        case.call(queue, needed)
    queue = harness.reopen()
    after = snapshot(queue)
    assert after != before
    case.call(queue, needed)
    assert snapshot(queue) == after
