"""What the tables of jobs on PostgreSQL must agree on, whatever was done to them."""

from __future__ import annotations

from typing import Final

_COLUMNS: Final = """seq, due_at_ms, deadline_at_ms, predecessor, session, enqueue_seq, gate, route, priority, epoch,
               suspect, state, tenant, fair_key, dedupe_key, dedupe_kind,
               case when suspect = 1 and state <> 'running' then worker end,
               case when suspect = 1 and state <> 'running' then incarnation end"""
_READY_COLUMNS: Final = "seq, due_at_ms, route, priority, tenant, fair_key, affinity"

# Each part finds rows that contradict each other: what is wrong, and the number of the job.
VIOLATIONS: Final = f"""
    with open_as_stored as (
        select {_COLUMNS} from {{schema}}.job
         where finished_at_ms is null
           and (state not in ('ready', 'running') or dedupe_key is not null or session is not null
                or state = 'ready' and (deadline_at_ms is not null or gate is not null or suspect = 1))
    ),
    open_as_found as (select {_COLUMNS} from {{schema}}.open_job),
    ready_as_stored as (select {_READY_COLUMNS} from {{schema}}.job where state = 'ready'),
    ready_as_found as (select {_READY_COLUMNS} from {{schema}}.ready_job)
    select 'open, but not found', seq
      from (select * from open_as_stored except select * from open_as_found) missing
    union all
    select 'found, but not open', seq
      from (select * from open_as_found except select * from open_as_stored) stray
    union all
    select 'ready, but not found', seq
      from (select * from ready_as_stored except select * from ready_as_found) missing
    union all
    select 'found, but not ready', seq
      from (select * from ready_as_found except select * from ready_as_stored) stray
    union all
    select 'ready, but marked wrongly as open or not', r.seq from {{schema}}.ready_job r
     where (r.has_open = 1) <> exists (select 1 from {{schema}}.open_job o where o.seq = r.seq)
    union all
    select 'running, but its claim is not looked at in time', j.seq from {{schema}}.job j
     where j.state = 'running'
       and not exists (select 1 from {{schema}}.lease l
                        where l.worker = j.worker and l.token = j.lease_token and j.seq = any (l.seqs)
                          and l.until_ms <= j.lease_until_ms)
    union all
    select 'running, but its gate does not count it', j.seq from {{schema}}.job j
      join {{schema}}.gate g on g.gate = j.gate
      join {{schema}}.flow_limit f on f.number = g.flow_limit
     where j.state = 'running'
       and not exists (select 1 from {{schema}}.permit p
                        cross join lateral unnest(p.gates, p.seqs) as u (gate, seq)
                        where p.block = j.gate >> 3 and p.worker = j.worker and p.token = j.lease_token
                          and u.gate = j.gate and u.seq = j.seq)
    union all
    select 'a permit of a claim that is not listed', p.seqs[1] from {{schema}}.permit p
     where not exists (select 1 from {{schema}}.lease l where l.worker = p.worker and l.token = p.token)
    union all
    select 'finished, but not listed once', j.seq from {{schema}}.job j
     where j.finished_at_ms is not null
       and 1 <> (select count(*) from {{schema}}.ended e
                  cross join lateral unnest(e.seqs, e.event_counts) as u (seq, event_count)
                  where e.state = j.state and e.finished_at_ms = j.finished_at_ms
                    and u.seq = j.seq and u.event_count = j.event_count)"""
