"""Transactions on one SQLite connection."""

import contextlib
import sqlite3
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from holdfast.domain import claim_order, outcomes, strict_json, transitions
from holdfast.domain.claims import Claim, ClaimRequest, JobFence, fence_of, held_under
from holdfast.domain.clock import Clock, Now
from holdfast.domain.job import STATE_NUMBERS, Job, JobRow, LazyRow, job_of, row_of
from holdfast.domain.new_job import CheckedJob, JobSettings, NewRow, plain_job, times_of
from holdfast.domain.results import Finding
from holdfast.domain.routing import Route, RoutingTable, fair_key_of
from holdfast.storage import notifications
from holdfast.storage.contract import OvertakenError, ReadyJobs, ReadyRequest
from holdfast.storage.plain_contract import ClaimedJobs, FinishedJobs
from holdfast.storage.query_names import QueryName
from holdfast.storage.select_ready import choose_from, first_level, is_one_stream, offer_of, select_stream
from holdfast.storage.sql_queries import Row, Rows
from holdfast.storage.sql_transaction import RoutingCache, SqlTransaction
from holdfast.storage.sqlite import sql
from holdfast.storage.sqlite.health import examine, form_findings

Observer: TypeAlias = Callable[[str], None]
"""Called with the name of each statement before it runs, and with begin, commit and committed. A test may raise."""


def unobserved(_name: str) -> None:
    """Do nothing."""


def plain_cursor(connection: sqlite3.Connection) -> sqlite3.Cursor:
    """Return a cursor whose rows are tuples; the caller's own connection may use another row factory."""
    cursor = connection.cursor()
    cursor.row_factory = None
    return cursor


def close_connection(cursor: sqlite3.Cursor) -> None:
    """Close *cursor*, then its connection: an open statement would keep the file open."""
    connection = cursor.connection
    with contextlib.suppress(sqlite3.Error):
        cursor.close()
    with contextlib.suppress(sqlite3.Error):
        connection.close()


_NO_VALUES: Mapping[str, Any] = {}


Form: TypeAlias = Literal["enqueue plain", "enqueue full", "claim plain", "claim full", "settle plain", "settle full"]


