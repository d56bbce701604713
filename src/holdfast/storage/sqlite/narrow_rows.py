"""The narrow row of a job: its columns in the order of the statements, and the values that few jobs have."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Any, Final, NamedTuple

from holdfast.domain import limits, strict_json, transitions
from holdfast.domain.claims import Claim, ClaimRequest, count_done, held_together
from holdfast.domain.clock import Now
from holdfast.domain.job import STATE_NUMBERS, Job, JobRow, job_of
from holdfast.domain.lazy_rows import LazyRow, UsualColumns
from holdfast.domain.new_job import CheckedJob, JobSettings, NewRow, times_of
from holdfast.domain.rollups import CountedEnd, Ended
from holdfast.domain.routing import RoutingTable, fair_key_of
from holdfast.storage import notifications
from holdfast.storage.query_names import QueryName
from holdfast.storage.sql_queries import Row
from holdfast.storage.sqlite import sql

PAYLOAD_CHARS_MAX: Final = 1_024
"""Larger payloads are stored apart."""
_READY, _SCHEDULED = STATE_NUMBERS["ready"], STATE_NUMBERS["scheduled"]

_new_tuple: Final = tuple.__new__
PACKED: Final = 9
"""The index, in a row of a plain claim, of the column with the values that few jobs have; null for the others."""

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
moved: Final = attrgetter(*MOVED)
"""Returns these columns of a job."""
_added: Final = attrgetter(*NEW)
_in_rare_indexes: Final = attrgetter("affinity", "deadline_at_ms", "dedupe_key", "session_number")


def extra_of(job: JobRow) -> str | None:
    """Return the rare values of *job* as JSON, None if it has none."""
    values = _rare(job)
    if values == _USUAL:
        return None
    return strict_json.compact(
        {name: value for (name, usual), value in zip(RARE.items(), values, strict=True) if value != usual}
    )


@dataclass(slots=True)
class PlainInsert:
    """What plain new jobs with the same settings have in common, by one routing."""

    settings: JobSettings
    fair_key: str
    topic: str
    values: Row
    """The values of `job_insert_plain` from the state on, for a job that is due."""
    timed: bool
    """Whether it may be due later, or has a deadline."""
    tagged: bool

    def due(self) -> tuple[str, Row]:
        """Return the statement for a job that is due and whose payload is in its row, with its values.

        These are what follows the version of the routing, the id, the payload and twice the time.
        """
        text, bound = sql.with_nulls(sql.QUERIES["job_insert_plain"], ("", "", "", 0, 0, None, *self.values))
        return text, bound[5:]

    def values_at(self, now: Now) -> Row:
        """Return the values of `job_insert_plain` from the time on."""
        due_at_ms, deadline_at_ms = times_of(self.settings, now)
        state, *others, rare = self.values
        if due_at_ms > now.wall_ms:
            state = _SCHEDULED
        rare_state = None if rare is None and deadline_at_ms is None else state
        return (now.wall_ms, due_at_ms, deadline_at_ms, state, *others, rare_state)


def plain_insert(settings: JobSettings, routing: RoutingTable) -> PlainInsert:
    """Return what plain new jobs with these settings have in common."""
    route = routing.routes[settings.route]
    lane = routing.lanes.get(route.key.lane)
    fair_key = settings.tenant if lane is None else fair_key_of(lane, settings.tenant)
    placed = (_READY, route.number, settings.tenant, fair_key, settings.priority, settings.affinity)
    rare_state = None if settings.affinity is None and fair_key else _READY
    timed = settings.delay_ms > 0 or settings.run_at_ms is not None
    return PlainInsert(
        settings,
        fair_key,
        notifications.lane_topic(route.key.lane),
        (*placed, settings.max_attempts, _extra_of_settings(settings), rare_state),
        timed or settings.deadline_in_ms is not None or settings.deadline_at_ms is not None,
        settings.tags_json != "{}",
    )


_ROWS_INSERTED: Final = 20
"""How many jobs one statement stores. It opens every index of the table, which takes longer than storing a job."""
_INSERT_ALIKE: Final = sql.of_rows("job_insert_plain_many", _ROWS_INSERTED, 3)
"""For jobs that differ in number, id and payload only."""
_INSERT_EACH: Final = sql.of_rows("job_insert_plain_many", _ROWS_INSERTED, 15)


class BulkInsert(NamedTuple):
    """The values of `job_insert_plain_many` for plain new jobs, and what else is stored of them."""

    rows: Sequence[Row]
    """The number, id and payload of each; all of its values if the jobs have different settings."""
    common: Row
    """The other values of all jobs, empty if they have different settings."""
    bodies: list[Row]
    """The numbers and payloads that are stored apart."""
    tagged: bool
    jobs: list[Job]

    @property
    def text(self) -> str:
        """The statement that stores several jobs."""
        return _INSERT_ALIKE if self.common else _INSERT_EACH

    def several(self) -> Iterator[Row]:
        """Return the values of that statement, as often as there are enough jobs for it."""
        for end in range(_ROWS_INSERTED, len(self.rows) + 1, _ROWS_INSERTED):
            yield (*self.common, *chain.from_iterable(self.rows[end - _ROWS_INSERTED : end]))

    def others(self) -> list[Row]:
        """Return all values of the jobs that are left."""
        first = len(self.rows) - len(self.rows) % _ROWS_INSERTED
        return [(*row, *self.common) for row in self.rows[first:]]


def bulk_insert(jobs: Sequence[CheckedJob], seqs: Sequence[int], routing: RoutingTable, now: Now) -> BulkInsert:
    """Return what is stored of plain new jobs with these numbers."""
    # Validated settings are cached, so that most jobs of a call share the same object.
    known: dict[int, tuple[str, Row]] = {}
    rows: list[Row] = []
    bodies: list[Row] = []
    stored, tagged = [], False
    for new, seq in zip(jobs, seqs, strict=True):
        settings, payload = new.settings, new.payload_json
        found = known.get(id(settings))
        if found is None:
            plan = plain_insert(settings, routing)
            known[id(settings)] = found = plan.fair_key, plan.values_at(now)
            tagged = tagged or plan.tagged
        if len(payload) > PAYLOAD_CHARS_MAX:
            bodies.append((seq, payload))
            rows.append((seq, new.id, None))
        else:
            rows.append((seq, new.id, payload))
        stored.append(job_of(NewRow(new, seq, found[0], now)))
    if len(known) == 1:
        [(_, common)] = known.values()
        return BulkInsert(rows, common, bodies, tagged, stored)
    rows = [(*row, *known[id(new.settings)][1]) for row, new in zip(rows, jobs, strict=True)]
    return BulkInsert(rows, (), bodies, tagged, stored)


def _extra_of_settings(settings: JobSettings) -> str | None:
    """Return the same for a plain new job."""
    if settings.headers_json == settings.tags_json == "{}" and settings.backoff_json is None:
        return None
    values = {name: getattr(settings, name) for name in ("headers_json", "tags_json", "backoff_json")}
    return strict_json.compact({name: value for name, value in values.items() if value != RARE[name]})


def new_row(route: int, job: JobRow) -> Row:
    """Return the values of `job_insert`."""
    payload = job.payload_json
    stored = payload if len(payload) <= PAYLOAD_CHARS_MAX else None
    state = STATE_NUMBERS[job.state]
    rare = job.suspect or not job.fair_key or any(value is not None for value in _in_rare_indexes(job))
    return (job.seq, job.id, state, route, *_added(job), extra_of(job), stored, state if rare else None)


class Seldom(NamedTuple):
    """The values of a ready job that a plain claim reads as one column, because most jobs have the same."""

    fair_key: str
    affinity: str | None
    enqueued_at_ms: int
    deadline_at_ms: int | None
    attempt: int
    max_attempts: int
    unacknowledged: int
    cancel_requested: int
    suspect: int
    dedupe_key: str | None
    dedupe_kind: str | None
    event_count: int
    extra: str | None
    root: str | None
    gate: int | None


def seldom(row: Row) -> Seldom:
    """Return these values of a row of a plain claim."""
    tenant, due_at_ms, epoch, packed = row[3], row[6], row[7], row[PACKED]
    if packed is not None:
        return Seldom(*strict_json.decode(packed))
    none = None
    return Seldom(
        *(tenant, none, due_at_ms, none, epoch, limits.MAX_ATTEMPTS_DEFAULT, 0, 0, 0, none, none, 0, none, none, none)
    )


def ready_job(routing: RoutingTable, row: Row) -> JobRow:
    """Return the ready job of a row of a plain claim, without its last attempt, which the claim overwrites."""
    _, seq, job_id, tenant, priority, payload, due_at_ms, epoch, route, _ = row[:10]
    few: tuple[Any, ...] = seldom(row)
    fair_key, affinity, enqueued_at_ms, deadline_at_ms, attempt, max_attempts = few[:6]
    unacknowledged, cancel_requested, suspect, key, kind, events, extra, root, _ = few[6:]
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


def events_of_done(seqs: list[int], now: Now) -> tuple[QueryName, dict[str, Any]]:
    """Return the statement that appends the events of jobs that are done, in this order, with its values."""
    if seqs == list(range(seqs[0], seqs[0] + len(seqs))):
        # SQLite reads a range as it is, and would first decode a list.
        return "events_append_done_range", {"first": seqs[0], "last": seqs[-1], "at_ms": now.wall_ms}
    return "events_append_done", {"seqs": seqs, "at_ms": now.wall_ms}


# --- claims --------------------------------------------------------------------------------------------------------


class PlainClaim:
    """What the jobs of one plain claim have in common."""

    __slots__ = ("are_usual", "now", "request", "routing")

    def __init__(self, routing: RoutingTable, request: ClaimRequest, now: Now, *, are_usual: bool) -> None:
        self.routing = routing
        self.request = request
        self.now = now
        self.are_usual = are_usual
        """Whether none of them has one of the values that few jobs have."""

    def usual_priority(self, row: Row) -> int | None:
        """Return the priority of a job if it has none of the values that few jobs have, and no gate counts it."""
        return None if row[PACKED] is not None or self.routing.limits else row[4]

    def are_all_usual(self) -> bool:
        """Return whether the same is true of all jobs of the claim."""
        return self.are_usual and not self.routing.limits

    def job_of(self, row: Row, index: int) -> Job:
        """Return the job of a row, at this index in the claim."""
        return job_of(ClaimedRow(self, row, index))

    def done_at(self, rows: Iterable[Row], now_ms: int) -> list[CountedEnd]:
        """Return what is counted of jobs that are done."""
        return count_done(map(_route_and_due_time, rows), self.routing.by_number, self.now.wall_ms, now_ms)

    def one_done_at(self, row: Row, now_ms: int) -> CountedEnd:
        """Return the same for one of them."""
        lane, kind, *_ = self.routing.by_number[row[8]].key
        started_ms = self.now.wall_ms
        return _new_tuple(Ended, (lane, kind, "done", started_ms - row[6], now_ms - started_ms)), 1


_route_and_due_time: Final = itemgetter(8, 6)


def is_recorded(row: Row) -> bool:
    """Return whether every transition of a job is recorded, so that its claim has no plain form."""
    return row[PACKED] is not None and "record_all" in row[PACKED]


_packed_in: Final = itemgetter(PACKED)


def are_usual(rows: Sequence[Row]) -> bool:
    """Return whether none of the jobs has one of the values that few jobs have."""
    return not any(map(_packed_in, rows))


def fair_key_in(row: Row) -> str:
    """Return the fairness key of a job in a row of a plain claim."""
    return row[3] if row[PACKED] is None else seldom(row).fair_key


def claims_of(claimed: PlainClaim, rows: Sequence[Row]) -> list[Claim]:
    """Return the claims of the jobs of a plain claim, in order."""
    held = [(row[1], row[2], row[7] + 1, row) for row in rows]
    return held_together(claimed, held, claimed.request.lease_token, claimed.request.lease_ms)


class ClaimedRow(LazyRow):
    """The row of a job after a plain claim; *row* is what the claim has read, `transitions.claim` makes the rest."""

    __slots__ = ("_claim", "_index", "_row", "payload_json")

    def __init__(self, claim: PlainClaim, row: Row, index: int) -> None:
        self._claim = claim
        self._row = row
        self._index = index
        self.payload_json = row[5]

    seq = property(lambda self: self._row[1])
    id = property(lambda self: self._row[2])
    tenant = property(lambda self: self._row[3])
    priority = property(lambda self: self._row[4])
    suspect = property(lambda self: 0 if self._row[PACKED] is None else seldom(self._row).suspect)
    due_at_ms = property(lambda self: self._row[6])
    started_at_ms = property(lambda self: self._claim.now.wall_ms)
    event_count = property(lambda self: 0 if self._row[PACKED] is None else seldom(self._row).event_count)
    kind = property(lambda self: self._claim.routing.by_number[self._row[8]].key.kind)
    lane = property(lambda self: self._claim.routing.by_number[self._row[8]].key.lane)
    failure_reason = property(lambda self: None if self._row[PACKED] is None else self.make().failure_reason)
    lease_until_ms = property(lambda self: self._claim.now.lease_ms + self._claim.request.lease_ms)

    @property
    def unacknowledged(self) -> int:
        """How many claims in a row were not acknowledged."""
        if self._index < self._claim.request.acknowledged:
            return 0
        return 1 if self._row[PACKED] is None else seldom(self._row).unacknowledged + 1

    def make(self) -> JobRow:
        """Return the row."""
        claim = self._claim
        routing, request, now = claim.routing, claim.request, claim.now
        row, none = self._row, None
        if row[PACKED] is not None:
            return transitions.claim(ready_job(routing, row), request, self._index, now).after
        # The same for a job without the values that few jobs have, in a third of the time.
        _, seq, job_id, tenant, priority, payload, due_at_ms, epoch, route, *_ = row
        lane, kind, requires_json, _, _ = routing.by_number[route].key
        until_ms, unacknowledged = now.lease_ms + request.lease_ms, 0 if self._index < request.acknowledged else 1
        attempt = epoch + 1
        fields = (
            *(seq, job_id, "running", kind, lane, tenant, tenant, priority, none, requires_json, payload, "{}", "{}"),
            *(none, due_at_ms, due_at_ms, none, none, attempt, limits.MAX_ATTEMPTS_DEFAULT, none, attempt),
            *(request.worker, request.incarnation, request.lease_token, until_ms, self._index, now.wall_ms),
            *(none, none, none, none, unacknowledged, 0, 0, 0, none, 0, none, none, none, none, none, none, none),
            *(none, none, none, none, none, none, 0, 0),
        )
        return tuple.__new__(JobRow, fields)

    def usual(self) -> UsualColumns | None:
        """Return the columns if the job has none of the values that few jobs have."""
        claim = self._claim
        routing, request, now = claim.routing, claim.request, claim.now
        _, seq, job_id, tenant, priority, payload, due_at_ms, epoch, route, packed = self._row[:10]
        if packed is not None:
            return None
        lane, kind, requires_json, _, _ = routing.by_number[route].key
        place, none = ("running", kind, lane, tenant, priority, requires_json, payload), None
        held = (now.wall_ms, none, now.lease_ms + request.lease_ms, epoch + 1, request.worker, request.incarnation)
        return tuple.__new__(UsualColumns, (seq, job_id, *place, none, due_at_ms, *held, none))
