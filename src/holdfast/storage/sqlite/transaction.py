"""Transactions on one SQLite connection."""

import contextlib
import sqlite3
from collections.abc import Callable, Coroutine, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final, TypeAlias

from holdfast.domain import claim_order, outcomes, transitions
from holdfast.domain.claims import Claim, ClaimRequest, JobFence, held_by, held_together, number_of, taken_with
from holdfast.domain.clock import Clock, Now
from holdfast.domain.job import STATE_NUMBERS, Job, JobRow, columns_of, job_of
from holdfast.domain.new_job import CheckedJob, NewRow, is_plain, plain_job
from holdfast.domain.results import Finding
from holdfast.domain.routing import Route, RoutingTable
from holdfast.storage.contract import JobPosition, OvertakenError, ReadyJobs, ReadyRequest
from holdfast.storage.plain_contract import ClaimedJobs, FinishedJobs
from holdfast.storage.query_names import QueryName
from holdfast.storage.select_ready import select_alone
from holdfast.storage.sql_queries import Row, Rows
from holdfast.storage.sql_transaction import RoutingCache, SqlTransaction
from holdfast.storage.sqlite import narrow_rows, plain_gates, sql
from holdfast.storage.sqlite.health import examine
from holdfast.storage.sqlite.narrow_rows import PAYLOAD_CHARS_MAX
from holdfast.storage.sqlite.plans import CLAIM_PARAMETERS, PlainSelection, Plans

Observer: TypeAlias = Callable[[str], object]
"""Called with the name of each statement before it runs, and with begin, commit and committed. A test may raise."""


unobserved: Final[Observer] = len
"""Does nothing with the name; a built-in function, because it is called for every statement."""


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


