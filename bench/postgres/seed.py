"""Fill a database with millions of rows: a template through the public API, copies of it by one statement.

Only the bench uses SQL outside of storage. It reads the columns from the table, so changes of the schema do not break
it.
"""

from __future__ import annotations

import psycopg

import holdfast
from bench import seed
from bench.seed import TENANTS, TENANTS_IN_TEMPLATE

# Copies get new ids and are spread over the tenants, except "big" and "crowd".
_NEXT_TENANT = f"'tenant-' || ((substr(tenant, 8)::integer + copy * {TENANTS_IN_TEMPLATE}) %% {TENANTS})"
_TENANT = f"case when tenant like 'tenant-%%' then {_NEXT_TENANT} else tenant end"
_CHANGED = {
    "seq": "nextval('holdfast.job_seq')",
    "id": "substr(id, 1, 24) || lpad(to_hex(copy * 1000 + (seq - %(first)s)), 12, '0')",
    "tenant": _TENANT,
    "fair_key": f"case when fair_key = '' then '' else {_TENANT} end",
}
# What indexes find of the copies.
_READY = b"""
insert into holdfast.ready_job (seq, due_at_ms, route, priority, has_open, tenant, fair_key, affinity)
select seq, due_at_ms, route, priority, case when deadline_at_ms is null then 0 else 1 end, tenant, fair_key, affinity
  from holdfast.job where seq > %(newest)s and state = 'ready'
"""
_OPEN = b"""
insert into holdfast.open_job (seq, due_at_ms, deadline_at_ms, route, priority, state, tenant, fair_key)
select seq, due_at_ms, deadline_at_ms, route, priority, state, tenant, fair_key
  from holdfast.job
 where seq > %(newest)s and finished_at_ms is null and (state <> 'ready' or deadline_at_ms is not null)
"""
_ENDED = b"""
insert into holdfast.ended (state, finished_at_ms, seqs, event_counts)
select state, finished_at_ms, array_agg(seq order by seq), array_agg(event_count order by seq)
  from holdfast.job where seq > %(newest)s and finished_at_ms is not null
 group by state, finished_at_ms, seq / 1000
"""
_COLUMNS = b"""
select attname from pg_attribute
 where attrelid = 'holdfast.job'::regclass and attnum > 0 and not attisdropped and attgenerated = ''
 order by attnum
"""


def fill_base(url: str, *, finished: int, future: int) -> None:
    """Fill a database with finished and future jobs and no ready ones."""
    with holdfast.connect(url) as queue:
        ended, later = seed.enqueue_base(queue, finished=finished, future=future)
    _multiply(url, ended, finished)
    _multiply(url, later, future)


def fill_ready(url: str, count: int) -> None:
    """Add *count* ready jobs; no filter selects the first tenth."""
    with holdfast.connect(url) as queue:
        first = [one.job.number for one in queue.enqueue_many(seed.unserved())]
    _multiply(url, first, count // 10)
    with holdfast.connect(url) as queue:
        rest = [one.job.number for one in queue.enqueue_many(seed.served())]
    _multiply(url, rest, count - count // 10)
    with holdfast.connect(url) as queue:
        seed.enqueue_rare(queue)
    # Autovacuum would run before a store reaches this size.
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(b"vacuum analyze")


def _multiply(url: str, template: list[int], total: int) -> None:
    """Copy the template's rows in order until there are *total*."""
    if total <= len(template):
        return
    with psycopg.connect(url, autocommit=True) as connection:
        columns = [name for (name,) in connection.execute(_COLUMNS)]
        values = ", ".join(_CHANGED.get(name, name) for name in columns)
        copying = (
            f"insert into holdfast.job ({', '.join(columns)}) "  # noqa: S608  # columns of our own table
            f"select {values} from (select copy, job.* from holdfast.job, generate_series(1, %(copies)s) copy"
            " where seq between %(first)s and %(last)s order by copy, seq) template"
        )
        numbers = {"first": min(template), "last": max(template), "copies": total // len(template) - 1}
        [[newest]] = connection.execute(b"select max(seq) from holdfast.job").fetchall()
        connection.execute(copying.encode(), numbers)
        for statement in (_READY, _OPEN, _ENDED):
            connection.execute(statement, {"newest": newest})
