"""Enqueueing: find duplicates, check lanes and kinds, and insert all new jobs in one statement."""

from collections.abc import Sequence, Set
from operator import itemgetter
from typing import NamedTuple

from holdfast.domain import (
    clock,
    duplicates,
    errors,
    events,
    limits,
    new_job,
    new_job as new_jobs,
    transitions,
    validation,
)
from holdfast.domain.alike_jobs import AlikeNewJobs
from holdfast.domain.claims import Claim
from holdfast.domain.debounce import postponed
from holdfast.domain.dependencies import Dependencies
from holdfast.domain.job import HOLDING_KEY, Job, JobRow, job_of, row_of
from holdfast.domain.results import NewJobs, StoredJob
from holdfast.domain.routing import RouteKey, RoutingTable, fair_key_of
from holdfast.operations import artifacts, back_pressure, dependencies, gates, session_enqueue, webhook_events
from holdfast.operations.apply_transitions import apply_transitions, notify_jobs, records
from holdfast.storage import notifications
from holdfast.storage.contract import JobMatch, SessionName, StoreTransaction

_set_job, _set_created = (getattr(StoredJob, name).__set__ for name in ("job", "created"))


def _stored_new(job: Job) -> StoredJob:
    """Return the result of an enqueue that has created *job*, in a third of the time of the constructor."""
    stored = object.__new__(StoredJob)
    _set_job(stored, job)
    _set_created(stored, True)  # noqa: FBT003
    return stored


def _stored_plain(
    tx: StoreTransaction, checked_jobs: Sequence[new_job.CheckedJob], jobs: Sequence[Job]
) -> Sequence[StoredJob]:
    """Count jobs that a plain form has stored, and return the result."""
    if isinstance(checked_jobs, AlikeNewJobs):
        tx.rollups.arrived += [checked_jobs.model.settings.route] * len(jobs)
    else:
        tx.rollups.arrived += [new.settings.route for new in checked_jobs]
    tx.forms["enqueue plain"] += len(jobs)
    return NewJobs(jobs)


async def enqueue_job(tx: StoreTransaction, new: new_job.CheckedJob) -> StoredJob:
    """Store one job."""
    if tx.resent and new.digest is None:
        # The id is random, so only an earlier send of this call can have stored it.
        stored = await tx.job_by_id(new.id)
        if stored is not None:
            return StoredJob(job_of(stored), created=True)
    plain = await tx.insert_plain(new)
    if plain is not None:
        tx.forms["enqueue plain"] += 1
        arrived = tx.rollups.arrived
        arrived.append(new.settings.route)
        if len(arrived) > tx.rollups.LONG:
            tx.rollups.fold()
        return _stored_new(plain)
    [enqueued] = await enqueue_jobs(tx, [new], "")
    return enqueued


async def enqueue_many(tx: StoreTransaction, checked_jobs: Sequence[new_job.CheckedJob]) -> Sequence[StoredJob]:
    """Store the jobs of one call as `enqueue_jobs` does, as the whole transaction."""
    found: dict[str, StoredJob] = {}
    if tx.resent:
        # Generated ids are random, so only an earlier send of this call can have stored them.
        generated = [new.id for new in checked_jobs if new.digest is None]
        found = {row.id: StoredJob(job_of(row), created=True) for row in await tx.jobs_by_id(generated)}
    elif checked_jobs and (plain := await tx.insert_alike(checked_jobs)) is not None:
        return _stored_plain(tx, checked_jobs, plain)
    if not found:
        return await enqueue_jobs(tx, checked_jobs)
    others = iter(await enqueue_jobs(tx, [new for new in checked_jobs if new.id not in found]))
    return [found.get(new.id) or next(others) for new in checked_jobs]


