"""The storage contract by named queries: the part that the SQL engines have in common.

An engine defines how a query is sent, which columns of a job it writes, and overrides methods that it implements
differently.
"""

import secrets
from abc import abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

from holdfast.domain import limits, results, strict_json, transitions
from holdfast.domain.claims import Claim, ClaimRequest, JobFence
from holdfast.domain.clock import Now
from holdfast.domain.events import EventName
from holdfast.domain.job import AttemptRow, Job, JobRow, deleted_row, job_of, row_of
from holdfast.domain.kinds import KindRow, Publication
from holdfast.domain.new_job import CheckedJob, DedupeKey, new_job
from holdfast.domain.routing import Lane, Route, RouteKey, RoutingTable, fair_key_of
from holdfast.storage.contract import Claimer, JobMatch, JobPosition, NextTimes, PassName
from holdfast.storage.plain_contract import Form
from holdfast.storage.query_names import QueryName
from holdfast.storage.rollup_buffer import RollupBuffer
from holdfast.storage.sql_access import SqlAccess
from holdfast.storage.sql_charts import SqlCharts, conditions
from holdfast.storage.sql_content import SqlContent
from holdfast.storage.sql_flow import SqlFlow
from holdfast.storage.sql_gates import SqlGates, limit_of
from holdfast.storage.sql_groups import SqlGroups
from holdfast.storage.sql_queries import Rows, SqlRecords, SqlSessions, job_rows
from holdfast.storage.sql_webhooks import SqlWebhooks

_FAIR_SCOPES_KEPT: Final = 1_000
_INCARNATIONS_KEPT: Final = 100
_ROUTING: Final[Sequence[QueryName]] = (
    *("routing_lanes", "routing_routes", "routing_kinds"),
    *("edges_used", "limits_used"),
)
_FREQUENT: Final = frozenset[EventName](("claimed", "done"))

# The columns of `jobs_current` after number, epoch and state: those that can change while an attempt runs.
CHANGING: Final = (
    "lease_token",
    "lease_until_ms",
    "priority",
    "phase",
    "percent",
    "cancel_requested",
    "event_count",
)
_changing: Final = attrgetter(*CHANGING)


class RoutingCache:
    """The newest routing that a store has read, and what it has counted.

    The version of the routing is unique, even across rolled-back transactions.
    """

    def __init__(self) -> None:
        self.newest: RoutingTable | None = None
        self.rollups = RollupBuffer()
        self.forms: Counter[Form] = Counter()


