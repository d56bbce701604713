"""What must be true of every history: each rule yields a sentence for each breach it can prove.

A rule never guesses. Where a call was announced and not answered, both ways it may have gone are allowed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from holdfast import Event, Job
from tests.chaos.history import Act

TERMINAL = frozenset({"done", "failed", "cancelled", "retired"})
ENDS_ATTEMPT = TERMINAL | {"retrying", "deferred", "released", "expired", "taken_back"}


@dataclass
class History:
    """All that is known: what every process did, and what the store holds in the end."""

    acts: list[Act]
    jobs: dict[str, Job]
    events: list[Event]
    seen: list[tuple[str, int]] = field(default_factory=list)
    """What a reader of the event log saw while it grew: each event's job and number, in order."""
    ledger: list[tuple[str, int]] = field(default_factory=list)
    """What callers wrote in their own transactions: the job and epoch each of them settled as done."""
    one_writer: bool = True
    """Whether one transaction at a time reads the clock and writes. The log's order is then that of the commits; if
    not, only the numbers of a job's events tell theirs, and a claim may be given long after it read the clock."""

    def of(self, *deeds: str, certain: bool = True) -> list[Act]:
        return [act for act in self.acts if act.deed in deeds and (act.certain or not certain)]

    def events_by_job(self) -> dict[str, list[Event]]:
        found: dict[str, list[Event]] = defaultdict(list)
        for event in self.events if self.one_writer else sorted(self.events, key=lambda event: event.number):
            found[event.job_id].append(event)
        return found

    def recorded_in_full(self) -> set[str]:
        return {job.id for job in self.jobs.values() if job.record_all}


def breaches(history: History) -> list[str]:
    """Return every breach of every rule; empty if the history is sound."""
    return [f"{rule.__name__}: {breach}" for rule in RULES for breach in rule(history)]


def _claims(history: History) -> dict[str, list[Act]]:
    """Return the acknowledged claims of each job, by epoch."""
    found: dict[str, list[Act]] = defaultdict(list)
    for act in sorted(history.of("claim"), key=lambda act: act.epoch):
        found[act.job].append(act)
    return found


# --- jobs ----------------------------------------------------------------------------------------------------------


def acknowledged_jobs_exist(history: History) -> Iterator[str]:
    for job in sorted({act.job for act in history.of("enqueue", "claim", "settle")} - history.jobs.keys()):
        yield f"{job} was acknowledged and is not there"


def an_id_is_created_once(history: History) -> Iterator[str]:
    created = Counter(act.job for act in history.of("enqueue") if act.created)
    for job, count in created.items():
        if count > 1:
            yield f"{job} was created {count} times"


def every_job_ended(history: History) -> Iterator[str]:
    for job in history.jobs.values():
        if job.state not in TERMINAL:
            yield f"{job.id} is still {job.state}"


def nothing_done_is_undone(history: History) -> Iterator[str]:
    for act in history.of("settle"):
        job = history.jobs.get(act.job)
        if act.state == "done" and job is not None and (job.state, job.epoch) != ("done", act.epoch):
            yield f"{act.job} was done at epoch {act.epoch} and is now {job.state} at {job.epoch}"


def transactions_are_whole(history: History) -> Iterator[str]:
    told = Counter(history.ledger)
    for (job, epoch), count in told.items():
        if count > 1:
            yield f"the ledger has {job} at epoch {epoch} {count} times"
        if (found := history.jobs.get(job)) is None or (found.state, found.epoch) != ("done", epoch):
            yield f"the ledger has {job} at epoch {epoch}, which is not how it was done"
    for act in history.of("settle"):
        if act.ledger and not act.again and not told[act.job, act.epoch]:
            yield f"{act.job} was settled in a transaction of which the ledger knows nothing"


# --- epochs and leases ---------------------------------------------------------------------------------------------


def epochs_strictly_increase(history: History) -> Iterator[str]:
    for job, claims in _claims(history).items():
        for earlier, later in pairwise(claims):
            if earlier.epoch == later.epoch and earlier.token != later.token:
                yield f"{job}: epoch {later.epoch} was given to {earlier.actor} and to {later.actor}"
            if later.ended is not None and later.ended < earlier.started and later.epoch > earlier.epoch:
                yield f"{job}: epoch {earlier.epoch} was given after epoch {later.epoch}"


