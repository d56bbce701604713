"""The SQL of this engine, by name, loaded once."""

from __future__ import annotations

from typing import Final, get_args

from holdfast.storage.queries import load_queries
from holdfast.storage.query_names import QueryName, SharedQuery, SqliteQuery

QUERIES: Final = load_queries(__package__, (*get_args(SharedQuery), *get_args(SqliteQuery)))

FOR_ONE: Final[dict[QueryName, QueryName]] = {
    "events_append": "events_append_one",
    "job_claim": "job_claim_one",
    "job_done": "job_done_one",
    "jobs_current": "jobs_current_one",
    "ready_tops": "ready_tops_one",
}
"""The form of a query for a single value instead of a list, for queries that mostly get one."""