async def enqueue_jobs(
    tx: StoreTransaction, checked_jobs: Sequence[new_job.CheckedJob], field: str = "jobs"
) -> Sequence[StoredJob]:
    """Store the jobs of one call, all or none, and return the stored job or the duplicate of each, in order.

    If the call has several jobs, a `Refused` error names the job as an index of *field*; an `InvalidInput` error
    does unless *field* is empty.
    """
    if not checked_jobs:
        return []
    checked_jobs, index = list(checked_jobs), 0
    try:
        is_plain = all(map(new_jobs.is_plain, checked_jobs))
        shared = [] if is_plain else [new for new in checked_jobs if is_shared(new)]
        if not is_plain and any(new.dependencies is not None or new.on_end is not None for new in checked_jobs):
            await tx.use_edges()
        locks, matches = _lock_numbers((), shared), _matches(shared)
        routing, numbers, duplicated = await tx.begin_enqueue(len(checked_jobs), locks, matches)
        known, holders = _by_id_and_key(shared, duplicated)
        await _start_webhooks(tx, () if is_plain else checked_jobs)
        has_entries = not is_plain and any(new.entry is not None for new in checked_jobs)
        sessions = await session_enqueue.lock_sessions(tx, routing, checked_jobs) if has_entries else {}
        if routing.publications:
            checked_jobs = [
                new if _is_stored(new, known, sessions) else _with_publication(routing, new, field, index)
                for index, new in enumerate(checked_jobs)
            ]
            # A publication may have every event of a kind recorded.
            is_plain = is_plain and all(map(new_jobs.is_plain, checked_jobs))
        routes = _first_indexes(checked_jobs, known, sessions)
        for route, index in sorted(routes.items(), key=itemgetter(1)):  # noqa: B007
            _check_accepted(routing, route)
        routing = await _intern_routes(tx, routing, routes.keys())
        lanes = {route.lane for route in routes}
        is_bounded = not routing.bounded_lanes.isdisjoint(lanes)
        if is_plain and not is_bounded and routing.recorded_lanes.isdisjoint(lanes):
            tx.topics.update(notifications.LANE_TOPIC + route.lane for route in routes)
            jobs = await tx.insert_plain_jobs(checked_jobs, numbers, routing, await tx.now())
            return _stored_plain(tx, checked_jobs, jobs)
        now, keys = await tx.now(), {_key(new) for new in shared if new.dedupe_for_ms is not None}
        kept = await tx.kept_jobs(keys, now) if keys else {}
        call = _EnqueueCall(routing, now, known, holders, {}, kept, [], sessions, set())
        results = []
        for index, new in enumerate(checked_jobs):
            seq = numbers[index]
            if new.digest is None and new.dedupe_key is None and new.entry is None:
                # The common case: it cannot be a duplicate.
                results.append(StoredJob(job_of(_add_job(call, new, seq)), created=True))
            else:
                results.append(await _enqueue_one(tx, call, new, seq))
        if is_bounded:
            await back_pressure.check_room(tx, routing, zip(checked_jobs, results, strict=True), now, field)
    except errors.Refused as refusal:
        if len(checked_jobs) > 1:
            refusal.path = refusal.path or f"{field}[{index}]"
        raise
    await _flush(tx, call)
    await _write_extras(tx, call, checked_jobs, results, field)
    return results


async def store_refused(tx: StoreTransaction, new: new_job.CheckedJob, reason: str, now: clock.Now) -> int:
    """Store a job that was refused as failed with this reason; return its number."""
    routing, [seq], _ = await tx.begin_enqueue(1)
    routing = await _intern_routes(tx, routing, {new.settings.route})
    call = _EnqueueCall(routing, now, {}, {}, {}, {}, [], {}, set())
    job = _add_job(call, new, seq)
    await _flush(tx, call)
    await apply_transitions(tx, routing, [transitions.refuse(job, reason, now)], now)
    return seq


async def _start_webhooks(tx: StoreTransaction, checked_jobs: Sequence[new_job.CheckedJob]) -> None:
    """Make the service read events if one of the jobs has a URL, before the first event of the jobs is written."""
    if any(new.webhook_url is not None for new in checked_jobs):
        await webhook_events.start_reading(tx)


