"""The SQL of this engine, by name, written for a schema called `holdfast` and loaded once.

A query may contain `/* lock: … */`. Only write transactions use that text: there the same query locks the rows it
reads. `/* leased columns */` stands for the columns that a claim reads of each job it leases, `/* claimed columns */`
for those that its plain form reads, `/* stored columns */` for all of them, `/* filter of jobs */` for the condition
that a job `b` matches the filter of a list.
"""

import re
from functools import cache
from typing import Final, NamedTuple, get_args

from holdfast.domain.job import JobRow
from holdfast.storage import queries
from holdfast.storage.query_names import PostgresQuery, SharedQuery

# The fields of a job's row that are the same for all jobs of a claim or of a route, or empty in a claimed job.
_KNOWN_TO_CLAIM: Final = {
    *("state", "kind", "lane", "requires_json"),
    *("worker", "incarnation", "lease_token", "lease_until_ms"),
    *("started_at_ms", "outcome", "settle_digest", "phase", "percent"),
    *("session_number", "enqueue_seq", "entry_json"),
}
_READ: Final = [name for name in JobRow._fields if name not in _KNOWN_TO_CLAIM]
# In the order of the row; the route comes third, in place of lane, kind and requirements.
LEASED: Final = (*_READ[:2], "route", *_READ[2:])
_LEASED_COLUMNS: Final = ", ".join(f"j.{name.removesuffix('_json')}" for name in LEASED)
# What a plain claim reads of each job. The last column is null for most jobs, or has the others of `LEASED` as a JSON
# array.
CLAIMED: Final = (
    *("seq", "id", "route", "tenant", "priority", "payload_json", "due_at_ms", "epoch"),
    *("max_attempts", "claim_index", "unacknowledged", "few"),
)
_CLAIMED_COLUMNS: Final = ", ".join(f"j.{name.removesuffix('_json')}" for name in CLAIMED)
# All fields, with the route in place of lane, kind and requirements.
STORED: Final = ("route", *(name for name in JobRow._fields if name not in {"kind", "lane", "requires_json"}))
_STORED_COLUMNS: Final = ", ".join(
    f"j.{name.removesuffix('_number' if name == 'session_number' else '_json')}" for name in STORED
)
# It reads only the row of the job, so that those which do not match cost nothing more.
_FILTER_OF_JOBS: Final = """(%(states)s::text[] is null or b.state = any (%(states)s::text[]))
    and b.route = any (array(select r.route from holdfast.route r
                              where (%(kind)s::text is null or r.kind = %(kind)s::text)
                                and (r.lane = %(lane)s::text
                                     or (%(lane)s::text is null and r.lane <> %(system_lane)s::text))))
    and (%(tenant)s::text is null or b.tenant = %(tenant)s::text)
    and (%(failure_class)s::text is null or b.failure_class = %(failure_class)s::text)
    and (%(aged_before)s::bigint is null
         or coalesce(b.finished_at_ms, b.enqueued_at_ms) < %(aged_before)s::bigint)
    and not exists (select 1 from unnest(%(tags_0)s::text[], %(tags_1)s::text[]) as w (tag, value)
                     where not exists (select 1 from holdfast.tag o
                                        where o.tag = w.tag and o.value = w.value and o.seq = b.seq))"""

QUERIES: Final = {
    name: text.replace("/* leased columns */", _LEASED_COLUMNS)
    .replace("/* claimed columns */", _CLAIMED_COLUMNS)
    .replace("/* stored columns */", _STORED_COLUMNS)
    .replace("/* filter of jobs */", _FILTER_OF_JOBS)
    for name, text in queries.load_queries(__package__, (*get_args(SharedQuery), *get_args(PostgresQuery))).items()
}

_SCHEMA: Final = re.compile(r"\bholdfast(?=\.[a-z]|\s*$)")
_LOCK: Final = re.compile(r"/\* lock: (.*?) \*/")


_PARAMETER: Final = re.compile(r"%\((\w+)\)[sb]")


class NumberedText(NamedTuple):
    """A query with numbered parameters, and their names in that order."""

    text: bytes
    names: tuple[str, ...]


@cache
def numbered(text: str) -> NumberedText:
    """Return a query with its named parameters numbered."""
    names = tuple(dict.fromkeys(_PARAMETER.findall(text)))
    return NumberedText(_PARAMETER.sub(lambda found: f"${names.index(found[1]) + 1}", text).encode(), names)


class QueryTexts(NamedTuple):
    """The text of every query by name, for read transactions and for write transactions."""

    reading: dict[str, str]
    writing: dict[str, str]


@cache
def texts(schema: str) -> QueryTexts:
    """Return the queries for the store in *schema*."""
    found = {name: in_schema(text, schema) for name, text in QUERIES.items()}
    return QueryTexts(
        {name: _LOCK.sub("", text) for name, text in found.items()},
        {name: _LOCK.sub(r"\1", text) for name, text in found.items()},
    )


def in_schema(text: str, schema: str) -> str:
    """Return *text* for the store in another schema."""
    return _SCHEMA.sub(lambda _: f'"{schema}"', text)
