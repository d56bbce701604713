"""The narrow row of a job: its columns in the order of the statements, and the values that few jobs have."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, Final, NamedTuple

from holdfast.domain import strict_json
from holdfast.domain.clock import Now
from holdfast.domain.job import STATE_NUMBERS, Job, JobRow, job_of
from holdfast.domain.new_job import CheckedJob, JobSettings, NewRow, times_of
from holdfast.domain.routing import RoutingTable, fair_key_of
from holdfast.storage import notifications
from holdfast.storage.sql_queries import Row
from holdfast.storage.sqlite import sql

PAYLOAD_CHARS_MAX: Final = 1_024
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
moved: Final = attrgetter(*MOVED)
"""Returns these columns of a job."""
_added: Final = attrgetter(*NEW)


def extra_of(job: JobRow) -> str | None:
    """Return the rare values of *job* as JSON, None if it has none."""
    values = _rare(job)
    if values == _USUAL:
        return None
    return strict_json.compact(
        {name: value for (name, usual), value in zip(RARE.items(), values, strict=True) if value != usual}
    )


class PlainInsert(NamedTuple):
    """What plain new jobs with the same settings have in common, by one routing."""

    settings: JobSettings
    fair_key: str
    topic: str
    values: Row
    """The values of `job_insert_plain` from the state on, for a job that is due."""
    timed: bool
    """Whether it may be due later, or has a deadline."""
    tagged: bool

    def values_at(self, now: Now) -> Row:
        """Return the values of `job_insert_plain` from the time on."""
        due_at_ms, deadline_at_ms = times_of(self.settings, now)
        state, *others = self.values
        return (now.wall_ms, due_at_ms, deadline_at_ms, state if due_at_ms <= now.wall_ms else _SCHEDULED, *others)


def plain_insert(settings: JobSettings, routing: RoutingTable) -> PlainInsert:
    """Return what plain new jobs with these settings have in common."""
    route = routing.routes[settings.route]
    lane = routing.lanes.get(route.key.lane)
    fair_key = settings.tenant if lane is None else fair_key_of(lane, settings.tenant)
    placed = (_READY, route.number, settings.tenant, fair_key, settings.priority, settings.affinity)
    timed = settings.delay_ms > 0 or settings.run_at_ms is not None
    return PlainInsert(
        settings,
        fair_key,
        notifications.lane_topic(route.key.lane),
        (*placed, settings.max_attempts, _extra_of_settings(settings)),
        timed or settings.deadline_in_ms is not None or settings.deadline_at_ms is not None,
        settings.tags_json != "{}",
    )


_ROWS_INSERTED: Final = 20
"""How many jobs one statement stores. It opens every index of the table, which takes longer than storing a job."""
_INSERT_ALIKE: Final = sql.of_rows("job_insert_plain_many", _ROWS_INSERTED, 3)
"""For jobs that differ in number, id and payload only."""
_INSERT_EACH: Final = sql.of_rows("job_insert_plain_many", _ROWS_INSERTED, 14)


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
    return (job.seq, job.id, STATE_NUMBERS[job.state], route, *_added(job), extra_of(job), stored)


def ready_job(routing: RoutingTable, row: Row) -> JobRow:
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