async def _write_inputs(
    tx: StoreTransaction, job: JobRow, new: new_job.CheckedJob, now: clock.Now, path: str
) -> None:
    """Store the input artifacts of a new job; an error names the job by *path*, unless it is empty."""
    try:
        await artifacts.write_inputs(tx, job, new.artifacts, now)
    except errors.Refused as refusal:
        refusal.path = path or None
        raise
    except errors.InvalidInput as error:
        if not path:
            raise
        raise errors.InvalidInput(f"{path}.{error.field}", error.problem, error.limit) from None


class _EnqueueCall(NamedTuple):
    """The state of one call: the locked jobs and sessions, and the new jobs so far."""

    routing: RoutingTable
    now: clock.Now
    known: dict[str, JobRow]
    """Jobs by chosen id, from the store and from earlier in this call."""
    holders: dict[new_job.DedupeKey, JobRow]
    """The stored jobs that hold a dedupe key of this call, locked."""
    new_holders: dict[new_job.DedupeKey, JobRow]
    """New jobs of this call by dedupe key."""
    kept: dict[new_job.DedupeKey, JobRow]
    """The first jobs of the keys of this call that are kept for a period, in any state."""
    unwritten: list[tuple[RouteKey, JobRow]]
    """New jobs not yet written."""
    sessions: dict[SessionName, session_enqueue.LockedSession]
    """The sessions of this call's entries."""
    replaced: set[int]
    """The numbers of jobs that a later duplicate of this call has given other input artifacts and limit keys."""


def _is_stored(
    new: new_job.CheckedJob, known: dict[str, JobRow], sessions: dict[SessionName, session_enqueue.LockedSession]
) -> bool:
    """Return whether the store already has the job, by its chosen id or its message id."""
    return new.id in known or (
        new.entry is not None and session_enqueue.find_by_message_id(sessions, new) is not None
    )


def _first_indexes(
    checked_jobs: Sequence[new_job.CheckedJob],
    known: dict[str, JobRow],
    sessions: dict[SessionName, session_enqueue.LockedSession],
) -> dict[RouteKey, int]:
    """Return each route of the new jobs with the index of its first job, which an error names."""
    routes: dict[RouteKey, int] = {}
    for index, new in enumerate(checked_jobs):
        route = new.settings.route
        if route not in routes and not _is_stored(new, known, sessions):
            routes[route] = index
    return routes


def _with_publication(routing: RoutingTable, new: new_job.CheckedJob, field: str, index: int) -> new_job.CheckedJob:
    try:
        return new_job.with_publication(new, routing.publications.get(new.settings.route.kind))
    except errors.InvalidInput as error:
        if not field:
            raise
        raise errors.InvalidInput(f"{field}[{index}].{error.field}", error.problem, error.limit) from None


def _check_accepted(routing: RoutingTable, route: RouteKey) -> None:
    if routing.lane(route.lane).state == "draining":
        raise errors.LaneDraining(route.lane)
    if route.kind in routing.retired:
        raise errors.KindRetired(route.kind)


async def _intern_routes(tx: StoreTransaction, routing: RoutingTable, keys: Set[RouteKey]) -> RoutingTable:
    """Return a routing table that contains *keys*; store the missing ones first."""
    missing = sorted(keys - routing.routes.keys())
    if not missing:
        return routing
    if len(routing.routes) + len(missing) > limits.ROUTES_MAX:
        raise errors.InvalidInput(
            "kind",
            f"would make more than {limits.ROUTES_MAX} combinations of lane, kind and requires;"
            " put variable values into the payload or tags",
        )
    return await tx.add_routes(missing)


def _by_id_and_key(
    shared: Sequence[new_job.CheckedJob], jobs: Sequence[JobRow]
) -> tuple[dict[str, JobRow], dict[new_job.DedupeKey, JobRow]]:
    """Return the stored *jobs* that have a chosen id or a dedupe key of *shared*, by id and by key."""
    if not jobs:
        return {}, {}
    keys = {_key(new) for new in shared if new.dedupe_key is not None}
    holding = {_key_of(job): job for job in jobs if job.dedupe_key is not None and job.state in HOLDING_KEY}
    chosen = {new.id for new in shared if new.digest is not None}
    return (
        {job.id: job for job in jobs if job.id in chosen},
        {key: job for key, job in holding.items() if key in keys},
    )


