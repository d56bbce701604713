-- Why a job waits: its place among others.

-- name: why_durations
-- Read how long some of the jobs of a route have run that finished last.
select j.finished_at_ms - j.started_at_ms
  from (select u.seq from (select * from holdfast.ended where state = 'done' order by finished_at_ms desc limit 500) e
         cross join lateral unnest(e.seqs) as u (seq)
         limit 500) newest
  join holdfast.job j on j.seq = newest.seq
 where j.route = %(route)s and j.started_at_ms is not null and j.state = 'done'
 limit %(limit)s;

-- name: why_entries
-- Count the unfinished entries of a session before one of them, up to a maximum.
select count(*) from (select 1 from holdfast.open_job
                       where session = %(session)s and session is not null and enqueue_seq < %(enqueue_seq)s
                       limit %(maximum)s) counted;

-- name: why_ready
-- Count the ready jobs of some routes that come before a job: those of higher priority, and earlier ones with its fair_key.
select (select count(*) from (select 1 from unnest(%(routes)s::integer[]) as r (route) join holdfast.ready_job j on j.route = r.route
                               where j.priority > %(priority)s limit %(maximum)s) counted),
       (select count(*) from (select 1 from unnest(%(routes)s::integer[]) as r (route) join holdfast.ready_job j on j.route = r.route
                               where j.priority = %(priority)s and j.fair_key = %(fair_key)s
                                 and (j.due_at_ms, j.seq) < (%(due_at_ms)s, %(seq)s)
                               limit %(maximum)s) counted);

-- name: why_tenants
-- Count the fair_keys with ready jobs of a route at one priority, up to a maximum.
with recursive turn (fair_key, depth) as (
    select (select fair_key from holdfast.ready_job
             where route = %(route)s and priority = %(priority)s
             order by fair_key limit 1), 1
    union all
    select (select j.fair_key from holdfast.ready_job j
             where j.route = %(route)s and j.priority = %(priority)s and j.fair_key > t.fair_key
             order by j.fair_key limit 1), t.depth + 1
      from turn t where t.fair_key is not null and t.depth < %(maximum)s
)
select count(fair_key) from turn;