class SqliteState(RoutingCache):
    """The state shared by the transactions of one store."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path
        self._plans: Plans | None = None

    def plans(self) -> Plans | None:
        """Return what plain forms have worked out by the newest routing; None if none was read yet."""
        plans, routing = self._plans, self.newest
        if routing is not None and (plans is None or plans.routing is not routing):
            self._plans = plans = Plans(routing)
        return plans


class SqliteTransaction(SqlTransaction):
    """An open transaction on a sync connection.

    All statements of a transaction, including begin and rollback, go through one cursor, which resets the previous
    statement when it runs the next. An interrupt may occur between a statement and fetching its rows; on a separate
    cursor, which the traceback would keep alive, the statement and its snapshot would stay open.
    """

    __slots__ = ("_clock", "_cursor", "_observe", "_path")
    _cache: SqliteState
    fuses_max = 1

    def __init__(self, state: SqliteState, cursor: Any, clock: Clock, observe: Observer) -> None:
        # Not by super().__init__: it is created for every operation.
        self.topics = set()
        self._cache = state
        self.rollups = state.rollups
        self.forms = state.forms
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

    # The next two send statements. On a sync connection they never suspend.

    async def _send_many(self, name: QueryName, rows: Sequence[Row]) -> int:
        """Run a statement for each of *rows* and return how many rows it changed."""
        self._observe(name)
        cursor: sqlite3.Cursor = self._cursor
        return cursor.executemany(sql.QUERIES[name], rows).rowcount

    async def _send(self, text: str, values: Mapping[str, Any] | Row, name: QueryName) -> Rows:
        self._observe(name)
        cursor: sqlite3.Cursor = self._cursor
        cursor.execute(text, values)
        return cursor.fetchall() if cursor.description is not None else [(cursor.rowcount,)]

    # --- plain forms ------------------------------------------------------------------------------------------------

    # On sync connections only. Each statement is sent where it is needed: one more call costs as much as a short one.

    async def insert_plain(self, new: CheckedJob) -> Job | None:
        """Store one job by one statement, if the cached routing is current."""
        plans = self._cache.plans()
        if plans is None or not is_plain(new):
            return None
        found = plans.inserts.get(id(new.settings))
        if found is None or (plans.routing.publications and new.given is not None):
            completed = plain_job(new, plans.routing)
            if completed is None:
                return None
            found = plans.add_insert(new, completed[0])
            new = completed[0]
        plan, text, bound = found
        now, job_id, payload = self._clock.now(), new.id, new.payload_json
        wall_ms, large = now.wall_ms, len(payload) > PAYLOAD_CHARS_MAX
        cursor, observe = self._cursor, self._observe
        observe("job_insert_plain")
        if large or plan.timed:
            given = (plans.version, job_id, None if large else payload)
            cursor.execute(_INSERT_ONE, (*given, *plan.values_at(now)))
        else:
            # Adding tuples takes half the time of unpacking them.
            cursor.execute(text, (plans.version, job_id, payload, wall_ms, wall_ms) + bound)  # noqa: RUF005
        if not cursor.rowcount:
            return None
        seq = cursor.lastrowid
        if large:
            await self.query("job_insert_body", many=[(seq, payload)])
        if plan.tagged:
            await self._insert_tags([(seq, new.settings.tags_json)])
        self.topics.add(plan.topic)
        return job_of(NewRow(new, seq, plan.fair_key, now))

    async def insert_plain_jobs(
        self, jobs: Sequence[CheckedJob], seqs: Sequence[int], routing: RoutingTable, now: Now
    ) -> list[Job]:
        """Store new jobs, and large payloads apart from them."""
        bulk = narrow_rows.bulk_insert(jobs, seqs, routing, now)
        for values in bulk.several():
            await self._send(bulk.text, values, "job_insert_plain_many")
        await self._change_rows("job_insert_plain_many", bulk.others())
        if bulk.bodies:
            await self.query("job_insert_body", many=bulk.bodies)
        if bulk.tagged:
            await self._insert_tags((seq, new.settings.tags_json) for new, seq in zip(jobs, seqs, strict=True))
        return bulk.jobs

    def claim_plain(self, request: ClaimRequest) -> Coroutine[Any, Any, ClaimedJobs | None]:
        """Claim the next jobs by two statements, if the cached routing is current and no maintenance is due."""
        plans = self._cache.plans()
        plan = None if plans is None else plans.claim(request)
        if plans is None or plan is None:
            return super().claim_plain(request)
        if request.limit == 1 and not plan.gated:
            return self._claim_next(plans, plan, request, self._clock.now())
        return self._claim_some(plans, plan, request)

    async def _claim_next(
        self, plans: Plans, plan: PlainSelection, request: ClaimRequest, now: Now
    ) -> ClaimedJobs | None:
        # Once: to read a field of a named tuple takes as long as ten local variables, and so does a call of an
        # attribute that is a function.
        worker, incarnation, _, token, resent, lease_ms, _, _, acknowledged, _ = request[6:]
        cursor, observe, wall_ms, lease_now_ms = self._cursor, self._observe, now.wall_ms, now.lease_ms
        observe(plan.name)
        times = (wall_ms, lease_now_ms, token if resent else "")
        cursor.execute(plan.text, (*plan.bound, *times, worker, incarnation))
        row = cursor.fetchone()
        if row is None:
            return None
        packed, holder = row[narrow_rows.PACKED], row[-1]
        if packed is not None and narrow_rows.is_recorded(row):
            return None
        claimed = narrow_rows.PlainClaim(plans.routing, request, now, are_usual=packed is None)
        if holder is not None:
            observe("job_claim_next")
            values = (row[1], holder, token, lease_now_ms + lease_ms, wall_ms, acknowledged)
            cursor.execute(_CLAIM_PLAIN if packed is None else _CLAIM_NEXT, values)
        else:
            await self._lease_many(claimed, [row])
        last_fair_key, fair_key = row[0], row[3] if packed is None else narrow_rows.fair_key_in(row)
        if fair_key != last_fair_key:
            await self.set_last_fair_key(f"{plan.scope}{row[4]}", fair_key, now, first=last_fair_key is None)
        # As `claims_of`, in fewer steps.
        claims = held_together(claimed, ((row[1], row[2], row[7] + 1, row),), token, lease_ms)
        return _new_tuple(ClaimedJobs, (plans.routing, claims, None, None, ""))

    async def settle_and_claim_plain(
        self,
        settlements: Sequence[tuple[Claim, outcomes.CheckedOutcome]],
        started: Sequence[JobFence],
        request: ClaimRequest,
    ) -> tuple[FinishedJobs, list[Claim] | None] | None:
        """Finish one usual job and claim the next by four statements; other jobs have the forms of single calls."""
        plans = self._cache.plans()
        if plans is None or not settlements or started or request.limit != 1:
            return None
        [(claim, checked)] = settlements
        taken, row = taken_with(claim)
        if type(taken) is not narrow_rows.PlainClaim:
            return None
        plan = plans.claim(request)
        if plan is None or plan.gated or not taken.are_usual or taken.routing.limits:
            return None
        now, cursor, observe, (epoch, token) = self._clock.now(), self._cursor, self._observe, held_by(claim)
        wall_ms, seq, priority = now.wall_ms, row[1], row[4]
        observe("job_done_unchanged")
        cursor.execute(_DONE_PLAIN, (seq, checked.result_json, wall_ms, epoch, token, now.lease_ms, priority))
        if not cursor.rowcount:
            return None
        observe("events_append_done_one")
        cursor.execute(_APPEND_DONE, (seq, wall_ms))
        claimed = await self._claim_next(plans, plan, request, now)
        finished = _new_tuple(FinishedJobs, (now, {seq: (priority, None, None, 0, 1, False)}))
        return finished, None if claimed is None else claimed.claims

    async def _claim_some(self, plans: Plans, plan: PlainSelection, request: ClaimRequest) -> ClaimedJobs | None:
        now, limit = self._clock.now(), request.limit
        token = request.lease_token if request.resent else ""
        worker, incarnation = request.worker, request.incarnation
        holder = (worker, incarnation) if limit == 1 else (worker, incarnation, limit)
        values = (*plan.bound, now.wall_ms, now.lease_ms, token, *holder)
        cursor, in_turns = self._cursor, plan.name == "ready_plain_stream"
        rows: Rows = []
        if in_turns and plans.lone:
            self._observe("ready_plain_lone")
            rows = cursor.execute(_READY_LONE, values).fetchall()
        if not rows:
            self._observe(plan.name)
            rows = cursor.execute(plan.text, values).fetchall()
            if in_turns and rows:
                plans.lone = rows[-1][-1] == 1
                rows = claim_order.take_turns_of(rows, _place, _by_due_time, limit)
        are_usual = narrow_rows.are_usual(rows)
        if not rows or (not are_usual and any(map(narrow_rows.is_recorded, rows))):
            return None
        claimed = narrow_rows.PlainClaim(plans.routing, request, now, are_usual=are_usual)
        if plan.gated:
            counting = await plain_gates.admit(self, plans.routing, rows, now)
            if counting is None:
                return None
            await self._lease_many(claimed, rows, counting or None)
        else:
            await self._lease_many(claimed, rows)
        claims = narrow_rows.claims_of(claimed, rows)
        row = rows[-1]
        last_fair_key, fair_key, scope = row[0], narrow_rows.fair_key_in(row), f"{plan.scope}{row[4]}"
        if len(rows) < limit:
            return ClaimedJobs(plans.routing, claims, scope, last_fair_key, fair_key)
        if fair_key != last_fair_key:
            await self.set_last_fair_key(scope, fair_key, now, first=last_fair_key is None)
        return ClaimedJobs(plans.routing, claims)

    async def _lease_many(
        self, claimed: narrow_rows.PlainClaim, rows: Sequence[Row], counting: Sequence[int | None] | None = None
    ) -> None:
        """Lease the jobs of *rows*, each at the gate that counts it if they are *counting*."""
        request, now = claimed.request, claimed.now
        values: dict[str, Any] = {
            "acknowledged": request.acknowledged,
            "worker": request.worker,
            "incarnation": request.incarnation,
            "lease_token": request.lease_token,
            "lease_until_ms": now.lease_ms + request.lease_ms,
            "started_at_ms": now.wall_ms,
        }
        if counting is not None:
            values["claimed"] = [
                (row[1], index, gate) for index, (row, gate) in enumerate(zip(rows, counting, strict=True))
            ]
            await self._write_gated_claims(values, len(rows))
            return
        seqs, holder = [row[1] for row in rows], rows[0][-2] if len(rows) > 1 else None
        if holder is not None and seqs == list(range(seqs[0], seqs[0] + len(rows))):
            values |= {"first": seqs[0], "last": seqs[-1], "holder": holder}
            await self._change("job_claim_range_plain" if claimed.are_usual else "job_claim_range", values, len(rows))
        elif holder is not None and claimed.are_usual:
            await self._change("job_claim_list_plain", {**values, "seqs": seqs, "holder": holder}, len(rows))
        else:
            values["indexes"], values["counted"] = dict(zip(seqs, range(len(seqs)), strict=True)), 0
            await self._write_claims(values, len(rows))

    def finish_held(
        self, settlements: Sequence[tuple[Claim, outcomes.CheckedOutcome]]
    ) -> Coroutine[Any, Any, FinishedJobs]:
        """Finish the jobs whose lease is held, with their events, by two statements."""
        return self._finish_one(*settlements[0]) if len(settlements) == 1 else self._finish_many(settlements)

    async def _finish_one(self, claim: Claim, checked: outcomes.CheckedOutcome) -> FinishedJobs:
        now = self._clock.now()
        seq, (epoch, token) = number_of(claim), held_by(claim)
        taken, row = taken_with(claim)
        held = (seq, checked.result_json, now.wall_ms, epoch, token, now.lease_ms)
        cursor, observe, gated, event_count = self._cursor, self._observe, False, 0
        priority = taken.usual_priority(row) if type(taken) is narrow_rows.PlainClaim else None
        observe("job_done_unchanged")
        if priority is not None:
            cursor.execute(_DONE_PLAIN, (*held, priority))
        else:
            columns, gated = columns_of(claim.job), self._may_be_gated(claim)
            priority, event_count = columns.priority, columns.event_count
            cursor.execute(_DONE_UNCHANGED, (*held, priority, event_count, 1 if gated else 0))
        rows: Rows = []
        if cursor.rowcount:
            finished: Row = (priority, None, None, 0, event_count + 1, False)
        else:
            # It has changed while it ran, or concerns other jobs.
            observe("job_done_held_one")
            cursor.execute(_DONE_HELD, held)
            rows = cursor.fetchall()
            if not rows:
                return FinishedJobs(now, {})
            finished = rows[0][1:-2]
        observe("events_append_done_one")
        cursor.execute(_APPEND_DONE, (seq, now.wall_ms))
        if rows:
            await self._wake_after(rows)
        elif gated:
            await self.wake_gates([seq])
        return _new_tuple(FinishedJobs, (now, {seq: finished}))

    def _may_be_gated(self, claim: Claim) -> bool:
        """Return whether a job probably holds a permit; what is written does not depend on it."""
        plans = self._cache.plans()
        if plans is None or not plans.routing.limits:
            return False
        job = columns_of(claim.job)
        return any(limit.counts_running for limit in plans.routing.limits_of(job.lane, job.kind))

    async def _finish_many(self, settlements: Sequence[tuple[Claim, outcomes.CheckedOutcome]]) -> FinishedJobs:
        now = self._clock.now()
        times = {"now": now.wall_ms, "lease_now": now.lease_ms}
        results: dict[tuple[int, str], tuple[Claim, dict[int, str | None]]] = {}
        for claim, checked in settlements:
            held_as = held_by(claim)
            found = results.get(held_as)
            if found is None:
                results[held_as] = found = (claim, {})
            found[1][number_of(claim)] = checked.result_json
        finished: dict[int, Row] = {}
        others: list[Row] = []
        for (epoch, token), (first, group) in results.items():
            held = {"epoch": epoch, "token": token, **times}
            if len(group) >= _GROUP_MIN and (done := await self._finish_group(first, group, held)):
                finished |= done
            else:
                others += [(seq, epoch, token, result) for seq, result in group.items()]
        if others:
            rows = await self.query("job_done_held", {"held": others, **times})
            finished |= {row[0]: row[1:-2] for row in rows}
            await self._wake_after(rows)
        if finished:
            seqs = list(finished)
            if others or len(results) > 1:
                # In the order of the call.
                seqs = [seq for claim, _ in settlements if (seq := number_of(claim)) in finished]
            await self._change(*narrow_rows.events_of_done(seqs, now), len(seqs))
        return FinishedJobs(now, finished)

    async def _wake_after(self, rows: Rows) -> None:
        """Append wake rows of finished jobs for which others wait, and of gates where they held a permit."""
        if awaited := [row[0] for row in rows if row[-2]]:
            await self.add_wakes("parent", awaited)
        if gated := [row[0] for row in rows if row[-1] is not None]:
            await self.wake_gates(gated)

    async def _finish_group(
        self, first: Claim, results: dict[int, str | None], held: Mapping[str, Any]
    ) -> dict[int, Row] | None:
        """Finish the jobs of one claim if all are held, and none has changed or concerns others; else do nothing."""
        columns = columns_of(first.job)
        priority, event_count = columns.priority, columns.event_count
        gated = self._may_be_gated(first)
        values: dict[str, Any] = {"priority": priority, "event_count": event_count, "gated": gated, **held}
        lowest, highest, different = min(results), max(results), set(results.values())
        name: QueryName = "job_done_each"
        taken, _ = taken_with(first)
        are_usual = type(taken) is narrow_rows.PlainClaim and taken.are_all_usual()
        if len(different) > 1:
            values["results"] = results
        elif are_usual and highest - lowest < len(results):
            name = "job_done_range_plain"
            values |= {"first": lowest, "last": highest, "result": different.pop()}
        else:
            name = "job_done_list_plain" if are_usual else "job_done_same"
            values |= {"seqs": list(results), "result": different.pop()}
        await self.query("savepoint")
        [[changed]] = await self.query(name, values)
        if changed != len(results):
            await self.query("savepoint_undo")
        await self.query("savepoint_keep")
        if gated and changed == len(results):
            await self.wake_gates(list(results))
        current = (priority, None, None, 0, event_count + 1, False)
        return dict.fromkeys(results, current) if changed == len(results) else None

    # --- the narrow row ---------------------------------------------------------------------------------------------

    async def insert_jobs(self, jobs: Sequence[tuple[Route, JobRow]]) -> None:
        """Store new jobs, and large payloads apart from them."""
        await self._change_rows("job_insert", [narrow_rows.new_row(route.number, job) for route, job in jobs])
        bodies = [(job.seq, job.payload_json) for _, job in jobs if len(job.payload_json) > PAYLOAD_CHARS_MAX]
        if bodies:
            await self.query("job_insert_body", many=bodies)
        await self._insert_tags((job.seq, job.tags_json) for _, job in jobs)

    async def update_content(self, before: JobRow, job: JobRow) -> None:
        """Write the content that a duplicate replaced."""
        large = len(job.payload_json) > PAYLOAD_CHARS_MAX
        values = {"seq": job.seq, "extra": narrow_rows.extra_of(job), "event_count": job.event_count}
        await self._replace_tags(before, job)
        await self.query("job_payload_write", {**values, "payload": None if large else job.payload_json})
        if large:
            await self.query("job_insert_body", many=[(job.seq, job.payload_json)])
        else:
            await self.query("bodies_delete", {"seqs": [job.seq]})

    async def _write_others(self, decided: Sequence[transitions.Transition]) -> None:
        rows = [
            (
                STATE_NUMBERS[after.state],
                *narrow_rows.moved(after),
                narrow_rows.extra_of(after),
                after.seq,
                before.epoch,
            )
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
        # One number for each job: reading a list for each would take longer than the update.
        values["claimed"] = {seq: ((gate or 0) << 10) + index for seq, index, gate in values["claimed"]}
        [[changed]] = await self.query("job_claim_gated", values)
        if not changed:
            # As in `_write_claims`.
            names = ("worker", "incarnation", "started_at_ms")
            await self.query("holder_insert", {name: values[name] for name in names})
            await super()._write_gated_claims(values, expected)
        elif changed != expected:
            raise OvertakenError(f"job_claim_gated changed {changed} of {expected} rows")

    async def clear_suspicion(self, jobs: Sequence[JobRow]) -> None:
        """Store that jobs are no longer suspect."""
        await self._change_rows(
            "job_clear_suspicion", [(job.suspect, narrow_rows.extra_of(job), job.seq, job.epoch) for job in jobs]
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

    async def _delete_jobs(self, seqs: list[int], after: JobPosition) -> None:
        for name in _DELETIONS:
            await self.query(name, {"seqs": seqs})

    # --- selecting --------------------------------------------------------------------------------------------------

    async def select_ready(self, request: ReadyRequest) -> ReadyJobs | None:
        """Choose ready jobs in claim order; there is no other writer to take them."""
        return await select_alone(self, request)

    async def health(self) -> list[Finding]:
        """Return the state of the library, the file and its modes."""
        return await examine(self, self._path)

    def _bind(self, name: QueryName, values: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """Return the text and its values. Some statements for many values have a faster text for one."""
        for_one = sql.FOR_ONE.get(name)
        if for_one is not None and (bound := sql.bound_one(values)) is not None:
            return sql.QUERIES[for_one], bound
        return sql.QUERIES[name], sql.bound(values)


_new_tuple: Final = tuple.__new__
_, _READY_LONE = sql.numbered("ready_plain_lone", "route", *CLAIM_PARAMETERS, "limit")
_INSERT_ONE: Final = sql.QUERIES["job_insert_plain"]
_, _CLAIM_NEXT = sql.numbered(
    "job_claim_next", "seq", "holder", "lease_token", "lease_until_ms", "started_at_ms", "acknowledged"
)
_, _CLAIM_PLAIN = sql.numbered(
    "job_claim_next_plain", "seq", "holder", "lease_token", "lease_until_ms", "started_at_ms", "acknowledged"
)
_HELD_PARAMETERS: Final = ("seq", "result", "now", "epoch", "token", "lease_now")
_, _DONE_UNCHANGED = sql.numbered("job_done_unchanged", *_HELD_PARAMETERS, "priority", "event_count", "gated")
_, _DONE_PLAIN = sql.numbered("job_done_plain", *_HELD_PARAMETERS, "priority")
_, _DONE_HELD = sql.numbered("job_done_held_one", *_HELD_PARAMETERS)
_, _APPEND_DONE = sql.numbered("events_append_done_one", "seq", "at_ms")
_by_due_time: Final = itemgetter(6, 1)
_place: Final = itemgetter(-1)
"""The place of the fair_key among the next ones."""
_GROUP_MIN: Final = 8
"""Smaller groups of jobs are finished by one statement for all of them."""
_HOLDERS_MS: Final = 86_400_000
_HOLDERS_MIN: Final = 1_000
"""How many holders that have not claimed for this time, and were not in use before, are looked for in all jobs."""
# The last leaves a tombstone of the job with the highest number.
_DELETIONS: Final[tuple[QueryName, ...]] = ("bodies_delete", "jobs_delete", "jobs_delete_highest")