def is_shared(new: new_job.CheckedJob) -> bool:
    """Return whether another call may enqueue the same job: it has a chosen id or a dedupe key."""
    return new.digest is not None or new.dedupe_key is not None


async def lock_matches(tx: StoreTransaction, claims: Sequence[Claim], new: Sequence[new_job.CheckedJob]) -> None:
    """Lock the jobs of *claims* and the stored jobs with an id or dedupe key of *new*, before other locks.

    Every call takes these locks in the same order, keys by number and then jobs by number, so that two calls with
    the same keys do not deadlock.
    """
    shared = [one for one in new if is_shared(one)]
    if shared:
        await tx.lock_keys(_lock_numbers(claims, shared))
        await tx.lock_matching_jobs([*(JobMatch(seq=claim.job.number) for claim in claims), *_matches(shared)])


async def lock_jobs_and_keys(tx: StoreTransaction, job_ids: Sequence[str]) -> list[JobRow]:
    """Lock jobs by id with the holders of their dedupe keys, in the order of `lock_matches`; return all of them."""
    if not job_ids:
        return []
    keys = set(await tx.dedupe_keys(job_ids))
    if keys:
        await tx.lock_keys(duplicates.key_numbers(keys, set()))
    return await tx.lock_matching_jobs(
        [*(JobMatch(job_id=job_id) for job_id in job_ids), *(JobMatch(key=key) for key in keys)]
    )


def _matches(shared: Sequence[new_job.CheckedJob]) -> list[JobMatch]:
    """Return the key and chosen id of each of *shared*."""
    return [
        JobMatch(
            key=_key(new) if new.dedupe_key is not None else None,
            job_id=new.id if new.digest is not None else None,
        )
        for new in shared
    ]


def _lock_numbers(claims: Sequence[Claim], shared: Sequence[new_job.CheckedJob]) -> list[int]:
    """Return the lock numbers of the keys and ids of a call, in order; an empty list if they are too many.

    An enqueue with too many takes no such locks: it writes its rows in key order.
    """
    keys = {_key(new) for new in shared if new.dedupe_key is not None}
    keys |= {_key_of(row_of(claim.job)) for claim in claims if claim.job.dedupe_key is not None}
    ids = {new.id for new in shared if new.digest is not None}
    return duplicates.key_numbers(keys, ids) if len(keys) + len(ids) <= limits.KEYS_LOCKED_MAX else []


async def _write_extras(
    tx: StoreTransaction,
    call: _EnqueueCall,
    checked_jobs: Sequence[new_job.CheckedJob],
    results: Sequence[StoredJob],
    field: str,
) -> None:
    """Store what the new jobs have in other tables: kept dedupe keys, URLs, dependencies and input artifacts."""
    created = [
        (index, new, row_of(enqueued.job))
        for index, (new, enqueued) in enumerate(zip(checked_jobs, results, strict=True))
        if enqueued.created
    ]
    own = [one for one in created if one[2].seq not in call.replaced]
    kept = [
        (call.routing.routes[new.settings.route], job, call.now.wall_ms + new.dedupe_for_ms)
        for _, new, job in created
        if new.dedupe_for_ms is not None
    ]
    if kept:
        await tx.keep_keys(kept)
    urls = [(job.id, new.webhook_url) for _, new, job in created if new.webhook_url is not None]
    if urls:
        await tx.insert_job_urls(urls)
    keys = [(job.seq, *new.for_limits) for _, new, job in own if new.for_limits is not None]
    if keys:
        await tx.insert_limit_keys(keys)
    if any(new.dependencies is not None for _, new, _ in created):
        await dependencies.write(tx, created, [row_of(enqueued.job) for enqueued in results], field)
    if any(new.on_end is not None for _, new, _ in created):
        await _write_callbacks(tx, [(new.on_end, job) for _, new, job in created if new.on_end is not None])
    for index, new, job in own:
        if new.artifacts:
            await _write_inputs(tx, job, new, call.now, f"{field}[{index}]" if len(results) > 1 else "")