def the_last_epoch_is_the_stores(history: History) -> Iterator[str]:
    for job, claims in _claims(history).items():
        found = history.jobs.get(job)
        if found is not None and claims[-1].epoch > found.epoch:
            yield f"{job}: epoch {claims[-1].epoch} was given, the store knows of {found.epoch}"


def live_leases_never_overlap(history: History) -> Iterator[str]:
    endings: dict[str, list[Act]] = defaultdict(list)
    for act in history.of("settle", "cancel", certain=False):
        endings[act.job].append(act)
    renewals = _renewals(history)
    _, ahead = clock_offsets(history)
    for job, claims in _claims(history).items():
        for earlier, later in pairwise(claims):
            assert later.ended is not None
            if earlier.epoch == later.epoch or _may_have_ended(endings[job], earlier, later):
                continue
            known = [
                act for act in renewals[job, earlier.epoch] if act.ended is not None and act.ended < later.started
            ]
            until_ms = max(earlier.until_ms, *(act.until_ms for act in known), 0)
            given_ms = later.decided_ms if history.one_writer else later.ended + ahead
            if until_ms > given_ms:
                yield (
                    f"{job}: epoch {later.epoch} was given to {later.actor} at {given_ms:.0f} or before,"
                    f" while {earlier.actor} held epoch {earlier.epoch} until {until_ms}"
                )


def _may_have_ended(endings: list[Act], earlier: Act, later: Act) -> bool:
    """Whether anything may have ended the *earlier* lease before the *later* was given."""
    assert later.ended is not None
    return any(
        act.started < later.ended and (act.forced or (act.deed == "settle" and act.epoch == earlier.epoch))
        for act in endings
    )


def _renewals(history: History) -> dict[tuple[str, int], list[Act]]:
    found: dict[tuple[str, int], list[Act]] = defaultdict(list)
    for act in history.of("heartbeat", certain=False):
        found[act.job, act.epoch].append(act)
    return found


def the_lease_clock_runs_evenly(history: History) -> Iterator[str]:
    low, high = clock_offsets(history)
    if low > high:
        yield f"the lease clock is both at least {low:.1f} and at most {high:.1f} ms ahead of the machine's"


def clock_offsets(history: History) -> tuple[float, float]:
    """Return the least and the most by which the store's lease clock can be ahead of the machine's.

    Each claim bounds it: its lease was given between the call's start and end, in whole milliseconds.
    """
    low, high = float("-inf"), float("inf")
    for act in history.of("claim"):
        assert act.ended is not None
        low = max(low, act.decided_ms - act.ended)
        high = min(high, act.decided_ms - act.started + 1)
    return low, high


def no_write_is_taken_after_a_expire(history: History) -> Iterator[str]:
    low, _ = clock_offsets(history)
    ends: dict[tuple[str, int], list[Act]] = defaultdict(list)
    for act in history.of("claim", "heartbeat", certain=False):
        ends[act.job, act.epoch].append(act)
    for act in history.of("heartbeat", "progress", "settle"):
        # What was asked for later proves nothing, and a renewal nothing for itself.
        told = [end.until_ms for end in ends[act.job, act.epoch] if end.started < act.started]
        if not act.again and told and act.started + low - 1 >= max(told):
            yield f"{act.job}: {act.deed} of epoch {act.epoch} by {act.actor} was taken after its lease ended"


def no_write_is_taken_once_outranked(history: History) -> Iterator[str]:
    claims = _claims(history)
    for act in history.of("heartbeat", "progress", "settle"):
        for claim in claims[act.job]:
            if not act.again and claim.epoch > act.epoch and claim.ended is not None and claim.ended < act.started:
                yield f"{act.job}: {act.deed} of epoch {act.epoch} was taken after epoch {claim.epoch} was given"
                break


def an_epoch_is_settled_once(history: History) -> Iterator[str]:
    counts = Counter((act.job, act.epoch) for act in history.of("settle") if not act.again)
    for (job, epoch), count in counts.items():
        if count > 1:
            yield f"{job}: epoch {epoch} was settled {count} times"


def a_job_is_done_once(history: History) -> Iterator[str]:
    epochs: dict[str, set[int]] = defaultdict(set)
    for act in history.of("settle"):
        if act.state == "done":
            epochs[act.job].add(act.epoch)
    for job, found in epochs.items():
        if len(found) > 1:
            yield f"{job} was done at epochs {sorted(found)}"


