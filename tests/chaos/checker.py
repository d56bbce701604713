"""The rules for every history: each rule yields a sentence for each proven breach.

If a call was announced and did not return, both outcomes are allowed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from holdfast import Job
from holdfast.domain.job import row_of
from holdfast.types import Event
from tests.chaos.history import Act

TERMINAL = frozenset({"done", "failed", "cancelled", "retired"})
ENDS_ATTEMPT = TERMINAL | {"retrying", "deferred", "released", "expired", "taken_back"}


@dataclass
class History:
    """The acts of every process, and the final contents of the store."""

    acts: list[Act]
    jobs: dict[str, Job]
    events: list[Event]
    seen: list[tuple[str, int]] = field(default_factory=list)
    """The events that a concurrent reader saw: each event's job and number, in order."""
    ledger: list[tuple[str, int]] = field(default_factory=list)
    """Rows that callers wrote in their transactions: the job and epoch of each settlement as done."""
    at_once: dict[str, int] = field(default_factory=dict)
    """How many jobs of a kind may run at once for each tenant."""
    one_writer: bool = True
    """Whether one transaction at a time reads the clock and writes. The log is then in commit order; if
    not, only events of one job are ordered, by number, and a claim may commit long after it read the clock."""

    def of(self, *operations: str, certain: bool = True) -> list[Act]:
        return [act for act in self.acts if act.operation in operations and (act.certain or not certain)]

    def events_by_job(self) -> dict[str, list[Event]]:
        found: dict[str, list[Event]] = defaultdict(list)
        for event in self.events if self.one_writer else sorted(self.events, key=lambda event: event.number):
            found[event.job_id].append(event)
        return found

    def recorded_in_full(self) -> set[str]:
        return {job.id for job in self.jobs.values() if row_of(job).record_all}


def breaches(history: History) -> list[str]:
    """Return every breach of every rule; empty if the history is valid."""
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
        yield f"{job} was acknowledged and is missing"


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