async def _write_callbacks(tx: StoreTransaction, pairs: Sequence[tuple[new_job.CheckedJob, JobRow]]) -> None:
    """Store the jobs that run once others, which this call has stored, have ended."""
    new = [
        callback._replace(
            id=f"{validation.RESERVED_PREFIX}on_end:{job.seq}",
            settings=callback.settings._replace(tenant=job.tenant),
            dependencies=Dependencies((), "run"),
        )
        for callback, job in pairs
    ]
    stored = await enqueue_jobs(tx, new, "on_end")
    await tx.insert_edges([(one.job.number, job.seq, 0, "run") for one, (_, job) in zip(stored, pairs, strict=True)])
    # No other transaction has seen these jobs, so that each end appends a wake row.
    await tx.await_jobs([job.seq for _, job in pairs])


async def _enqueue_one(tx: StoreTransaction, call: _EnqueueCall, new: new_job.CheckedJob, seq: int) -> StoredJob:
    if new.id in call.known:
        return StoredJob(job_of(duplicates.same_request(call.known[new.id], new)), created=False)
    if new.entry is not None and (original := session_enqueue.find_by_message_id(call.sessions, new)) is not None:
        return StoredJob(job_of(original), created=False)
    if new.dedupe_key is not None:
        enqueued = await _handle_duplicate(tx, call, new, seq)
        if enqueued is not None:
            return enqueued
    return StoredJob(job_of(_add_job(call, new, seq)), created=True)


def _add_job(call: _EnqueueCall, new: new_job.CheckedJob, seq: int, predecessor: JobRow | None = None) -> JobRow:
    fair_key = fair_key_of(call.routing.lane(new.settings.route.lane), new.settings.tenant)
    job = new_jobs.new_job(new, seq, fair_key, call.now)
    if predecessor is not None:
        job = job._replace(state="blocked", predecessor=predecessor.seq)
    elif new.dependencies is not None:
        job = job._replace(state="dependent")
    if records(call.routing, job, "enqueued"):
        job = job.counting_event()
    if new.entry is not None:
        job = session_enqueue.append_entry(_session_of(call, new), new, job, call.now)
    call.unwritten.append((new.settings.route, job))
    if new.digest is not None:
        call.known[new.id] = job
    if new.dedupe_key is not None and predecessor is None:
        call.new_holders[_key(new)] = job
    return job


def _session_of(call: _EnqueueCall, new: new_job.CheckedJob) -> session_enqueue.LockedSession:
    assert new.entry is not None  # noqa: S101  # only entries come here
    return call.sessions[new.settings.tenant, new.entry.session]


def _key(new: new_job.CheckedJob) -> new_job.DedupeKey:
    return (new.settings.tenant, new.settings.dedupe_kind or "", new.dedupe_key or "")


def _key_of(job: JobRow) -> new_job.DedupeKey:
    return (job.tenant, job.dedupe_kind or "", job.dedupe_key or "")


async def _handle_duplicate(
    tx: StoreTransaction, call: _EnqueueCall, new: new_job.CheckedJob, seq: int
) -> StoredJob | None:
    """Apply `on_duplicate` if a job holds the dedupe key of *new*; return None if none does."""
    holder = call.new_holders.get(_key(new)) or (await _stored_holder(tx, call, _key(new)))
    if holder is None:
        first = None if new.dedupe_for_ms is None else call.kept.get(_key(new))
        return None if first is None else StoredJob(job_of(first), created=False)
    successor = None
    if (new.settings.on_duplicate == "run_again" and holder.state == "running") or (new.debounce and holder.epoch):
        # Write now: the successor may have been added earlier in this call.
        await _flush(tx, call)
        successor = await tx.successor_by_key(_key(new))
    match duplicates.resolve_duplicate(new, holder, successor):
        case "keep":
            return StoredJob(job_of(holder), created=False)
        case "succeed":
            return StoredJob(job_of(_add_job(call, new, seq, predecessor=holder)), created=True)
        case "replace":
            return StoredJob(job_of(await _replace(tx, call, holder, new)), created=False)
        case "replace_successor":
            assert successor is not None  # noqa: S101  # only an existing successor is replaced
            return StoredJob(job_of(await _replace(tx, call, successor, new)), created=False)