class SqliteState(RoutingCache):
    """The state shared by the transactions of one store."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path
        self.forms: Counter[Form] = Counter()
        """How many jobs were enqueued and settled, and how many calls have claimed, in plain and in full form."""


class SqliteTransaction(SqlTransaction):
    """An open transaction on a sync connection.

    All statements of a transaction, including begin and rollback, go through one cursor, which resets the previous
    statement when it runs the next. An interrupt may occur between a statement and fetching its rows; on a separate
    cursor, which the traceback would keep alive, the statement and its snapshot would stay open.
    """

    __slots__ = ("_clock", "_cursor", "_forms", "_observe", "_path")

    def __init__(self, state: SqliteState, cursor: Any, clock: Clock, observe: Observer) -> None:
        # Not by super().__init__: it is created for every operation.
        self.topics = set()
        self._cache = state
        self.rollups = state.rollups
        self._forms = state.forms
        self._path = state.path
        self._cursor = cursor
        self._clock = clock
        self._observe = observe

    async def now(self) -> Now:
        """Return the store's clock."""
        return self._clock.now()

    async def query(
        self, name: QueryName, values: Mapping[str, Any] = _NO_VALUES, many: Sequence[Row] | None = None
    ) -> Rows:
        """Run one named statement."""
        if many is None:
            return await self._send(*self._bind(name, values), name)
        return [(await self._send_many(name, many),)]

    # The next three send statements. On a sync connection they never suspend.

    async def _send_many(self, name: QueryName, rows: Sequence[Row]) -> int:
        """Run a statement for each of *rows* and return how many rows it changed."""
        self._observe(name)
        cursor: sqlite3.Cursor = self._cursor
        return cursor.executemany(sql.QUERIES[name], rows).rowcount

    async def _send(self, text: str, values: Mapping[str, Any], name: QueryName) -> Rows:
        self._observe(name)
        cursor: sqlite3.Cursor = self._cursor
        cursor.execute(text, values)
        return cursor.fetchall() if cursor.description is not None else [(cursor.rowcount,)]

    async def _insert(self, name: QueryName, values: Row) -> int | None:
        """Insert a row and return its number, or None if it was ignored."""
        self._observe(name)
        cursor: sqlite3.Cursor = self._cursor
        cursor.execute(sql.QUERIES[name], values)
        return cursor.lastrowid if cursor.rowcount else None

    # --- plain forms ------------------------------------------------------------------------------------------------

    async def insert_plain(self, new: CheckedJob) -> Job | None:
        """Store one job by one statement, if the cached routing is current."""
        routing = self._cache.newest
        found = None if routing is None else plain_job(new, routing)
        if routing is None or found is None:
            return None
        new, route = found
        now = self._clock.now()
        fair_key, common = _common_values(new.settings, route, routing, now)
        payload = new.payload_json
        large = len(payload) > _PAYLOAD_CHARS_MAX
        values = (str(routing.version), new.id, None if large else payload, *common)
        seq = await self._insert("job_insert_plain", values)
        if seq is None:
            return None
        if large:
            await self.query("job_insert_body", many=[(seq, payload)])
        if new.settings.tags_json != "{}":
            await self._insert_tags([(seq, new.settings.tags_json)])
        self.topics.add(notifications.LANE_TOPIC + route.key.lane)
        self._forms["enqueue plain"] += 1
        return job_of(NewRow(new, seq, fair_key, now))

    async def insert_plain_jobs(
        self, jobs: Sequence[CheckedJob], seqs: Sequence[int], routing: RoutingTable, now: Now
    ) -> list[Job]:
        """Store new jobs, and large payloads apart from them."""
        # Validated settings are cached, so that most jobs of a call share the same object.
        known: dict[int, tuple[str, Row]] = {}
        rows, bodies, stored, tagged = [], [], [], False
        for new, seq in zip(jobs, seqs, strict=True):
            settings, payload = new.settings, new.payload_json
            found = known.get(id(settings))
            if found is None:
                found = _common_values(settings, routing.routes[settings.route], routing, now)
                known[id(settings)] = found
                tagged = tagged or settings.tags_json != "{}"
            fair_key, common = found
            large = len(payload) > _PAYLOAD_CHARS_MAX
            if large:
                bodies.append((seq, payload))
            rows.append((seq, new.id, None if large else payload, *common))
            stored.append(job_of(NewRow(new, seq, fair_key, now)))
        await self._change_rows("job_insert_plain_many", rows)
        if bodies:
            await self.query("job_insert_body", many=bodies)
        if tagged:
            await self._insert_tags((seq, new.settings.tags_json) for new, seq in zip(jobs, seqs, strict=True))
        self._forms["enqueue plain"] += len(rows)
        return stored

    async def claim_plain(self, request: ClaimRequest) -> ClaimedJobs | None:
        """Claim the next jobs by two statements, if the cached routing is current and no maintenance is due."""
        routing = self._cache.newest
        if routing is None or request.tenant is not None or request.listed or request.preference != _NO_PREFERENCE:
            return None
        routes = routing.serving(request.lanes, request.kinds, request.capabilities)
        if not routing.recorded_lanes.isdisjoint(request.lanes):
            return None
        if not routes or len(routes) > _PLAIN_ROUTES_MAX or routing.is_gated(routes):
            return None
        now = self._clock.now()
        scope = request.fair_scope_prefix()
        values: dict[str, Any] = {
            "scope": scope,
            "version": str(routing.version),
            "wall_now": now.wall_ms,
            "lease_now": now.lease_ms,
            "chosen_token": request.lease_token if request.resent else None,
        }
        one_route, one_job = len(routes) == 1, request.limit == 1
        name = _PLAIN_QUERIES[one_route, one_job]
        if one_route:
            values["route"] = routes[0].number
        else:
            values["routes"] = strict_json.compact([route.number for route in routes])
        if not one_job:
            values["limit"] = request.limit
        rows = await self._send(sql.QUERIES[name], values, name)
        if not rows or any(row[_EXTRA] is not None and "record_all" in row[_EXTRA] for row in rows):
            return None
        if one_route and not one_job:
            rows = claim_order.take_turns_of(rows, _place, _by_due_time, request.limit)
        await self._lease_plain(request, [row[1] for row in rows], now)
        claimed = _PlainClaim(routing, request, now)
        claims = [
            held_under(
                _new_tuple(JobFence, (row[1], row[2], row[13] + 1, request.lease_token)),
                job_of(_ClaimedRow(claimed, row, index)),
                request.lease_ms,
            )
            for index, row in enumerate(rows)
        ]
        self._forms["claim plain"] += 1
        last_fair_key, _, _, _, fair_key, priority, *_ = rows[-1]
        return ClaimedJobs(routing, claims, f"{scope}{priority}", last_fair_key, fair_key)

    async def _lease_plain(self, request: ClaimRequest, seqs: list[int], now: Now) -> None:
        values: dict[str, Any] = {
            "counted": 0,
            "acknowledged": request.acknowledged,
            "worker": request.worker,
            "incarnation": request.incarnation,
            "lease_token": request.lease_token,
            "lease_until_ms": now.lease_ms + request.lease_ms,
            "started_at_ms": now.wall_ms,
        }
        if len(seqs) == 1:
            values["key"], values["value"] = seqs[0], 0
            [[changed]] = await self._send(sql.QUERIES["job_claim_one"], values, "job_claim_one")
            if changed:
                return
        await self._write_claims({"indexes": {seq: index for index, seq in enumerate(seqs)}, **values}, len(seqs))

    async def finish_held(self, settlements: Sequence[tuple[Claim, outcomes.CheckedOutcome]]) -> FinishedJobs:
        """Finish the jobs whose lease is held, with their events, by two statements."""
        now = self._clock.now()
        return FinishedJobs(now, await self._finish_held(settlements, now))

    async def _finish_held(
        self, settlements: Sequence[tuple[Claim, outcomes.CheckedOutcome]], now: Now
    ) -> dict[int, Row]:
        times = {"now": now.wall_ms, "lease_now": now.lease_ms}
        if len(settlements) == 1:
            [(claim, checked)] = settlements
            seq, _, epoch, token = fence_of(claim)
            values = {"seq": seq, "epoch": epoch, "token": token, "result": checked.result_json, **times}
            rows = await self._send(sql.QUERIES["job_done_held_one"], values, "job_done_held_one")
            if not rows:
                return {}
            event = {"key": seq, "value": "done", "at_ms": now.wall_ms}
            await self._send(sql.QUERIES["events_append_one"], event, "events_append_one")
            self._forms["settle plain"] += 1
            await self._wake_after(rows, now)
            return {seq: rows[0][1:-2]}
        results: dict[tuple[int, str], dict[int, str | None]] = {}
        claims: dict[int, Claim] = {}
        for claim, checked in settlements:
            seq, _, epoch, token = fence_of(claim)
            results.setdefault((epoch, token), {})[seq] = checked.result_json
            claims[seq] = claim
        finished: dict[int, Row] = {}
        others: list[Row] = []
        for (epoch, token), group in results.items():
            held = {"epoch": epoch, "token": token, **times}
            first = claims[next(iter(group))]
            if len(group) >= _GROUP_MIN and (found := await self._finish_group(first, group, held)):
                finished |= found
            else:
                others += [(seq, epoch, token, result) for seq, result in group.items()]
        if others:
            rows = await self.query("job_done_held", {"held": others, **times})
            finished |= {row[0]: row[1:-2] for row in rows}
            await self._wake_after(rows, now)
        if finished:
            seqs = [seq for seq in claims if seq in finished]
            await self._change("events_append_done", {"seqs": seqs, "at_ms": now.wall_ms}, len(seqs))
            self._forms["settle plain"] += len(seqs)
        return finished

    async def _wake_after(self, rows: Rows, now: Now) -> None:
        """Append wake rows of finished jobs for which others wait, and of gates where they held a permit."""
        if awaited := [row[0] for row in rows if row[-2]]:
            await self.add_wakes("parent", awaited, now)
        if gates := {row[-1] for row in rows if row[-1] is not None}:
            await self.add_wakes("gate", sorted(gates), now)

    async def _finish_group(
        self, first: Claim, results: dict[int, str | None], held: Mapping[str, Any]
    ) -> dict[int, Row] | None:
        """Finish the jobs of one claim if all are held, and none has changed or concerns others; else do nothing."""
        row = row_of(first.job)
        values: dict[str, Any] = {
            "priority": row.priority,
            "event_count": row.event_count,
            **held,
        }
        name: QueryName = "job_done_same"
        different = set(results.values())
        if len(different) == 1:
            values["seqs"], values["result"] = list(results), different.pop()
        else:
            name, values["results"] = "job_done_each", results
        await self.query("savepoint")
        [[changed]] = await self.query(name, values)
        if changed != len(results):
            await self.query("savepoint_undo")
        await self.query("savepoint_keep")
        current = (row.priority, None, None, 0, row.event_count + 1, False)
        return dict.fromkeys(results, current) if changed == len(results) else None

    # --- the narrow row ---------------------------------------------------------------------------------------------

    async def insert_jobs(self, jobs: Sequence[tuple[Route, JobRow]]) -> None:
        """Store new jobs, and large payloads apart from them."""
        self._forms["enqueue full"] += len(jobs)
        await self._change_rows("job_insert", [_new_row(route.number, job) for route, job in jobs])
        bodies = [(job.seq, job.payload_json) for _, job in jobs if len(job.payload_json) > _PAYLOAD_CHARS_MAX]
        if bodies:
            await self.query("job_insert_body", many=bodies)
        await self._insert_tags((job.seq, job.tags_json) for _, job in jobs)

    async def update_content(self, before: JobRow, job: JobRow) -> None:
        """Write the content that a duplicate replaced."""
        large = len(job.payload_json) > _PAYLOAD_CHARS_MAX
        values = {"seq": job.seq, "extra": _extra_of(job), "event_count": job.event_count}
        await self._replace_tags(before, job)
        await self.query("job_payload_write", {**values, "payload": None if large else job.payload_json})
        if large:
            await self.query("job_insert_body", many=[(job.seq, job.payload_json)])
        else:
            await self.query("bodies_delete", {"seqs": [job.seq]})

    async def _write_others(self, decided: Sequence[transitions.Transition]) -> None:
        rows = [
            (STATE_NUMBERS[after.state], *_moved(after), _extra_of(after), after.seq, before.epoch)
            for before, after, _ in decided
        ]
        await self._change_rows("job_transition", rows)

    async def _write_claims(self, values: Mapping[str, Any], expected: int) -> None:
        [[changed]] = await self.query("job_claim", values)
        if not changed:
            # The first claim of this start of the worker, or the first within the hour.
            names = ("worker", "incarnation", "started_at_ms")
            await self.query("holder_insert", {name: values[name] for name in names})
            await self._change("job_claim", values, expected)
        elif changed != expected:
            raise OvertakenError(f"job_claim changed {changed} of {expected} rows")

    async def _write_gated_claims(self, values: dict[str, Any], expected: int) -> None:
        # The worker may have no number, as in `_write_claims`, and claims of gated jobs are not that frequent.
        await self.query("holder_insert", {name: values[name] for name in ("worker", "incarnation", "started_at_ms")})
        await super()._write_gated_claims(values, expected)

    async def clear_suspicion(self, jobs: Sequence[JobRow]) -> None:
        """Store that jobs are no longer suspect."""
        await self._change_rows(
            "job_clear_suspicion", [(job.suspect, _extra_of(job), job.seq, job.epoch) for job in jobs]
        )

    async def delete_unused_holders(self, now: Now) -> int:
        """Delete old holders in no job and no event. That reads all jobs, and so waits until there are many."""
        old = {"before": now.wall_ms - _HOLDERS_MS}
        [[found]] = await self.query("holders_old", old)
        if found < _HOLDERS_MIN:
            return 0
        [[deleted]] = await self.query("holders_delete_unused", old)
        await self.query("holders_write_kept", old)
        return int(deleted)

    async def _delete_jobs(self, seqs: list[int]) -> None:
        for name in _DELETIONS:
            await self.query(name, {"seqs": seqs})

    # --- selecting --------------------------------------------------------------------------------------------------

    async def select_ready(self, request: ReadyRequest) -> ReadyJobs | None:
        """Choose ready jobs in claim order; there is no other writer to take them."""
        selected = await select_ready(self, request)
        if selected is not None:
            self._forms["claim full"] += 1
        return selected

    async def apply(self, decided: Sequence[transitions.Transition], now: Now) -> None:
        """Write decided transitions, their history and their events."""
        self._forms["settle full"] += sum(transition.event == "done" for transition in decided)
        await super().apply(decided, now)

    async def health(self) -> list[Finding]:
        """Return the state of the library, the file and its modes, and how often calls took their plain forms."""
        return [*await examine(self, self._path), *form_findings(self._forms)]

    def _bind(self, name: QueryName, values: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """Return the text and its values. Some statements for many values have a faster text for one."""
        for_one = sql.FOR_ONE.get(name)
        if for_one is not None and (bound := sql.bound_one(values)) is not None:
            return sql.QUERIES[for_one], bound
        return sql.QUERIES[name], sql.bound(values)


_NO_PREFERENCE: Final = claim_order.Preference()
_new_tuple: Final = tuple.__new__
"""Makes a named tuple in a third of the time."""
_PLAIN_ROUTES_MAX: Final = 32
_PLAIN_QUERIES: Final[Mapping[tuple[bool, bool], QueryName]] = {
    (True, True): "ready_plain_next",
    (False, True): "ready_plain_routes",
    (True, False): "ready_plain_stream",
    (False, False): "ready_plain_streams",
}
"""The queries of a plain claim, by whether it serves one route and takes one job."""
_EXTRA: Final = 21
"""The index of `extra` among their columns."""
_by_due_time: Final = itemgetter(9, 1)
_place: Final = itemgetter(-1)
"""The place of the fair_key among the next ones."""
_GROUP_MIN: Final = 8
"""Smaller groups of jobs are finished by one statement for all of them."""
_HOLDERS_MS: Final = 86_400_000
_HOLDERS_MIN: Final = 1_000
"""How many holders that have not claimed for this time, and were not in use before, are looked for in all jobs."""
# The last leaves a tombstone of the job with the highest number.
_DELETIONS: Final[tuple[QueryName, ...]] = ("bodies_delete", "jobs_delete", "jobs_delete_highest")


# --- the narrow row ------------------------------------------------------------------------------------------------

_PAYLOAD_CHARS_MAX: Final = 1_024
"""Larger payloads are stored apart."""
_READY, _SCHEDULED = STATE_NUMBERS["ready"], STATE_NUMBERS["scheduled"]

# The values of a job that are in `extra` if they differ from these.
RARE: Final[Mapping[str, Any]] = {
    "headers_json": "{}",
    "tags_json": "{}",
    "backoff_json": None,
    "record_all": 0,
    "digest": None,
    "parent": None,
    "entry_json": None,
    "outcome": None,
    "settle_digest": None,
    "deferrals": 0,
    "deferred_since_ms": None,
    "releases": 0,
    "failure_class": None,
    "failure_reason": None,
    "failure_message": None,
    "failure_traceback": None,
}
_rare: Final = attrgetter(*RARE)
_USUAL: Final = tuple(RARE.values())
# The columns of `job_transition` after the state, in its order.
MOVED: Final = (
    "fair_key",
    "due_at_ms",
    "deadline_at_ms",
    "finished_at_ms",
    "attempt",
    "lease_until_ms",
    "phase",
    "percent",
    "cancel_requested",
    "suspect",
    "predecessor",
    "event_count",
    "result_json",
    "unacknowledged",
)
# The columns of `job_insert` after number, id, state and route, in its order; followed by `extra` and the payload.
NEW: Final = (
    "tenant",
    "fair_key",
    "priority",
    "affinity",
    "enqueued_at_ms",
    "due_at_ms",
    "deadline_at_ms",
    "max_attempts",
    "dedupe_key",
    "dedupe_kind",
    "predecessor",
    "session_number",
    "enqueue_seq",
    "root",
    "event_count",
)
_moved: Final = attrgetter(*MOVED)
_added: Final = attrgetter(*NEW)


def _extra_of(job: JobRow) -> str | None:
    """Return the rare values of *job* as JSON, None if it has none."""
    values = _rare(job)
    if values == _USUAL:
        return None
    return strict_json.compact(
        {name: value for (name, usual), value in zip(RARE.items(), values, strict=True) if value != usual}
    )


def _common_values(settings: JobSettings, route: Route, routing: RoutingTable, now: Now) -> tuple[str, Row]:
    """Return the fairness key of plain jobs with these settings, and the values that are stored for each of them."""
    lane = routing.lanes.get(route.key.lane)
    fair_key = settings.tenant if lane is None else fair_key_of(lane, settings.tenant)
    due_at_ms, deadline_at_ms = times_of(settings, now)
    state = _READY if due_at_ms <= now.wall_ms else _SCHEDULED
    placed = (state, route.number, settings.tenant, fair_key, settings.priority, settings.affinity)
    times = (now.wall_ms, due_at_ms, deadline_at_ms)
    return fair_key, (*placed, *times, settings.max_attempts, _extra_of_settings(settings))


def _extra_of_settings(settings: JobSettings) -> str | None:
    """Return the same for a plain new job."""
    if settings.headers_json == settings.tags_json == "{}" and settings.backoff_json is None:
        return None
    values = {name: getattr(settings, name) for name in ("headers_json", "tags_json", "backoff_json")}
    return strict_json.compact({name: value for name, value in values.items() if value != RARE[name]})


def _new_row(route: int, job: JobRow) -> Row:
    payload = job.payload_json
    stored = payload if len(payload) <= _PAYLOAD_CHARS_MAX else None
    return (job.seq, job.id, STATE_NUMBERS[job.state], route, *_added(job), _extra_of(job), stored)


class _PlainClaim(NamedTuple):
    """What the jobs of one plain claim have in common."""

    routing: RoutingTable
    request: ClaimRequest
    now: Now


class _ClaimedRow(LazyRow):
    """The row of a job after a plain claim; *row* is what the claim has read, `transitions.claim` makes the rest."""

    __slots__ = ("_claim", "_index", "_row")

    def __init__(self, claim: _PlainClaim, row: Row, index: int) -> None:
        self._claim = claim
        self._row = row
        self._index = index

    seq = property(lambda self: self._row[1])
    id = property(lambda self: self._row[2])
    tenant = property(lambda self: self._row[3])
    payload_json = property(lambda self: self._row[7])
    suspect = property(lambda self: self._row[16])
    due_at_ms = property(lambda self: self._row[9])
    started_at_ms = property(lambda self: self._claim.now.wall_ms)
    kind = property(lambda self: self._claim.routing.by_number[self._row[20]].key.kind)
    lane = property(lambda self: self._claim.routing.by_number[self._row[20]].key.lane)
    failure_reason = property(lambda self: None if self._row[_EXTRA] is None else self.make().failure_reason)
    unacknowledged = property(lambda self: 0 if self._index < self._claim.request.acknowledged else self._row[14] + 1)

    def make(self) -> JobRow:
        """Return the row."""
        routing, request, now = self._claim
        return transitions.claim(_ready_job(routing, self._row), request, self._index, now).after


def _ready_job(routing: RoutingTable, row: Row) -> JobRow:
    """Return the ready job of a row of a plain claim, without its last attempt, which the claim overwrites."""
    _, seq, job_id, tenant, fair_key, priority, affinity, payload, enqueued_at_ms, due_at_ms = row[:10]
    deadline_at_ms, attempt, max_attempts, epoch, unacknowledged, cancel_requested, suspect = row[10:17]
    key, kind, events, route, extra, root = row[17:23]
    lane, job_kind, requires_json, _, _ = routing.by_number[route].key
    rare = _USUAL if extra is None else (*map({**RARE, **strict_json.decode(extra)}.__getitem__, RARE),)
    (headers, tags, backoff, record_all, digest, parent), rest = rare[:6], rare[9:]
    deferrals, deferred_since_ms, releases, *failure = rest
    none = None
    return tuple.__new__(
        JobRow,
        (
            *(seq, job_id, "ready", job_kind, lane, tenant, fair_key, priority, affinity, requires_json, payload),
            *(headers, tags, none, enqueued_at_ms, due_at_ms, deadline_at_ms, none, attempt, max_attempts, backoff),
            *(epoch, none, none, none, none, none, none, none, none, none, none, unacknowledged, cancel_requested),
            *(suspect, deferrals, deferred_since_ms, releases, *failure, key, kind, none, digest, parent, root),
            *(none, none, none, record_all, events),
        ),
    )


async def select_ready(tx: SqlTransaction, selection_request: ReadyRequest) -> ReadyJobs | None:
    """Choose ready jobs of the first level that has any, up to the limit, in claim order."""
    request, preference, routes, limit = selection_request[:4]
    level = await first_level(tx, request, routes, limit)
    if level is None:
        return None
    if is_one_stream(level, preference):
        return await select_stream(tx, level, preference, limit)
    offer = await offer_of(tx, level, preference)
    chosen = choose_from(offer, limit, preference)
    jobs = {job.seq: job for job in await tx.jobs_by_seq([candidate.seq for candidate in chosen])}
    return ReadyJobs([jobs[candidate.seq] for candidate in chosen], *offer.fair_position)
