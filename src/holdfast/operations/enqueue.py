"""Taking jobs in: ids and dedupe keys first, then lane and kind, and all new rows in one statement."""

from __future__ import annotations

from collections.abc import Sequence, Set
from operator import itemgetter
from typing import Final, NamedTuple

from holdfast.domain import limits, transitions
from holdfast.domain import new_job as admissions
from holdfast.domain.claims import Claim
from holdfast.domain.clock import Now
from holdfast.domain.errors import InvalidInput, KindRetired, LaneDraining, Refused
from holdfast.domain.events import EventName
from holdfast.domain.job import HOLDING_KEY, Job
from holdfast.domain.new_job import CheckedJob, DedupeKey, key_numbers
from holdfast.domain.results import Enqueued
from holdfast.domain.routing import RouteKey, RoutingTable
from holdfast.operations.apply_transitions import apply_transitions, notify_jobs, records
from holdfast.operations.session_enqueue import Entered, enter_sessions, place_entry, seen_before, write_sessions
from holdfast.storage.contract import Met, SessionName, Transaction

# Each lock takes a place in a table of the server that all its transactions share. An enqueue that brings more keys
# than this relies on the order in which its rows are written; settlements are divided among several transactions.
KEYS_LOCKED_MAX: Final = 256


async def enqueue_job(tx: Transaction, new: CheckedJob, *, resent: bool = False) -> Enqueued:
    """Store one job and return what it led to; *resent* if this very call may have stored it already."""
    if resent and new.digest is None:
        # Nobody else can have drawn its id.
        stored = await tx.job_by_id(new.id)
        if stored is not None:
            return Enqueued(stored, created=True)
    [made] = await enqueue_jobs(tx, [new])
    return made


async def enqueue_jobs(tx: Transaction, wanted: Sequence[CheckedJob], place: str = "jobs") -> list[Enqueued]:
    """Store the jobs of one call, all or none, and return what each led to, in order.

    A refusal says which one it was by *place*, if there were several.
    """
    if not wanted:
        return []
    index = 0
    try:
        shared = [new for new in wanted if is_shared(new)]
        routing, numbers = await tx.begin_enqueue(len(wanted), _lock_numbers((), shared))
        known, holders = await _meet(tx, shared)
        has_entries = any(new.entry is not None for new in wanted)
        entered = await enter_sessions(tx, routing, wanted) if has_entries else {}
        # Each route with the first job that takes it: the one a refusal names.
        routes = {
            new.terms.route: place
            for place, new in reversed([*enumerate(wanted)])
            if new.id not in known and (new.entry is None or seen_before(entered, new) is None)
        }
        for route, index in sorted(routes.items(), key=itemgetter(1)):  # noqa: B007
            _check_welcome(routing, route)
        routing = await _intern_routes(tx, routing, routes.keys())
        intake = _Intake(routing, (await tx.now()), known, holders, {}, [], entered)
        made = []
        for index, new in enumerate(wanted):
            seq = numbers[index]
            if new.digest is None and new.dedupe_key is None and new.entry is None:
                # Nothing it could meet: the common case, and the one that comes by the thousand.
                made.append(Enqueued(_admit(intake, new, seq), created=True))
            else:
                made.append(await _take_in(tx, intake, new, seq))
    except Refused as refusal:
        if len(wanted) > 1:
            refusal.place = f"{place}[{index}]"
        raise
    await _write_new(tx, intake)
    return made


class _Intake(NamedTuple):
    """What one call has met and decided so far."""

    routing: RoutingTable
    now: Now
    known: dict[str, Job]
    """Jobs by id, from the store and from earlier in this call."""
    holders: dict[DedupeKey, Job]
    """The stored jobs that hold a dedupe key of this call, locked."""
    held: dict[DedupeKey, Job]
    """New jobs of this call by their dedupe key."""
    fresh: list[tuple[RouteKey, Job]]
    """New jobs not yet written."""
    entered: dict[SessionName, Entered]
    """The sessions that entries of this call belong to."""


def _check_welcome(routing: RoutingTable, route: RouteKey) -> None:
    if routing.lane(route.lane).state == "draining":
        raise LaneDraining(route.lane)
    if route.kind in routing.retired:
        raise KindRetired(route.kind)