def transactions_are_atomic(history: History) -> Iterator[str]:
    rows = Counter(history.ledger)
    for (job, epoch), count in rows.items():
        if count > 1:
            yield f"the ledger has {job} at epoch {epoch} {count} times"
        if (found := history.jobs.get(job)) is None or (found.state, found.epoch) != ("done", epoch):
            yield f"the ledger has {job} at epoch {epoch}, at which it was not done"
    for act in history.of("settle"):
        if act.ledger and not act.again and not rows[act.job, act.epoch]:
            yield f"{act.job} was settled in a transaction without a row in the ledger"


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
            yield f"{job}: epoch {claims[-1].epoch} was given, the store has {found.epoch}"


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
    """Return whether an act may have ended the *earlier* lease before the *later* one was granted."""
    assert later.ended is not None
    return any(
        act.started < later.ended and (act.forced or (act.operation == "settle" and act.epoch == earlier.epoch))
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
    """Return the minimum and maximum by which the store's lease clock can be ahead of the machine's.

    Each claim is a bound: its lease was granted between start and end of the call, in whole milliseconds.
    """
    low, high = float("-inf"), float("inf")
    for act in history.of("claim"):
        assert act.ended is not None
        low = max(low, act.decided_ms - act.ended)
        high = min(high, act.decided_ms - act.started + 1)
    return low, high


def a_limit_is_never_exceeded(history: History) -> Iterator[str]:
    """Count the leases that were certainly held at once: after the claim returned, before anything ended it."""
    endings: dict[str, list[Act]] = defaultdict(list)
    for act in history.of("settle", "cancel", certain=False):
        endings[act.job].append(act)
    _, ahead = clock_offsets(history)
    changes: dict[tuple[str, str], list[tuple[float, int, str]]] = defaultdict(list)
    for claim in history.of("claim"):
        job = history.jobs.get(claim.job)
        if job is None or job.kind not in history.at_once or claim.uncounted:
            continue
        ended = [act.started for act in endings[claim.job] if act.forced or act.epoch == claim.epoch]
        begin, end = claim.ended or 0.0, min([claim.until_ms - ahead, *ended])
        if begin < end:
            changes[job.kind, job.tenant] += [(begin, 1, claim.job), (end, -1, claim.job)]
    for (kind, tenant), found in changes.items():
        running = 0
        for at, change, last in sorted(found):
            running += change
            if change > 0 and running > history.at_once[kind]:
                yield f"{running} jobs {kind} of {tenant} ran at {at:.0f}, {last} the last of them"


def no_write_is_accepted_after_expiry(history: History) -> Iterator[str]:
    low, _ = clock_offsets(history)
    ends: dict[tuple[str, int], list[Act]] = defaultdict(list)
    for act in history.of("claim", "heartbeat", certain=False):
        ends[act.job, act.epoch].append(act)
    for act in history.of("heartbeat", "progress", "settle"):
        # Later calls prove nothing, and a renewal does not count for itself.
        lease_ends = [end.until_ms for end in ends[act.job, act.epoch] if end.started < act.started]
        if not act.again and lease_ends and act.started + low - 1 >= max(lease_ends):
            yield f"{act.job}: {act.operation} of epoch {act.epoch} by {act.actor} was accepted after expiry"


def no_write_of_an_older_epoch_is_accepted(history: History) -> Iterator[str]:
    claims = _claims(history)
    for act in history.of("heartbeat", "progress", "settle"):
        for claim in claims[act.job]:
            if not act.again and claim.epoch > act.epoch and claim.ended is not None and claim.ended < act.started:
                yield f"{act.job}: {act.operation} of epoch {act.epoch} was accepted after epoch {claim.epoch}"
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


def each_end_is_recorded_once(history: History) -> Iterator[str]:
    requeued = Counter(act.job for act in history.of("requeue"))
    perhaps = Counter(act.job for act in history.of("requeue", certain=False))
    events = history.events_by_job()
    for job in history.jobs.values():
        ends = [event.name for event in events[job.id] if event.name in TERMINAL]
        if not 1 + requeued[job.id] <= len(ends) <= 1 + perhaps[job.id]:
            yield f"{job.id} was requeued {requeued[job.id]} times and has {len(ends)} end events"
        elif ends[-1] != job.state:
            yield f"{job.id} is {job.state} and its last end event is {ends[-1]}"


def recorded_transitions_are_valid(history: History) -> Iterator[str]:
    """Check jobs with all events: one attempt at a time, and only a requeue follows an end."""
    full = history.recorded_in_full()
    for job, events in history.events_by_job().items():
        if job not in full:
            continue
        epoch, running, ended = 0, False, False
        for event in events:
            event_epoch = event.details["epoch"]
            wrong = ended and event.name != "requeued"
            if event.name == "claimed":
                wrong = wrong or running or event_epoch != epoch + 1
                epoch, running = epoch + 1, True
            elif event.name in ENDS_ATTEMPT:
                running = False
            wrong = wrong or event_epoch != epoch
            ended = event.name in TERMINAL
            if wrong:
                yield f"{job}: {event.name} at epoch {event_epoch} as event {event.number} is not a valid transition"
                break


def acknowledged_acts_are_recorded(history: History) -> Iterator[str]:
    full = history.recorded_in_full()
    recorded = {(event.job_id, event.name, event.details["epoch"]) for event in history.events}
    for act in history.of("claim", "settle"):
        name = {"claim": "claimed"}.get(act.operation) or _event_of(act)
        if act.job in full and not act.again and (act.job, name, act.epoch) not in recorded:
            yield f"{act.job}: {act.operation} of epoch {act.epoch} was acknowledged; event {name!r} is missing"


def _event_of(settle: Act) -> str:
    if settle.state in TERMINAL:
        return settle.state
    return {"failed": "retrying"}.get(settle.outcome, settle.outcome)


def a_reader_sees_every_event_once_in_order(history: History) -> Iterator[str]:
    written = [(event.job_id, event.number) for event in history.events]
    if history.seen != written:
        first = next((i for i, pair in enumerate(zip(history.seen, written, strict=False)) if pair[0] != pair[1]), -1)
        yield f"{len(written)} events, {len(history.seen)} read; they differ from index {first}"


def a_key_has_one_holder(history: History) -> Iterator[str]:
    """Check the holders of each key in a log in commit order; these jobs have all events."""
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
    transactions_are_atomic,
    epochs_strictly_increase,
    the_last_epoch_is_the_stores,
    live_leases_never_overlap,
    the_lease_clock_runs_evenly,
    a_limit_is_never_exceeded,
    no_write_is_accepted_after_expiry,
    no_write_of_an_older_epoch_is_accepted,
    an_epoch_is_settled_once,
    a_job_is_done_once,
    event_numbers_have_no_gap,
    each_end_is_recorded_once,
    recorded_transitions_are_valid,
    acknowledged_acts_are_recorded,
    a_reader_sees_every_event_once_in_order,
    a_key_has_one_holder,
]