class SqlTransaction(
    SqlSessions, SqlRecords, SqlContent, SqlAccess, SqlWebhooks, SqlFlow, SqlGroups, SqlCharts, SqlGates
):
    """The storage contract by named queries."""

    __slots__ = ("_cache", "forms", "rollups")

    def __init__(self, cache: RoutingCache) -> None:
        super().__init__()
        self._cache = cache
        self.rollups = cache.rollups
        self.forms = cache.forms

    # --- routing ----------------------------------------------------------------------------------------------------

    async def routing(self) -> RoutingTable:
        """Return the routing, from the cache if its version is current."""
        [[version]] = await self.query("routing_version")
        return await self._routing_at(int(version))

    async def _routing_at(self, version: int) -> RoutingTable:
        known = self._cache.newest
        if known is None or known.version != version:
            found = await self.query_each([(name, {}) for name in _ROUTING])
            lanes, routes, kinds, [[edges]], [[limits_used]] = found
            limits_found = await self.query("limits_all") if limits_used == "1" else []
            # Other threads may cache another version concurrently: use only the local variable.
            self._cache.newest = known = RoutingTable(
                version,
                (Lane(*row) for row in lanes),
                (_route(*row) for row in routes),
                (_kind(*row) for row in kinds),
                has_edges=edges == "1",
                has_limits=limits_used == "1",
                limits=[limit_of(row) for row in limits_found],
            )
        return known

    async def lock_routing(self) -> None:
        """Exclusively lock the routing until this transaction commits."""
        await self.query("routing_lock")

    async def use_edges(self) -> None:
        """Record that the store has dependencies."""
        [[used]] = await self.query("edges_used")
        if used != "1":
            await self.lock_routing()
            await self.query("edges_use")
            await self._new_routing_version()

    async def use_limits(self) -> None:
        """Record that the store has limits, and that they have changed."""
        await self.query("limits_use")
        await self._new_routing_version()

    async def _new_routing_version(self) -> None:
        # Random: a rolled-back version never occurs again.
        await self.send("routing_touch", {"version": str(secrets.randbits(62) + 1)})

    async def add_routes(self, keys: Sequence[RouteKey]) -> RoutingTable:
        """Assign a number to each of *keys*."""
        for key in keys:
            values = {
                "lane": key.lane,
                "kind": key.kind,
                "requires": key.requires_json,
                "has_affinity": int(key.has_affinity),
                "session": int(key.session),
            }
            await self.send("route_insert", values)
        await self._new_routing_version()
        return await self.routing()

    async def set_lane(self, lane: Lane) -> None:
        """Store the settings of a lane."""
        values = {
            "lane": lane.name,
            "state": lane.state,
            "lane_order": lane.order,
            "events": lane.events,
            "backoff": lane.backoff,
            "max_waiting": lane.max_waiting,
            "target_age_ms": None if lane.target_age is None else round(lane.target_age * 1000),
        }
        await self.send("lane_write", values)
        await self._new_routing_version()

    async def publish_kinds(self, publications: Mapping[str, Publication], published_by: str, now: Now) -> None:
        """Store what a worker publishes about kinds."""
        rows = [
            (kind, options_json, timeout_ms, int(session), schema_json, published_by, now.wall_ms)
            for kind, (options_json, timeout_ms, session, schema_json) in publications.items()
        ]
        await self._change_rows("kind_publish", rows)
        await self._new_routing_version()

    async def retire_kind(self, kind: str, now: Now) -> None:
        """Mark *kind* as retired."""
        await self.query("kind_retire", {"kind": kind, "now": now.wall_ms})
        await self._new_routing_version()

    async def restore_kind(self, kind: str) -> bool:
        """Remove the mark."""
        rows = await self.query("kind_restore", {"kind": kind})
        await self._new_routing_version()
        return bool(rows)

    # --- enqueue ----------------------------------------------------------------------------------------------------

    async def begin_enqueue(
        self, count: int, locks: Sequence[int] = (), matches: Sequence[JobMatch] = ()
    ) -> tuple[RoutingTable, Sequence[int], list[JobRow]]:
        """Take locks; return the routing, new job numbers and matching jobs."""
        queries: list[tuple[QueryName, Mapping[str, Any]]] = [("enqueue_header", {"count": count, "keys": [*locks]})]
        if matches:
            queries.append(("jobs_matching", _matching(matches)))
        [[version, numbers]], *found = await self.query_each(queries)
        # Either the first of consecutive numbers, or one number for each job.
        seqs = range(numbers, numbers + count) if type(numbers) is int else numbers
        return await self._routing_at(int(version)), seqs, job_rows(found[0]) if found else []

    async def insert_plain_jobs(
        self, jobs: Sequence[CheckedJob], seqs: Sequence[int], routing: RoutingTable, now: Now
    ) -> list[Job]:
        """Store new jobs."""
        rows = []
        for new, seq in zip(jobs, seqs, strict=True):
            key, tenant = new.settings.route, new.settings.tenant
            rows.append((routing.routes[key], new_job(new, seq, fair_key_of(routing.lane(key.lane), tenant), now)))
        await self.insert_jobs(rows)
        return [job_of(row) for _, row in rows]

    async def _insert_tags(self, jobs: Iterable[tuple[int, str]]) -> None:
        """Store the tags of new jobs, by number, for filters."""
        if tagged := [(seq, tags_json) for seq, tags_json in jobs if tags_json != "{}"]:
            await self.send("tags_insert", many=tagged)

    async def _replace_tags(self, before: JobRow, job: JobRow) -> None:
        """Store the changed tags of a job, before its row is written."""
        if before.tags_json != job.tags_json:
            await self.send("tags_delete", {"seqs": [job.seq]})
            await self._insert_tags([(job.seq, job.tags_json)])

    async def lock_keys(self, locks: Sequence[int]) -> None:
        """Lock keys and ids by number."""
        await self.query("keys_lock", {"keys": list(locks)})

    async def dedupe_keys(self, job_ids: Sequence[str]) -> list[DedupeKey]:
        """Return the dedupe keys of jobs."""
        return [(tenant, kind, key) for tenant, kind, key in await self.query("keys_of_jobs", {"ids": list(job_ids)})]

    async def lock_matching_jobs(self, matches: Sequence[JobMatch]) -> list[JobRow]:
        """Lock the jobs that match *matches*."""
        return await self._jobs("jobs_matching", _matching(matches))

    async def job_by_key(self, key: DedupeKey) -> JobRow | None:
        """Return the unfinished job that holds a dedupe key."""
        return await self._by_key("job_dedupe_holder", key)

    async def successor_by_key(self, key: DedupeKey) -> JobRow | None:
        """Return the blocked job that will hold a dedupe key next."""
        return await self._by_key("job_dedupe_successor", key)

    async def _by_key(self, name: QueryName, key: DedupeKey) -> JobRow | None:
        tenant, dedupe_kind, dedupe_key = key
        jobs = await self._jobs(name, {"tenant": tenant, "dedupe_kind": dedupe_kind, "dedupe_key": dedupe_key})
        return jobs[0] if jobs else None

    async def kept_jobs(self, keys: Collection[DedupeKey], now: Now) -> dict[DedupeKey, JobRow]:
        """Return the jobs that keep dedupe keys."""
        rows = await self.query("kept_keys", {"matches": [list(key) for key in keys], "now": now.wall_ms})
        jobs = {job.seq: job for job in await self.jobs_seen([row[3] for row in rows])} if rows else {}
        return {row[:3]: jobs.get(row[3]) or _deleted_job(*row) for row in rows}

    async def keep_keys(self, jobs: Sequence[tuple[Route, JobRow, int]]) -> None:
        """Keep the dedupe keys of new jobs."""
        rows = [
            (job.tenant, job.dedupe_kind, job.dedupe_key, until_ms, job.seq, job.id, route.number, job.enqueued_at_ms)
            for route, job, until_ms in jobs
        ]
        # In order, so that two calls with the same keys do not deadlock.
        await self._change_rows("kept_key_write", sorted(rows))

    async def delete_kept_keys(self, now: Now, limit: int) -> int:
        """Delete dedupe keys whose period has passed."""
        [[deleted]] = await self.query("kept_keys_delete", {"now": now.wall_ms, "limit": limit})
        return int(deleted)

    async def delete_unused_holders(self, now: Now) -> int:
        """Return 0: only SQLite gives numbers to starts of workers."""
        return 0

    # --- claim ------------------------------------------------------------------------------------------------------

    async def begin_claim(self, *, thorough: bool = False) -> tuple[RoutingTable, frozenset[PassName], Now]:
        """Return the routing, due maintenance and the clock, by one query."""
        return (await self._begin_claim([], thorough=thorough))[1:]

    async def begin_claim_of(
        self, request: ClaimRequest, *, resent: bool
    ) -> tuple[Claimer, RoutingTable, frozenset[PassName], Now]:
        """Return what the store has of a claimer, the routing, due maintenance and the clock."""
        queries: list[tuple[QueryName, Mapping[str, Any]]] = []
        if request.exclusive:
            queries.append(("incarnation_read", {"worker": request.worker, "incarnation": request.incarnation}))
        if resent:
            queries.append(("claim_lock_token", {"worker": request.worker, "token": request.lease_token}))
            queries.append(("jobs_held", {"worker": request.worker, "lease_token": request.lease_token}))
        replies, routing, due, now = await self._begin_claim(queries)
        found = replies[0] if request.exclusive else []
        held = _by_claim_index(job_rows(replies[-1])) if resent else []
        return Claimer(bool(found[0][0]) if found else None, held), routing, due, now

    async def _begin_claim(
        self, queries: Sequence[tuple[QueryName, Mapping[str, Any]]], *, thorough: bool = False
    ) -> tuple[list[Rows], RoutingTable, frozenset[PassName], Now]:
        """Run *queries* and read the header of a claim in one round trip; return their rows and the header."""
        now = await self.now() if self.knows_time else None
        times = {"wall_now": now and now.wall_ms, "lease_now": now and now.lease_ms}
        header = {**times, **self._due_start_times(thorough=thorough)}
        *replies, [[version, *found]] = await self.query_each([*queries, ("claim_header", header)])
        # A clock that was not known is read by the begin, before the header.
        now = now or await self.now()
        due = frozenset(name for name, is_due in zip(_PASSES, found, strict=True) if is_due)
        self._record_due_look(now, due, thorough=thorough)
        return replies, await self._routing_at(int(version)), due, now

    def _due_start_times(self, *, thorough: bool) -> dict[str, int]:
        """Return the times from which to look for due maintenance, as values of the query."""
        return {}

    def _record_due_look(self, now: Now, due: frozenset[PassName], *, thorough: bool) -> None:
        """Store the result of a look for due maintenance."""

    async def lock_claim_token(self, worker: str, lease_token: str) -> None:
        """Wait until an earlier send of the same claim has been decided."""
        await self.send("claim_lock_token", {"worker": worker, "token": lease_token})

    async def jobs_held(self, worker: str, lease_token: str) -> list[JobRow]:
        """Return the running jobs of one claim."""
        return _by_claim_index(await self._jobs("jobs_held", {"worker": worker, "lease_token": lease_token}))

    async def last_fair_key(self, scope: str) -> str | None:
        """Return the fairness key served last in a scope."""
        rows = await self.query("fair_key_read", {"scope": scope})
        return rows[0][0] if rows else None

    async def set_last_fair_key(self, scope: str, fair_key: str, now: Now, *, first: bool) -> None:
        """Remember the fairness key served last."""
        await self.send("fair_key_write", {"scope": scope, "fair_key": fair_key, "now": now.wall_ms})
        if first:
            await self.send("fair_key_trim", {"keep": _FAIR_SCOPES_KEPT})

    async def supersede(self, worker: str, incarnation: str, now: Now) -> None:
        """Make this start the only one of an exclusive worker."""
        await self.send("incarnation_supersede", {"worker": worker})
        values = {"worker": worker, "incarnation": incarnation, "now": now.wall_ms}
        await self.send("incarnation_insert", values)
        await self.send("incarnations_delete", {"worker": worker, "keep": _INCARNATIONS_KEPT})

    async def jobs_held_by_others(self, worker: str, incarnation: str, limit: int) -> list[JobRow]:
        """Return running jobs that other starts of a worker hold."""
        values = {"worker": worker, "incarnation": incarnation, "limit": limit}
        return await self._jobs("jobs_held_by_others", values)

    # --- maintenance ------------------------------------------------------------------------------------------------

    async def due_jobs(self, now: Now, limit: int) -> list[JobRow]:
        """Return scheduled jobs that have become due."""
        return await self._jobs("jobs_due", {"now": now.wall_ms, "limit": limit})

    async def expired_jobs(self, now: Now, limit: int) -> list[JobRow]:
        """Return running jobs whose lease has expired."""
        return await self._jobs("jobs_expired", {"now": now.lease_ms, "limit": limit})

    async def expired_jobs_of(self, worker: str, incarnation: str, now: Now, limit: int) -> list[JobRow]:
        """Return running jobs of one start of a worker whose lease has expired."""
        values = {"worker": worker, "incarnation": incarnation, "now": now.lease_ms, "limit": limit}
        return await self._jobs("jobs_expired_of_worker", values)

    async def suspect_jobs_of(self, worker: str, incarnation: str, limit: int) -> list[JobRow]:
        """Return waiting jobs that became suspect when one start of a worker held them."""
        values = {"worker": worker, "incarnation": incarnation, "limit": limit}
        return await self._jobs("jobs_suspect_of_worker", values)

    async def late_jobs(self, now: Now, limit: int) -> list[JobRow]:
        """Return waiting jobs that have passed their deadline."""
        return await self._jobs("jobs_past_deadline", {"now": now.wall_ms, "limit": limit})

    async def next_times(self) -> NextTimes:
        """Return when the next maintenance is due."""
        [row] = await self.query("claim_next_times")
        return NextTimes(*row)

    async def successors(self, seqs: Sequence[int]) -> list[JobRow]:
        """Return the blocked jobs that wait for these jobs to finish."""
        return await self._jobs("jobs_succeeding", {"seqs": list(seqs)})

    # --- transitions ------------------------------------------------------------------------------------------------

    async def apply(self, decided: Sequence[transitions.Transition], now: Now) -> None:
        """Write decided transitions, their history and their events."""
        others = [transition for transition in decided if transition.event not in _FREQUENT]
        if len(others) < len(decided):
            await self._write_frequent(decided)
        if others:
            await self._write_others(others)
            await self._write_attempts(others, now)
        events = {after.seq: event for before, after, event in decided if after.event_count != before.event_count}
        await self.append_events(events, now)

    @abstractmethod
    async def _write_others(self, decided: Sequence[transitions.Transition]) -> None:
        """Write transitions other than claims and successes."""

    async def write_claims(self, jobs: Sequence[JobRow]) -> None:
        """Write claims of ready jobs."""
        indexes = {job.seq: job.claim_index for job in jobs}
        values = {"indexes": indexes, "counted": 0, **_lease({job.seq: job for job in jobs})}
        await self._write_claims(values, len(jobs))

    async def _write_frequent(self, decided: Sequence[transitions.Transition]) -> None:
        """Write the two transitions that every job goes through, by narrower queries.

        The index in a claim and the result of a success differ by job; all other values are common to the call or,
        like the epoch, increase by one.
        """
        claimed: dict[int, dict[int, JobRow]] = {}
        done: dict[int, dict[int, JobRow]] = {}
        for before, after, event in decided:
            if event in _FREQUENT:
                group = claimed if event == "claimed" else done
                group.setdefault(after.event_count - before.event_count, {})[after.seq] = after
        for counted, jobs in claimed.items():
            indexes = {seq: job.claim_index for seq, job in jobs.items()}
            await self._write_claims({"indexes": indexes, "counted": counted, **_lease(jobs)}, len(jobs))
        for counted, jobs in done.items():
            digests = {seq: job.settle_digest for seq, job in jobs.items() if job.settle_digest is not None}
            values = {
                "results": {seq: job.result_json for seq, job in jobs.items()},
                "counted": counted,
                "finished_at_ms": next(iter(jobs.values())).finished_at_ms,
            }
            await self._change("job_done", values, len(jobs))
            if digests:
                await self._change("job_digest", {"digests": digests}, len(digests))

    async def _write_claims(self, values: Mapping[str, Any], expected: int) -> None:
        await self._change("job_claim", values, expected)

    async def _write_attempts(self, decided: Sequence[transitions.Transition], now: Now) -> None:
        stored, trimmed = [], []
        for transition in decided:
            if attempt := transitions.attempt_ended(transition, now):
                job = transition.after
                stored.append((job.seq, job.lease_token, job.settle_digest, *attempt))
                if attempt.epoch > limits.ATTEMPTS_KEPT:
                    trimmed.append((job.seq, attempt.epoch - limits.ATTEMPTS_KEPT))
        if stored:
            await self.send("attempt_insert", many=stored)
        if trimmed:
            await self.send("attempt_trim", many=trimmed)

    async def refresh(self, claims: Sequence[Claim]) -> dict[int, JobRow]:
        """Return the current jobs of *claims*.

        A job that still runs under its claim differs from the claimed one in a few columns only, so only these are
        read; any other job is read completely.
        """
        rows = await self.query("jobs_current", {"seqs": [claim.job.number for claim in claims]})
        changed = {row[0]: row for row in rows}
        jobs: dict[int, JobRow] = {}
        moved: list[int] = []
        for claim in claims:
            job = row_of(claim.job)
            row = changed.get(job.seq)
            if row is None:
                continue
            if row[1] == job.epoch and row[2] == job.state == "running":
                same = row[3:] == _changing(job)
                jobs[job.seq] = job if same else job._replace(**dict(zip(CHANGING, row[3:], strict=True)))
            else:
                moved.append(job.seq)
        if moved:
            jobs.update((job.seq, job) for job in await self.jobs_by_seq(moved))
        return jobs

    async def settled_attempt(self, seq: int, epoch: int) -> tuple[str, str | None] | None:
        """Return the lease token and digest of a stored attempt."""
        rows = await self.query("attempt_proof", {"seq": seq, "epoch": epoch})
        return (rows[0][0], rows[0][1]) if rows else None

    async def renew_leases(self, jobs: Sequence[JobRow]) -> None:
        """Write the lease expiry of each job."""
        rows = [(job.lease_until_ms, job.unacknowledged, job.seq, job.epoch) for job in jobs]
        await self._change_rows("job_lease", rows)

    async def acknowledge(self, fences: Sequence[JobFence], now: Now) -> None:
        """Mark claims as started."""
        rows = [(fence.seq, fence.epoch, fence.lease_token, now.lease_ms) for fence in fences]
        await self.send("job_acknowledge", many=sorted(rows))

    async def update_progress(self, job: JobRow) -> None:
        """Write phase and percentage."""
        values = {"phase": job.phase, "percent": job.percent, "seq": job.seq, "epoch": job.epoch}
        await self.send("job_progress", values)

    async def update_priority(self, job: JobRow) -> None:
        """Write the priority."""
        values = {"seq": job.seq, "priority": job.priority, "event_count": job.event_count}
        await self.send("job_priority", values)

    async def update_fair_keys(self, changes: Sequence[tuple[str, int]]) -> None:
        """Write fairness keys."""
        await self._change_rows("job_fair_key", changes)

    async def append_events(self, events: Mapping[int, EventName], now: Now) -> None:
        """Append an event for each job."""
        if events:
            await self._change("events_append", {"events": dict(events), "at_ms": now.wall_ms}, len(events))

    # --- jobs -------------------------------------------------------------------------------------------------------

    async def job_by_id(self, job_id: str) -> JobRow | None:
        """Return one job."""
        jobs = await self._jobs("job_by_id", {"id": job_id})
        return jobs[0] if jobs else None

    async def jobs_by_id(self, job_ids: Sequence[str]) -> list[JobRow]:
        """Return the jobs with these ids."""
        return await self._jobs("jobs_by_id", {"ids": list(job_ids)})

    async def jobs_by_seq(self, seqs: Sequence[int]) -> list[JobRow]:
        """Return the jobs with these numbers."""
        return await self._jobs("jobs_by_seq", {"seqs": list(seqs)})

    async def list_jobs(
        self,
        job_filter: results.JobFilter,
        before: JobPosition,
        limit: int,
        now: Now,
        *,
        by_finish: bool,
        floor: JobPosition = (-1, -1),
    ) -> list[JobRow]:
        """Return jobs below a position and not below a floor."""
        finished_before, seq_before = before
        values = {**conditions(job_filter, now), "before": seq_before, "limit": limit}
        session, root, tags = job_filter.session, job_filter.root, dict(job_filter.tags)
        named: tuple[QueryName, dict[str, Any]] | None = None
        if job_filter.fingerprint is not None:
            finished = {"finished_before": finished_before, "finished_floor": floor[0], "floor": floor[1]}
            named = ("jobs_by_fingerprint", {"fingerprint": job_filter.fingerprint, **finished})
        elif job_filter.group is not None:
            named = ("jobs_by_group", {"group": job_filter.group})
        elif session is not None:
            named = ("jobs_by_session", {"session": session, "root": root, "floor": floor[1]})
        elif root is not None:
            named = ("jobs_by_root", {"root": root})
        if named is not None:
            return await self._jobs(named[0], {**values, **named[1], "tags": tags})
        values["floor"] = floor[1]
        if tags:
            tag, value = tags.popitem()
            return await self._jobs("jobs_by_tags", {**values, "tag": tag, "value": value, "tags": tags})
        if by_finish:
            del values["states"]
            values |= {"finished_before": finished_before, "finished_floor": floor[0]}
            return await self._jobs("jobs_by_finish", {**values, "state": job_filter.states[0]})
        return await self._jobs("jobs_by_order", values)

    async def waiting_seqs(self, routes: Sequence[int], after: int, limit: int) -> list[int]:
        """Return the numbers of waiting jobs on these routes."""
        values = {"routes": list(routes), "after": after, "limit": limit}
        return [seq for (seq,) in await self.query("jobs_waiting_on_routes", values)]

    async def attempts(self, seq: int) -> list[AttemptRow]:
        """Return the stored attempts of a job."""
        return [AttemptRow(*row) for row in await self.query("attempts_of_job", {"seq": seq})]