async def _stored_holder(tx: StoreTransaction, call: _EnqueueCall, key: new_job.DedupeKey) -> JobRow | None:
    holder = call.holders.get(key)
    if holder is not None and (transitions.overdue(holder, call.now) or transitions.expired(holder, call.now)):
        del call.holders[key]
        if (holder := (await live_holder(tx, call.routing, key, call.now))) is not None:
            call.holders[key] = holder
    return holder


async def live_holder(
    tx: StoreTransaction, routing: RoutingTable, key: new_job.DedupeKey, now: clock.Now
) -> JobRow | None:
    """Return the unfinished job that holds a dedupe key.

    Fail or expire the job first if its deadline has passed or its lease has expired: if it is then finished, it no
    longer holds the key, and the new job must be stored.
    """
    while (holder := await tx.job_by_key(key)) is not None:
        if transitions.overdue(holder, now):
            transition = transitions.miss_deadline(holder, now)
        elif transitions.expired(holder, now):
            transition = transitions.expire(holder, now)
        else:
            break
        await apply_transitions(tx, routing, [transition], now)
    return holder


async def _replace(tx: StoreTransaction, call: _EnqueueCall, job: JobRow, new: new_job.CheckedJob) -> JobRow:
    await _flush(tx, call)
    replaced = duplicates.replace_content(job, new)
    call.replaced.add(job.seq)
    has_inputs = await artifacts.replace_inputs(tx, job, new.artifacts, call.now)
    before, after = await gates.replace_given(tx, job, new.for_limits)
    if not has_inputs and replaced == job and before == after and new.debounce is None:
        return job
    recorded: dict[int, events.EventName] = {}
    later = replaced if new.debounce is None else postponed(replaced, new.debounce, call.now)
    if later is not replaced:
        await tx.update_content(job, replaced)
        postponing = transitions.Transition(replaced, later, "replaced")
        [replaced] = await apply_transitions(tx, call.routing, [postponing], call.now)
        _remember(call, new, replaced)
        return replaced
    if records(call.routing, replaced, "replaced"):
        replaced = replaced.counting_event()
        recorded[replaced.seq] = "replaced"
    await tx.update_content(job, replaced)
    await tx.append_events(recorded, call.now)
    if replaced.state == "parked":
        replaced = await gates.reconsider(tx, call.routing, (job, before), (replaced, after), call.now)
    _remember(call, new, replaced)
    return replaced


def _remember(call: _EnqueueCall, new: new_job.CheckedJob, replaced: JobRow) -> None:
    for jobs in (call.new_holders, call.holders):
        if (holder := jobs.get(_key(new))) is not None and holder.seq == replaced.seq:
            jobs[_key(new)] = replaced


async def _flush(tx: StoreTransaction, call: _EnqueueCall) -> None:
    """Write the new jobs that are not yet written."""
    if not call.unwritten:
        return
    routes = call.routing.routes
    await tx.insert_jobs([(routes[key], job) for key, job in _in_key_order(call.unwritten)])
    entries = {job.seq: routes[key].number for key, job in call.unwritten if key.session} if call.sessions else {}
    jobs = [job for _, job in call.unwritten]
    call.unwritten.clear()
    tx.forms["enqueue full"] += len(jobs)
    tx.rollups.arrived.extend((job.lane, job.kind) for job in jobs)
    await tx.append_events({job.seq: "enqueued" for job in jobs if job.event_count}, call.now)
    await notify_jobs(tx, jobs)
    if entries:
        await session_enqueue.write_sessions(tx, call.routing, list(call.sessions.values()), entries, call.now)


def _in_key_order(unwritten: list[tuple[RouteKey, JobRow]]) -> list[tuple[RouteKey, JobRow]]:
    """Sort new jobs by key and id, so that calls with the same keys do not deadlock."""
    if all(job.digest is None and job.dedupe_key is None for _, job in unwritten):
        return unwritten
    return sorted(unwritten, key=lambda pair: (_key_of(pair[1]), pair[1].id))
