"""The SQL of this engine, by name, loaded once."""

from __future__ import annotations

import re
from typing import Final, get_args

from holdfast.domain.job import DELETED, STATE_NUMBERS
from holdfast.storage.queries import load_queries
from holdfast.storage.query_names import QueryName, SharedQuery, SqliteQuery

# Read by plain claims, in the order of `transaction._ready_job`.
_READY_COLUMNS: Final = """j.seq, j.id, j.tenant, j.fair_key, j.priority, j.affinity,
       coalesce(j.payload, (select b.payload from holdfast_body b where b.seq = j.seq)), j.enqueued_at_ms,
       j.due_at_ms, j.deadline_at_ms, j.attempt, j.max_attempts, j.epoch, j.unacknowledged, j.cancel_requested,
       j.suspect, j.dedupe_key, j.dedupe_kind, j.event_count, j.route, j.extra"""
_CONSTANTS: Final[dict[str, int | str]] = {
    **dict(STATE_NUMBERS.items()),
    "deleted": DELETED,
    "ready_columns": _READY_COLUMNS,
}
"""What the text of a query names in braces: the numbers of states, and a list of columns."""

QUERIES: Final = {
    name: re.sub(r"\{(\w+)\}", lambda found: str(_CONSTANTS[found[1]]), text)
    for name, text in load_queries(__package__, (*get_args(SharedQuery), *get_args(SqliteQuery))).items()
}

FOR_ONE: Final[dict[QueryName, QueryName]] = {
    "events_append": "events_append_one",
    "job_claim": "job_claim_one",
    "job_done": "job_done_one",
    "jobs_current": "jobs_current_one",
    "ready_tops": "ready_tops_one",
}
"""The form of a query for a single value instead of a list, for queries that mostly get one."""