async def _intern_routes(tx: Transaction, routing: RoutingTable, keys: Set[RouteKey]) -> RoutingTable:
    """Return a routing table that contains *keys*; store the missing ones first."""
    missing = sorted(keys - routing.routes.keys())
    if not missing:
        return routing
    if len(routing.routes) + len(missing) > limits.ROUTES_MAX:
        raise InvalidInput(
            "kind",
            f"would bring the combinations of lane, kind and requires beyond {limits.ROUTES_MAX};"
            " names of single things belong into the payload or tags",
        )
    return await tx.add_routes(missing)


async def _meet(tx: Transaction, shared: Sequence[CheckedJob]) -> tuple[dict[str, Job], dict[DedupeKey, Job]]:
    """Lock the jobs that have a chosen id, or hold a dedupe key, of *shared*; return them by id and by key."""
    if not shared:
        return {}, {}
    jobs = await tx.lock_jobs_met(_met(shared))
    keys = {_key(new) for new in shared if new.dedupe_key is not None}
    holding = {_key_of(job): job for job in jobs if job.dedupe_key is not None and job.state in HOLDING_KEY}
    chosen = {new.id for new in shared if new.digest is not None}
    return (
        {job.id: job for job in jobs if job.id in chosen},
        {key: job for key, job in holding.items() if key in keys},
    )


def is_shared(new: CheckedJob) -> bool:
    """Return whether another call may bring the same job: it has a chosen id or a dedupe key."""
    return new.digest is not None or new.dedupe_key is not None


async def lock_met(tx: Transaction, claims: Sequence[Claim], new: Sequence[CheckedJob]) -> None:
    """Lock what the jobs of *claims* and the follow-ups *new* meet, before any of it is locked for itself.

    Every call takes these locks in the same order, keys by number and then jobs by number: two calls that meet the
    same ones wait for each other and do not deadlock.
    """
    shared = [one for one in new if is_shared(one)]
    if shared:
        await tx.lock_keys(_lock_numbers(claims, shared))
        await tx.lock_jobs_met([*(Met(seq=claim.job.seq) for claim in claims), *_met(shared)])


async def lock_jobs_and_keys(tx: Transaction, job_ids: Sequence[str]) -> list[Job]:
    """Lock jobs by id with the holders of their dedupe keys, in the order of `lock_met`; return all of them."""
    if not job_ids:
        return []
    keys = set(await tx.dedupe_keys(job_ids))
    if keys:
        await tx.lock_keys(key_numbers(keys, set()))
    return await tx.lock_jobs_met([*(Met(job_id=job_id) for job_id in job_ids), *(Met(key=key) for key in keys)])


def _met(shared: Sequence[CheckedJob]) -> list[Met]:
    """Return by which key and id each of *shared* may meet a job."""
    return [
        Met(
            key=_key(new) if new.dedupe_key is not None else None,
            job_id=new.id if new.digest is not None else None,
        )
        for new in shared
    ]


def _lock_numbers(claims: Sequence[Claim], shared: Sequence[CheckedJob]) -> list[int]:
    """Return the numbers by which to lock the keys and ids of a call, in order; none if they are too many."""
    keys = {_key(new) for new in shared if new.dedupe_key is not None}
    keys |= {_key_of(claim.job) for claim in claims if claim.job.dedupe_key is not None}
    ids = {new.id for new in shared if new.digest is not None}
    return key_numbers(keys, ids) if len(keys) + len(ids) <= KEYS_LOCKED_MAX else []


async def _take_in(tx: Transaction, intake: _Intake, new: CheckedJob, seq: int) -> Enqueued:
    if new.id in intake.known:
        return Enqueued(admissions.same_request(intake.known[new.id], new), created=False)
    if new.entry is not None and (original := seen_before(intake.entered, new)) is not None:
        return Enqueued(original, created=False)
    if new.dedupe_key is not None:
        met = await _meet_duplicate(tx, intake, new, seq)
        if met is not None:
            return met
    return Enqueued(_admit(intake, new, seq), created=True)


def _admit(intake: _Intake, new: CheckedJob, seq: int, predecessor: Job | None = None) -> Job:
    fair_key = intake.routing.lane(new.terms.route.lane).fair_key_of(new.terms.tenant)
    job = admissions.new_job(new, seq, fair_key, intake.now)
    if predecessor is not None:
        job = job._replace(state="blocked", predecessor=predecessor.seq)
    if records(intake.routing, job, "enqueued"):
        job = job.counting_event()
    if new.entry is not None:
        job = place_entry(_session_of(intake, new), new, job, intake.now)
    intake.fresh.append((new.terms.route, job))
    if new.digest is not None:
        intake.known[new.id] = job
    if new.dedupe_key is not None and predecessor is None:
        intake.held[_key(new)] = job
    return job