# --- events --------------------------------------------------------------------------------------------------------


def event_numbers_have_no_gap(history: History) -> Iterator[str]:
    for job, events in history.events_by_job().items():
        numbers = [event.number for event in events]
        if numbers != list(range(1, len(numbers) + 1)):
            yield f"{job} has events {numbers}"


def each_end_is_told_once(history: History) -> Iterator[str]:
    requeued = Counter(act.job for act in history.of("requeue"))
    perhaps = Counter(act.job for act in history.of("requeue", certain=False))
    events = history.events_by_job()
    for job in history.jobs.values():
        ends = [event.name for event in events[job.id] if event.name in TERMINAL]
        if not 1 + requeued[job.id] <= len(ends) <= 1 + perhaps[job.id]:
            yield f"{job.id} was requeued {requeued[job.id]} times and tells of {len(ends)} ends"
        elif ends[-1] != job.state:
            yield f"{job.id} is {job.state} and tells of {ends[-1]}"


def recorded_lives_are_possible(history: History) -> Iterator[str]:
    """Walk the events of jobs that record all: one attempt at a time, and nothing follows an end but a requeue."""
    full = history.recorded_in_full()
    for job, events in history.events_by_job().items():
        if job not in full:
            continue
        epoch, running, ended = 0, False, False
        for event in events:
            told = event.details["epoch"]
            wrong = ended and event.name != "requeued"
            if event.name == "claimed":
                wrong = wrong or running or told != epoch + 1
                epoch, running = epoch + 1, True
            elif event.name in ENDS_ATTEMPT:
                running = False
            wrong = wrong or told != epoch
            ended = event.name in TERMINAL
            if wrong:
                yield f"{job}: {event.name} at epoch {told} as event {event.number} cannot follow what came before"
                break


def acknowledged_acts_are_recorded(history: History) -> Iterator[str]:
    full = history.recorded_in_full()
    told = {(event.job_id, event.name, event.details["epoch"]) for event in history.events}
    for act in history.of("claim", "settle"):
        name = {"claim": "claimed"}.get(act.deed) or _event_of(act)
        if act.job in full and not act.again and (act.job, name, act.epoch) not in told:
            yield f"{act.job}: {act.deed} of epoch {act.epoch} was acknowledged; there is no event {name!r} of it"


def _event_of(settle: Act) -> str:
    if settle.state in TERMINAL:
        return settle.state
    return {"failed": "retrying"}.get(settle.outcome, settle.outcome)


def a_reader_sees_every_event_once_in_order(history: History) -> Iterator[str]:
    written = [(event.job_id, event.number) for event in history.events]
    if history.seen != written:
        first = next((i for i, pair in enumerate(zip(history.seen, written, strict=False)) if pair[0] != pair[1]), -1)
        yield f"{len(written)} events, {len(history.seen)} read; they part at {first}"


def a_key_has_one_holder(history: History) -> Iterator[str]:
    """Walk a log whose order is that of the commits, and count who holds each key; their jobs record all."""
    if not history.one_writer:
        return
    holders: dict[str, set[str]] = defaultdict(set)
    for event in history.events:
        key = event.tags.get("key")
        if key is None:
            continue
        if event.name in TERMINAL:
            holders[key].discard(event.job_id)
        elif event.name in {"enqueued", "requeued"}:
            holders[key].add(event.job_id)
            if len(holders[key]) > 1:
                yield f"key {key} is held by {sorted(holders[key])}"


RULES: list[Callable[[History], Iterator[str]]] = [
    acknowledged_jobs_exist,
    an_id_is_created_once,
    every_job_ended,
    nothing_done_is_undone,
    transactions_are_whole,
    epochs_strictly_increase,
    the_last_epoch_is_the_stores,
    live_leases_never_overlap,
    the_lease_clock_runs_evenly,
    no_write_is_taken_after_a_expire,
    no_write_is_taken_once_outranked,
    an_epoch_is_settled_once,
    a_job_is_done_once,
    event_numbers_have_no_gap,
    each_end_is_told_once,
    recorded_lives_are_possible,
    acknowledged_acts_are_recorded,
    a_reader_sees_every_event_once_in_order,
    a_key_has_one_holder,
]