# In the order of the columns of `claim_header`.
_PASSES: Final[tuple[PassName, ...]] = ("schedules", "leases", "deadlines", "wakes")


def _route(number: int, lane: str, kind: str, requires_json: str, *flags: int) -> Route:
    has_affinity, session = map(bool, flags)
    key = RouteKey(lane, kind, requires_json, has_affinity, session)
    return Route(number, key, frozenset(strict_json.decode(requires_json)))


def _kind(
    name: str, options_json: str | None, timeout_ms: int, session: int, schema_json: str | None, *times: Any
) -> KindRow:
    publication = None if options_json is None else Publication(options_json, timeout_ms, bool(session), schema_json)
    return KindRow(name, publication, *times)


def _deleted_job(tenant: str, dedupe_kind: str, dedupe_key: str, *rest: Any) -> JobRow:
    """Return a deleted job as its kept key describes it."""
    names = ("seq", "id", "state", "kind", "lane", "requires_json", "enqueued_at_ms", "finished_at_ms")
    known = dict(zip(names, rest, strict=True))
    return deleted_row(tenant=tenant, dedupe_kind=dedupe_kind, dedupe_key=dedupe_key, **known)


def _matching(matches: Sequence[JobMatch]) -> dict[str, Any]:
    return {"matches": [[*(one.key or (None, None, None)), one.job_id, one.seq] for one in matches]}


def _by_claim_index(jobs: list[JobRow]) -> list[JobRow]:
    return sorted(jobs, key=lambda job: job.claim_index or 0)


def _lease(jobs: Mapping[int, JobRow]) -> dict[str, object]:
    """Return the values common to all jobs of one claim."""
    one = next(iter(jobs.values()))
    acknowledged = [job.claim_index or 0 for job in jobs.values() if not job.unacknowledged]
    return {
        "acknowledged": max(acknowledged, default=-1) + 1,
        "worker": one.worker,
        "incarnation": one.incarnation,
        "lease_token": one.lease_token,
        "lease_until_ms": one.lease_until_ms,
        "started_at_ms": one.started_at_ms,
    }
