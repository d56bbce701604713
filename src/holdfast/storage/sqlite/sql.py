"""The SQL of this engine, by name, loaded once, and how values are bound."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, get_args

from holdfast.domain import job, limits, strict_json
from holdfast.storage import queries
from holdfast.storage.query_names import QueryName, SharedQuery, SqliteQuery

# Read by plain claims, in the order of `narrow_rows.ready_job`. Reading a column takes longer than comparing ten: the
# last one has the values that are the same for most jobs, and is null for these.
_READY_COLUMNS: Final = """j.seq, j.id, j.tenant, j.priority,
       coalesce(j.payload, (select b.payload from holdfast_body b where b.seq = j.seq)), j.due_at_ms, j.epoch,
       j.route,
       case when j.attempt = j.epoch and j.event_count = 0 and j.max_attempts = {max_attempts_default}
                 and j.fair_key = j.tenant and j.enqueued_at_ms = j.due_at_ms and j.unacknowledged = 0
                 and j.cancel_requested = 0 and coalesce(j.rare_state, j.extra, j.root) is null then null
            else json_array(j.fair_key, j.affinity, j.enqueued_at_ms, j.deadline_at_ms, j.attempt, j.max_attempts,
                            j.unacknowledged, j.cancel_requested, j.suspect, j.dedupe_key, j.dedupe_kind,
                            j.event_count, j.extra, j.root, j.gate)
       end"""
# The guards of plain claims: the routing is current, no maintenance is due, no claim has the chosen token, if any. It
# is not null if there is none: Python looks for an adapter of each value that is not a number or text.
_NOTHING_PRECEDES: Final = """(select value from holdfast_meta where name = 'routing_version') = :version
   and not exists (select 1 from holdfast_job where state = {scheduled} and due_at_ms <= :wall_now)
   and not exists (select 1 from holdfast_job where state = {running} and ends_at_ms <= :lease_now)
   and not exists (select 1 from holdfast_job
                    where deadline_at_ms is not null and rare_state < {running}
                      and deadline_at_ms <= :wall_now)
   and not exists (select 1 from holdfast_wake where at_ms <= :wall_now)
   and (:chosen_token = ''
        or not exists (select 1 from holdfast_job
                        where state = {running} and ends_at_ms > 0 and lease_token = :chosen_token))"""
# The number of the worker's start, null if it has none or was not noted as claiming within the hour.
_HOLDER: Final = """(select h.holder from holdfast_holder h
         where h.worker = :worker and h.incarnation = :incarnation and h.used_at_ms > :wall_now - 3600000)"""
# A job `j` matches the filter of a list; its tags are compared before.
_FILTER_OF_JOBS: Final = """(:states is null or j.state in (select value from json_each(:states)))
   and (:kind is null or j.kind = :kind)
   and (j.lane = :lane or (:lane is null and j.lane <> :system_lane))
   and (:tenant is null or j.tenant = :tenant)
   and (:failure_class is null or j.failure_class = :failure_class)
   and (:aged_before is null or coalesce(j.finished_at_ms, j.enqueued_at_ms) < :aged_before)"""
_CONSTANTS: Final[dict[str, int | str]] = {
    **dict(job.STATE_NUMBERS.items()),
    "deleted": job.DELETED,
    "ready_columns": _READY_COLUMNS,
    "nothing_precedes": _NOTHING_PRECEDES,
    "holder": _HOLDER,
    "filter_of_jobs": _FILTER_OF_JOBS,
    "max_attempts_default": limits.MAX_ATTEMPTS_DEFAULT,
}
"""What the text of a query names in braces: the numbers of states, columns, and common conditions."""


def _filled(text: str) -> str:
    filled = re.sub(r"\{(\w+)\}", lambda found: str(_CONSTANTS[found[1]]), text)
    return filled if filled == text else _filled(filled)


QUERIES: Final = {
    name: _filled(text)
    for name, text in queries.load_queries(__package__, (*get_args(SharedQuery), *get_args(SqliteQuery))).items()
}


def numbered(name: QueryName, *parameters: str) -> tuple[QueryName, str]:
    """Return a query with its name; its values are bound in the order of *parameters*, which takes less time."""
    places = {parameter: f"?{place}" for place, parameter in enumerate(parameters, 1)}
    return name, re.sub(r"(?<!:):(\w+)", lambda found: places[found[1]], QUERIES[name])


def with_nulls(text: str, values: Sequence[Any]) -> tuple[str, tuple[Any, ...]]:
    """Return a statement with a literal for each of *values* that is null, and the other values.

    To bind a null takes ten times as long as a number or text, because Python looks for an adapter of it.
    """
    places: dict[str, str] = {}
    bound: list[Any] = []
    for place, value in enumerate(values, 1):
        if value is not None:
            bound.append(value)
        places[f"?{place}"] = "null" if value is None else f"?{len(bound)}"
    return re.sub(r"\?\d+", lambda found: places[found[0]], text), tuple(bound)


def of_rows(name: QueryName, count: int, own: int) -> str:
    """Return an insert of one row as an insert of *count* rows.

    The first *own* values differ from row to row; the others are bound once, before those of the rows.
    """
    start, _, values = QUERIES[name].rpartition(" values ")
    others = values.count("?") - own
    common = [f"?{place}" for place in range(1, others + 1)]
    firsts = range(others + 1, others + own * count + 1, own)
    rows = ([*(f"?{place}" for place in range(first, first + own)), *common] for first in firsts)
    return f"{start} values " + ", ".join(f"({', '.join(row)})" for row in rows)


FOR_ONE: Final[dict[QueryName, QueryName]] = {
    "events_append": "events_append_one",
    "job_claim": "job_claim_one",
    "job_done": "job_done_one",
    "jobs_current": "jobs_current_one",
    "ready_tops": "ready_tops_one",
}
"""The form of a query for a single value instead of a list, for queries that mostly get one."""

_MANY: Final = frozenset((list, dict))


def bound(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return *values* with each list or dict as JSON, the form in which SQLite binds many values at once."""
    return {name: strict_json.compact(value) if type(value) in _MANY else value for name, value in values.items()}


def bound_one(values: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return *values* with the single entry of the list or dict among them as `value`, or `key` and `value`."""
    bound: dict[str, Any] = {}
    for name, value in values.items():
        if type(value) not in _MANY:
            bound[name] = value
        elif len(value) != 1:
            return None
        elif type(value) is list:
            bound["value"] = value[0]
        else:
            [(bound["key"], bound["value"])] = value.items()
    return bound
