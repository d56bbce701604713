"""Taking jobs in: ids and dedupe keys first, then lane and kind, and all new rows in one statement."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

from holdfast.domain import admission as admissions
from holdfast.domain import lifecycle
from holdfast.domain.admission import Admission, DedupeKey, key_numbers
from holdfast.domain.claim import Claim
from holdfast.domain.clock import Now
from holdfast.domain.errors import KindRetired, LaneDraining, Refused
from holdfast.domain.event import EventName
from holdfast.domain.job import HOLDING_KEY, Job
from holdfast.domain.lane import Catalog, RouteKey
from holdfast.domain.records import Enqueued
from holdfast.stores import script
from holdfast.stores.engine import Engine
from holdfast.stores.script import Brief, Script, Statement
from holdfast.stores.scripts.catalog import catalog_at, intern_routes
from holdfast.stores.scripts.moves import apply_steps, record, records, signal_jobs, write_rows
from holdfast.stores.scripts.session_enqueue import (
    Entered,
    SessionName,
    enter_sessions,
    place_batch,
    seen_before,
    write_sessions,
)

# The columns of `job_insert`, in its order; the route comes before them. Nothing has happened to a new job yet, so
# that what counts such things is not among them.
_NEW = attrgetter(
    "seq",
    "id",
    "state",
    "tenant",
    "turn",
    "priority",
    "affinity",
    "payload_json",
    "headers_json",
    "tags_json",
    "enqueued_at_ms",
    "due_at_ms",
    "deadline_at_ms",
    "max_attempts",
    "backoff_json",
    "dedupe_key",
    "dedupe_kind",
    "predecessor",
    "digest",
    "record_all",
    "event_count",
)

# Each lock takes a place in a table of the server that all its transactions share. A call that brings more keys than
# this relies on the order in which its rows are written.
_KEYS_LOCKED_MAX = 256

# What a batch has before them.
_BATCH = attrgetter("session_number", "enqueue_seq", "batch_json")


def enqueue_job(engine: Engine, new: Admission, *, resent: bool = False) -> Script[Enqueued]:
    """Store one job and return what it led to; *resent* if this very call may have stored it already."""
    if resent and new.digest is None:
        # Nobody else can have drawn its id.
        stored = yield Statement("jobs_by_id", {"ids": [new.id]})
        if stored:
            return Enqueued(Job._make(stored[0]), created=True)
    [made] = yield from enqueue_jobs(engine, [new])
    return made


def brief_enqueue(engine: Engine, new: Admission) -> Brief | None:
    """Return the storing of one job as one statement, where the engine has such and the job is plain."""
    catalog = engine.catalog
    if engine.brief_enqueue is None or catalog is None or new.digest is not None or new.dedupe_key is not None:
        return None
    route = new.terms.route
    if (
        route.session
        or route not in catalog.routes
        or catalog.lane(route.lane).state == "draining"
        or route.kind in catalog.retired
    ):
        return None
    return engine.brief_enqueue(new, catalog)


def enqueue_jobs(engine: Engine, wanted: Sequence[Admission], place: str = "jobs") -> Script[list[Enqueued]]:
    """Store the jobs of one call, all or none, and return what each led to, in order.

    A refusal says which one it was by *place*, if there were several.
    """
    if not wanted:
        return []
    index = 0
    try:
        shared = [new for new in wanted if new.digest is not None or new.dedupe_key is not None]
        opening = {"count": len(wanted), "keys": _lock_numbers((), shared)}
        [[version, numbers]] = yield Statement("enqueue_opening", opening)
        catalog = yield from catalog_at(engine, int(version))
        known, holders = yield from _meet(shared)
        entered = yield from enter_sessions(catalog, wanted)
        # Each route with the first job that takes it: the one a refusal names.
        routes = {
            new.terms.route: place
            for place, new in reversed([*enumerate(wanted)])
            if new.id not in known and (new.batch is None or seen_before(entered, new) is None)
        }
        for route, index in sorted(routes.items(), key=itemgetter(1)):  # noqa: B007
            _check_welcome(catalog, route)
        catalog = yield from intern_routes(engine, catalog, routes.keys())
        intake = _Intake(catalog, (yield from script.now()), known, holders, {}, [], entered)
        made = []
        for index, new in enumerate(wanted):
            # Either the first number of a run, or one for each.
            seq = numbers + index if type(numbers) is int else numbers[index]
            if new.digest is None and new.dedupe_key is None and new.batch is None:
                # Nothing it could meet: the common case, and the one that comes by the thousand.
                made.append(Enqueued(_admit(intake, new, seq), created=True))
            else:
                made.append((yield from _take_in(intake, new, seq)))
    except Refused as refusal:
        if len(wanted) > 1:
            refusal.place = f"{place}[{index}]"
        raise
    yield from _write_new(intake)
    return made


class _Intake(NamedTuple):
    """What one call has met and decided so far."""

    catalog: Catalog
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
    """The sessions that batches of this call belong to."""


def _check_welcome(catalog: Catalog, route: RouteKey) -> None:
    if catalog.lane(route.lane).state == "draining":
        raise LaneDraining(route.lane)
    if route.kind in catalog.retired:
        raise KindRetired(route.kind)


def _meet(shared: Sequence[Admission]) -> Script[tuple[dict[str, Job], dict[DedupeKey, Job]]]:
    """Lock the jobs that have a chosen id, or hold a dedupe key, of *shared*; return them by id and by key."""
    if not shared:
        return {}, {}
    rows = yield Statement("jobs_met", {"met": _met(shared)})
    jobs = [Job._make(row) for row in rows]
    keys = {_key(new) for new in shared if new.dedupe_key is not None}
    holding = {_key_of(job): job for job in jobs if job.dedupe_key is not None and job.state in HOLDING_KEY}
    chosen = {new.id for new in shared if new.digest is not None}
    return (
        {job.id: job for job in jobs if job.id in chosen},
        {key: job for key, job in holding.items() if key in keys},
    )


def lock_met(claims: Sequence[Claim], new: Sequence[Admission]) -> Script[None]:
    """Lock what the jobs of *claims* and the follow-ups *new* meet, before any of it is locked for itself.

    Every call takes these locks in the same order, keys by number and then jobs by number: two calls that meet the
    same ones wait for each other and do not deadlock.
    """
    shared = [one for one in new if one.digest is not None or one.dedupe_key is not None]
    if shared:
        yield Statement("keys_hold", {"keys": _lock_numbers(claims, shared)})
        own: list[list[Any]] = [[None, None, None, None, claim.job.seq] for claim in claims]
        yield Statement("jobs_met", {"met": own + _met(shared)})


def _met(shared: Sequence[Admission]) -> list[list[Any]]:
    """Return, for `jobs_met`, the key, the id and the number that a job is met by; None for what does not count."""
    return [
        [
            *(_key(new) if new.dedupe_key is not None else (None, None, None)),
            new.id if new.digest is not None else None,
            None,
        ]
        for new in shared
    ]


def _lock_numbers(claims: Sequence[Claim], shared: Sequence[Admission]) -> list[int]:
    """Return the numbers by which to lock the keys and ids of a call, in order; none if they are too many."""
    keys = {_key(new) for new in shared if new.dedupe_key is not None}
    keys |= {_key_of(claim.job) for claim in claims if claim.job.dedupe_key is not None}
    ids = {new.id for new in shared if new.digest is not None}
    return key_numbers(keys, ids) if len(keys) + len(ids) <= _KEYS_LOCKED_MAX else []


def _take_in(intake: _Intake, new: Admission, seq: int) -> Script[Enqueued]:
    if new.id in intake.known:
        return Enqueued(admissions.same_request(intake.known[new.id], new), created=False)
    if new.batch is not None and (original := seen_before(intake.entered, new)) is not None:
        return Enqueued(original, created=False)
    if new.dedupe_key is not None:
        met = yield from _meet_duplicate(intake, new, seq)
        if met is not None:
            return met
    return Enqueued(_admit(intake, new, seq), created=True)


def _admit(intake: _Intake, new: Admission, seq: int, predecessor: Job | None = None) -> Job:
    turn = intake.catalog.lane(new.terms.route.lane).turn_of(new.terms.tenant)
    job = admissions.new_job(new, seq, turn, intake.now)
    if predecessor is not None:
        job = job._replace(state="blocked", predecessor=predecessor.seq)
    if records(intake.catalog, job, "enqueued"):
        job = job.counting_event()
    if new.batch is not None:
        job = place_batch(_session_of(intake, new), new, job, intake.now)
    intake.fresh.append((new.terms.route, job))
    if new.digest is not None:
        intake.known[new.id] = job
    if new.dedupe_key is not None and predecessor is None:
        intake.held[_key(new)] = job
    return job


def _session_of(intake: _Intake, new: Admission) -> Entered:
    assert new.batch is not None  # noqa: S101  # only batches come here
    return intake.entered[new.terms.tenant, new.batch.session]


def _key(new: Admission) -> DedupeKey:
    return (new.terms.tenant, new.terms.dedupe_kind or "", new.dedupe_key or "")


def _key_of(job: Job) -> DedupeKey:
    return (job.tenant, job.dedupe_kind or "", job.dedupe_key or "")


def _meet_duplicate(intake: _Intake, new: Admission, seq: int) -> Script[Enqueued | None]:
    """Return what the holder of the same key makes of *new*, or None if nobody holds it."""
    holder = intake.held.get(_key(new)) or (yield from _stored_holder(intake, _key(new)))
    if holder is None:
        return None
    successor = None
    if new.terms.on_duplicate == "run_again" and holder.state == "running":
        # A successor admitted earlier in this call has to be met by this one, so it is written now.
        yield from _write_new(intake)
        successor = yield from _by_key("job_dedupe_successor", _key(new))
    match admissions.meet_duplicate(new, holder, successor):
        case "keep":
            return Enqueued(holder, created=False)
        case "succeed":
            return Enqueued(_admit(intake, new, seq, predecessor=holder), created=True)
        case "replace":
            return Enqueued((yield from _replace(intake, holder, new)), created=False)
        case "replace_successor":
            assert successor is not None  # noqa: S101  # there is one to be replaced
            return Enqueued((yield from _replace(intake, successor, new)), created=False)


def _stored_holder(intake: _Intake, key: DedupeKey) -> Script[Job | None]:
    holder = intake.holders.get(key)
    if holder is not None and (lifecycle.overdue(holder, intake.now) or lifecycle.lapsed(holder, intake.now)):
        del intake.holders[key]
        if (holder := (yield from live_holder(intake.catalog, key, intake.now))) is not None:
            intake.holders[key] = holder
    return holder


def live_holder(catalog: Catalog, key: DedupeKey, now: Now) -> Script[Job | None]:
    """Return the unfinished job that holds a dedupe key.

    One that waits past its deadline, or whose lease has lapsed, is brought up to date first: it may have come to
    its end without anybody having noticed, and a trigger kept for a job that will never run would be lost.
    """
    while (holder := (yield from _by_key("job_dedupe_holder", key))) is not None:
        if lifecycle.overdue(holder, now):
            step = lifecycle.expire(holder, now)
        elif lifecycle.lapsed(holder, now):
            step = lifecycle.lapse(holder, now)
        else:
            break
        yield from apply_steps(catalog, [step], now)
    return holder


def _by_key(statement: str, key: DedupeKey) -> Script[Job | None]:
    tenant, dedupe_kind, dedupe_key = key
    rows = yield Statement(statement, {"tenant": tenant, "dedupe_kind": dedupe_kind, "dedupe_key": dedupe_key})
    return Job._make(rows[0]) if rows else None


def _replace(intake: _Intake, job: Job, new: Admission) -> Script[Job]:
    yield from _write_new(intake)
    replaced = admissions.replace_content(job, new)
    if replaced == job:
        return job
    told: dict[int, EventName] = {}
    if records(intake.catalog, replaced, "replaced"):
        replaced = replaced.counting_event()
        told[replaced.seq] = "replaced"
    yield Statement(
        "job_content",
        {
            "seq": replaced.seq,
            "payload": replaced.payload_json,
            "headers": replaced.headers_json,
            "tags": replaced.tags_json,
            "event_count": replaced.event_count,
        },
    )
    yield from record(told, intake.now)
    for jobs in (intake.held, intake.holders):
        if (met := jobs.get(_key(new))) is not None and met.seq == replaced.seq:
            jobs[_key(new)] = replaced
    return replaced


def _write_new(intake: _Intake) -> Script[None]:
    """Write the jobs admitted since the last time."""
    if not intake.fresh:
        return
    routes = intake.catalog.routes
    batches = [(key, job) for key, job in intake.fresh if key.session] if intake.entered else []
    plain = [(key, job) for key, job in intake.fresh if not key.session] if batches else intake.fresh
    yield from write_rows("job_insert", [(routes[key].number, *_NEW(job)) for key, job in _in_key_order(plain)])
    yield from write_rows(
        "batch_insert", [(*_BATCH(job), routes[key].number, *_NEW(job)) for key, job in _in_key_order(batches)]
    )
    jobs = [job for _, job in intake.fresh]
    intake.fresh.clear()
    yield from record({job.seq: "enqueued" for job in jobs if job.event_count}, intake.now)
    yield from signal_jobs(jobs)
    if batches:
        numbers = {job.seq: routes[key].number for key, job in batches}
        yield from write_sessions(intake.catalog, list(intake.entered.values()), numbers, intake.now)


def _in_key_order(fresh: list[tuple[RouteKey, Job]]) -> list[tuple[RouteKey, Job]]:
    """Return new jobs in the order of their keys and ids, so that calls which write the same ones do not deadlock."""
    if all(job.digest is None and job.dedupe_key is None for _, job in fresh):
        return fresh
    return sorted(fresh, key=lambda pair: (_key_of(pair[1]), pair[1].id))