def _session_of(intake: _Intake, new: CheckedJob) -> Entered:
    assert new.entry is not None  # noqa: S101  # only entries come here
    return intake.entered[new.terms.tenant, new.entry.session]


def _key(new: CheckedJob) -> DedupeKey:
    return (new.terms.tenant, new.terms.dedupe_kind or "", new.dedupe_key or "")


def _key_of(job: Job) -> DedupeKey:
    return (job.tenant, job.dedupe_kind or "", job.dedupe_key or "")


async def _meet_duplicate(tx: Transaction, intake: _Intake, new: CheckedJob, seq: int) -> Enqueued | None:
    """Return what the holder of the same key makes of *new*, or None if nobody holds it."""
    holder = intake.held.get(_key(new)) or (await _stored_holder(tx, intake, _key(new)))
    if holder is None:
        return None
    successor = None
    if new.terms.on_duplicate == "run_again" and holder.state == "running":
        # A successor admitted earlier in this call has to be met by this one, so it is written now.
        await _write_new(tx, intake)
        successor = await tx.successor_by_key(_key(new))
    match admissions.meet_duplicate(new, holder, successor):
        case "keep":
            return Enqueued(holder, created=False)
        case "succeed":
            return Enqueued(_admit(intake, new, seq, predecessor=holder), created=True)
        case "replace":
            return Enqueued((await _replace(tx, intake, holder, new)), created=False)
        case "replace_successor":
            assert successor is not None  # noqa: S101  # there is one to be replaced
            return Enqueued((await _replace(tx, intake, successor, new)), created=False)


async def _stored_holder(tx: Transaction, intake: _Intake, key: DedupeKey) -> Job | None:
    holder = intake.holders.get(key)
    if holder is not None and (transitions.overdue(holder, intake.now) or transitions.expired(holder, intake.now)):
        del intake.holders[key]
        if (holder := (await live_holder(tx, intake.routing, key, intake.now))) is not None:
            intake.holders[key] = holder
    return holder


async def live_holder(tx: Transaction, routing: RoutingTable, key: DedupeKey, now: Now) -> Job | None:
    """Return the unfinished job that holds a dedupe key.

    One that waits past its deadline, or whose lease has expired, is brought up to date first: it may have come to
    its end without anybody having noticed, and a trigger kept for a job that will never run would be lost.
    """
    while (holder := await tx.job_by_key(key)) is not None:
        if transitions.overdue(holder, now):
            step = transitions.miss_deadline(holder, now)
        elif transitions.expired(holder, now):
            step = transitions.expire(holder, now)
        else:
            break
        await apply_transitions(tx, routing, [step], now)
    return holder


async def _replace(tx: Transaction, intake: _Intake, job: Job, new: CheckedJob) -> Job:
    await _write_new(tx, intake)
    replaced = admissions.replace_content(job, new)
    if replaced == job:
        return job
    told: dict[int, EventName] = {}
    if records(intake.routing, replaced, "replaced"):
        replaced = replaced.counting_event()
        told[replaced.seq] = "replaced"
    await tx.update_content(replaced)
    await tx.append_events(told, intake.now)
    for jobs in (intake.held, intake.holders):
        if (met := jobs.get(_key(new))) is not None and met.seq == replaced.seq:
            jobs[_key(new)] = replaced
    return replaced


async def _write_new(tx: Transaction, intake: _Intake) -> None:
    """Write the jobs admitted since the last time."""
    if not intake.fresh:
        return
    routes = intake.routing.routes
    await tx.insert_jobs([(routes[key], job) for key, job in _in_key_order(intake.fresh)])
    entries = {job.seq: routes[key].number for key, job in intake.fresh if key.session} if intake.entered else {}
    jobs = [job for _, job in intake.fresh]
    intake.fresh.clear()
    await tx.append_events({job.seq: "enqueued" for job in jobs if job.event_count}, intake.now)
    await notify_jobs(tx, jobs)
    if entries:
        await write_sessions(tx, intake.routing, list(intake.entered.values()), entries, intake.now)


def _in_key_order(fresh: list[tuple[RouteKey, Job]]) -> list[tuple[RouteKey, Job]]:
    """Return new jobs in the order of their keys and ids, so that calls which write the same ones do not deadlock."""
    if all(job.digest is None and job.dedupe_key is None for _, job in fresh):
        return fresh
    return sorted(fresh, key=lambda pair: (_key_of(pair[1]), pair[1].id))
