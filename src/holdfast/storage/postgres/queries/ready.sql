-- Ready jobs in claim order: levels, fairness, affinity. Nothing here scans.

-- name: ready_affinities
-- For each route: the affinities of ready jobs at one priority, in order, starting after one of them and wrapping
-- around.
with recursive
later (route, affinity, depth) as (
    select r.route, (select j.affinity from holdfast.ready_job j
                      where j.affinity is not null and j.route = r.route
                        and j.priority = %(priority)s::integer and j.affinity > %(after)s::text
                        and j.seq <> all (%(taken)s::bigint[])
                      order by j.affinity limit 1), 1
      from unnest(%(routes)s::integer[]) as r (route)
    union all
    select l.route, (select j.affinity from holdfast.ready_job j
                      where j.affinity is not null and j.route = l.route
                        and j.priority = %(priority)s::integer and j.affinity > l.affinity
                        and j.seq <> all (%(taken)s::bigint[])
                      order by j.affinity limit 1), l.depth + 1
      from later l where l.affinity is not null and l.depth < %(limit)s::integer
),
earlier (route, affinity, depth) as (
    select r.route, (select j.affinity from holdfast.ready_job j
                      where j.affinity is not null and j.route = r.route
                        and j.priority = %(priority)s::integer
                        and j.seq <> all (%(taken)s::bigint[])
                      order by j.affinity limit 1), 1
      from unnest(%(routes)s::integer[]) as r (route)
    union all
    select e.route, (select j.affinity from holdfast.ready_job j
                      where j.affinity is not null and j.route = e.route
                        and j.priority = %(priority)s::integer and j.affinity > e.affinity
                        and j.seq <> all (%(taken)s::bigint[])
                      order by j.affinity limit 1), e.depth + 1
      from earlier e where e.affinity < %(after)s::text and e.depth < %(limit)s::integer
)
select affinity from later where affinity is not null
union all
select affinity from earlier where affinity < %(after)s::text;

-- name: ready_backdate
-- Count a change that makes jobs ready whose due time has long passed, or moves such jobs; the transaction has a number.
select pg_current_xact_id()::text, nextval('holdfast.backdated');

-- name: ready_fair_keys
-- For each route: the next fair_keys with ready jobs at one priority, starting after the one served last and wrapping
-- around.
with recursive
later (route, fair_key, depth) as (
    select r.route, (select j.fair_key from holdfast.ready_job j
                      where j.route = r.route and j.priority = %(priority)s::integer
                        and j.fair_key > %(last_fair_key)s::text and j.seq <> all (%(taken)s::bigint[])
                      order by j.fair_key limit 1), 1
      from unnest(%(routes)s::integer[]) as r (route)
    union all
    select l.route, (select j.fair_key from holdfast.ready_job j
                      where j.route = l.route and j.priority = %(priority)s::integer
                        and j.fair_key > l.fair_key and j.seq <> all (%(taken)s::bigint[])
                      order by j.fair_key limit 1), l.depth + 1
      from later l where l.fair_key is not null and l.depth < %(limit)s::integer
),
earlier (route, fair_key, depth) as (
    select r.route, (select j.fair_key from holdfast.ready_job j
                      where j.route = r.route and j.priority = %(priority)s::integer
                        and j.seq <> all (%(taken)s::bigint[])
                      order by j.fair_key limit 1), 1
      from unnest(%(routes)s::integer[]) as r (route)
    union all
    select e.route, (select j.fair_key from holdfast.ready_job j
                      where j.route = e.route and j.priority = %(priority)s::integer
                        and j.fair_key > e.fair_key and j.seq <> all (%(taken)s::bigint[])
                      order by j.fair_key limit 1), e.depth + 1
      from earlier e where e.fair_key <= %(last_fair_key)s::text and e.depth < %(limit)s::integer
)
select route, fair_key from later where fair_key is not null
union all
select route, fair_key from earlier where fair_key <= %(last_fair_key)s::text;

-- name: ready_fair_keys_beside
-- As ready_fair_keys, but only among jobs with one of these affinities.
with recursive
prefix (route, affinity) as materialized (
    select r.route, a.affinity
      from unnest(%(routes)s::integer[]) as r (route)
     cross join unnest(%(affinities)s::text[]) as a (affinity)
),
later (route, affinity, fair_key, depth) as (
    select p.route, p.affinity, (select j.fair_key from holdfast.ready_job j
                                  where j.affinity is not null and j.affinity = p.affinity
                                    and j.route = p.route and j.priority = %(priority)s::integer
                                    and j.fair_key > %(last_fair_key)s::text and j.seq <> all (%(taken)s::bigint[])
                                  order by j.fair_key limit 1), 1
      from prefix p
    union all
    select l.route, l.affinity, (select j.fair_key from holdfast.ready_job j
                                  where j.affinity is not null and j.affinity = l.affinity
                                    and j.route = l.route and j.priority = %(priority)s::integer
                                    and j.fair_key > l.fair_key and j.seq <> all (%(taken)s::bigint[])
                                  order by j.fair_key limit 1), l.depth + 1
      from later l where l.fair_key is not null and l.depth < %(limit)s::integer
),
earlier (route, affinity, fair_key, depth) as (
    select p.route, p.affinity, (select j.fair_key from holdfast.ready_job j
                                  where j.affinity is not null and j.affinity = p.affinity
                                    and j.route = p.route and j.priority = %(priority)s::integer
                                    and j.seq <> all (%(taken)s::bigint[])
                                  order by j.fair_key limit 1), 1
      from prefix p
    union all
    select e.route, e.affinity, (select j.fair_key from holdfast.ready_job j
                                  where j.affinity is not null and j.affinity = e.affinity
                                    and j.route = e.route and j.priority = %(priority)s::integer
                                    and j.fair_key > e.fair_key and j.seq <> all (%(taken)s::bigint[])
                                  order by j.fair_key limit 1), e.depth + 1
      from earlier e where e.fair_key <= %(last_fair_key)s::text and e.depth < %(limit)s::integer
)
select route, fair_key, affinity from later where fair_key is not null
union all
select route, fair_key, affinity from earlier where fair_key <= %(last_fair_key)s::text;

-- name: ready_heads
-- For each pair of route and fair_key: its first ready jobs at one priority, from a scan position on.
select h.seq, h.route, h.affinity, h.fair_key, h.due_at_ms
  from unnest(
    %(prefixes_0)s::integer[], %(prefixes_1)s::text[], %(lows_0)s::bigint[], %(lows_1)s::bigint[]
  ) as p (route, fair_key, due_low, seq_low)
 cross join lateral (
    select j.seq, j.route, j.affinity, j.fair_key, j.due_at_ms from holdfast.ready_job j
     where j.route = p.route and j.priority = %(priority)s and j.fair_key = p.fair_key
       and (j.due_at_ms, j.seq) >= (p.due_low, p.seq_low)
       and j.seq <> all (%(taken)s::bigint[])
     order by j.due_at_ms, j.seq limit %(limit)s
 ) h;

-- name: ready_heads_beside
-- For each triple of route, fair_key and affinity: its first ready jobs at one priority.
select h.seq, h.route, h.affinity, h.fair_key, h.due_at_ms
  from unnest(%(prefixes_0)s::integer[], %(prefixes_1)s::text[], %(prefixes_2)s::text[]) as p (route, fair_key, affinity)
 cross join lateral (
    select j.seq, j.route, j.affinity, j.fair_key, j.due_at_ms from holdfast.ready_job j
     where j.affinity is not null and j.affinity = p.affinity
       and j.route = p.route and j.priority = %(priority)s and j.fair_key = p.fair_key
       and j.seq <> all (%(taken)s::bigint[])
     order by j.due_at_ms, j.seq limit %(limit)s
 ) h;

-- name: ready_heads_of_tenant
-- For each strict route: the first ready jobs of one tenant at one priority.
select h.seq, h.route, h.affinity, h.fair_key, h.due_at_ms
  from unnest(%(prefixes_0)s::integer[], %(prefixes_1)s::text[]) as p (route, fair_key)
 cross join lateral (
    select j.seq, j.route, j.affinity, j.fair_key, j.due_at_ms from holdfast.ready_job j
     where j.fair_key = '' and j.tenant = %(tenant)s
       and j.route = p.route and j.priority = %(priority)s
       and j.seq <> all (%(taken)s::bigint[])
     order by j.due_at_ms, j.seq limit %(limit)s
 ) h;

-- name: ready_heads_of_tenant_beside
-- For each strict route and each affinity: the first ready jobs of one tenant at one priority.
select h.seq, h.route, h.affinity, h.fair_key, h.due_at_ms
  from unnest(%(prefixes_0)s::integer[], %(prefixes_1)s::text[], %(prefixes_2)s::text[]) as p (route, fair_key, affinity)
 cross join lateral (
    select j.seq, j.route, j.affinity, j.fair_key, j.due_at_ms from holdfast.ready_job j
     where j.fair_key = '' and j.affinity is not null and j.affinity = p.affinity
       and j.tenant = %(tenant)s and j.route = p.route and j.priority = %(priority)s
       and j.seq <> all (%(taken)s::bigint[])
     order by j.due_at_ms, j.seq limit %(limit)s
 ) h;

-- name: ready_lease
-- Lease the chosen jobs that are still ready and not locked, in the given order, and return them without the values
-- common to the claim. Jobs past their deadline are skipped; maintenance fails them.
with locked as materialized (
    select j.seq, array_position(%(seqs)s::bigint[], j.seq) as ordinal from holdfast.job j
     where j.seq = any (%(seqs)s::bigint[]) and j.state = 'ready' and j.priority = %(priority)s
       and (j.deadline_at_ms is null or j.deadline_at_ms > %(now)s)
     order by ordinal
     limit %(limit)s
       for update of j skip locked
),
first as materialized (select array_agg(seq order by ordinal) as seqs from locked),
taken as materialized (
    select first.seqs, holdfast.take_1(%(worker)s, %(lease_token)s, %(lease_until_ms)s, first.seqs)
      from first where cardinality(first.seqs) >= greatest(%(least)s, 1)
)
update holdfast.job j
   set state = 'running', epoch = j.epoch + 1, attempt = j.attempt + 1,
       claim_index = %(first_index)s + array_position(taken.seqs, j.seq) - 1,
       event_count = j.event_count + case when j.record_all = 1 or j.route = any (%(recorded_routes)s::integer[]) then 1 else 0 end,
       worker = %(worker)s, incarnation = %(incarnation)s, lease_token = %(lease_token)s,
       lease_until_ms = %(lease_until_ms)s, started_at_ms = %(now)s,
       outcome = null, settle_digest = null, phase = null, percent = null,
       unacknowledged = case when %(first_index)s + array_position(taken.seqs, j.seq) - 1 < %(acknowledged)s then 0
                             else j.unacknowledged + 1 end
  from taken
 where j.seq = any (taken.seqs)
returning /* leased columns */;

-- name: ready_lease_stream
-- Lease the first ready jobs of one route, priority and fair_key from a scan position on, skipping locked ones, and
-- return them without the values common to the claim. Jobs past their deadline are skipped; maintenance fails them.
with locked as materialized (
    select j.seq, r.due_at_ms from holdfast.ready_job r
      join holdfast.job j on j.seq = r.seq
     where r.route = %(route)s and r.priority = %(priority)s and r.fair_key = %(fair_key)s
       and (r.due_at_ms, r.seq) >= (%(due_low)s, %(seq_low)s)
       and j.state = 'ready' and j.priority = %(priority)s
       and (j.deadline_at_ms is null or j.deadline_at_ms > %(now)s)
     order by r.due_at_ms, r.seq
     limit %(limit)s
       for update of j skip locked
),
first as materialized (select array_agg(seq order by due_at_ms, seq) as seqs from locked),
taken as materialized (
    select first.seqs, holdfast.take_1(%(worker)s, %(lease_token)s, %(lease_until_ms)s, first.seqs)
      from first where cardinality(first.seqs) >= greatest(%(least)s, 1)
)
update holdfast.job j
   set state = 'running', epoch = j.epoch + 1, attempt = j.attempt + 1,
       claim_index = %(first_index)s + array_position(taken.seqs, j.seq) - 1,
       event_count = j.event_count + case when j.record_all = 1 or j.route = any (%(recorded_routes)s::integer[]) then 1 else 0 end,
       worker = %(worker)s, incarnation = %(incarnation)s, lease_token = %(lease_token)s,
       lease_until_ms = %(lease_until_ms)s, started_at_ms = %(now)s,
       outcome = null, settle_digest = null, phase = null, percent = null,
       unacknowledged = case when %(first_index)s + array_position(taken.seqs, j.seq) - 1 < %(acknowledged)s then 0
                             else j.unacknowledged + 1 end
  from taken
 where j.seq = any (taken.seqs)
returning /* leased columns */;

-- name: ready_lock
-- Lock the chosen jobs that are still ready and not locked, in the given order, without leasing them.
select * from holdfast.job_row
 where seq = any (%(seqs)s::bigint[]) and state = 'ready' and priority = %(priority)s
   and (deadline_at_ms is null or deadline_at_ms > %(now)s)
 order by array_position(%(seqs)s::bigint[], seq)
 limit %(limit)s
   for update skip locked;

-- name: ready_tops
-- For each route: its highest priority with ready jobs, and the first and last fair_key there. A route may have a
-- scan position: at its priority, jobs before its fair_key, due time and number are known to be gone and not looked
-- at.
with found as materialized (
    select r.*, coalesce(
             (select j.priority from holdfast.ready_job j
               where j.route = r.route and j.priority > r.mark_priority
                 and j.seq <> all (%(taken)s::bigint[])
               order by j.priority desc limit 1),
             (select j.priority from holdfast.ready_job j
               where j.route = r.route and j.priority = r.mark_priority
                 and (j.fair_key, j.due_at_ms, j.seq) >= (r.mark_turn, r.mark_due, r.mark_seq)
                 and j.seq <> all (%(taken)s::bigint[])
               order by j.fair_key, j.due_at_ms, j.seq limit 1),
             (select j.priority from holdfast.ready_job j
               where j.route = r.route and j.priority < coalesce(r.mark_priority, 2147483647)
                 and j.seq <> all (%(taken)s::bigint[])
               order by j.priority desc limit 1)
           ) as priority
      from unnest(
        %(routes)s::integer[], %(position_priorities)s::integer[], %(position_fair_keys)s::text[], %(position_dues)s::bigint[],
        %(position_seqs)s::bigint[]
      ) as r (route, mark_priority, mark_turn, mark_due, mark_seq)
),
top (route, priority, turn_low, due_low, seq_low) as materialized (
    select f.route, f.priority,
           case when f.priority = f.mark_priority then f.mark_turn else '' end,
           case when f.priority = f.mark_priority then f.mark_due else -1 end,
           case when f.priority = f.mark_priority then f.mark_seq else -1 end
      from found f
)
select top.route, top.priority,
       (select j.fair_key from holdfast.ready_job j
         where j.route = top.route and j.priority = top.priority
           and (j.fair_key, j.due_at_ms, j.seq) >= (top.turn_low, top.due_low, top.seq_low)
           and j.seq <> all (%(taken)s::bigint[])
         order by j.fair_key, j.due_at_ms, j.seq limit 1),
       (select j.fair_key from holdfast.ready_job j
         where j.route = top.route and j.priority = top.priority
           and j.seq <> all (%(taken)s::bigint[])
         order by j.fair_key desc limit 1)
  from top
 where top.priority is not null;

-- name: ready_tops_of_tenant
-- For each fair route: the highest priority at which one tenant has ready jobs, stepping down from the top.
with recursive step (route, priority, found) as (
    select r.route, t.priority, exists (select 1 from holdfast.ready_job j
                                         where j.route = r.route
                                           and j.priority = t.priority and j.fair_key = %(tenant)s::text
                                           and j.seq <> all (%(taken)s::bigint[]))
      from unnest(%(routes)s::integer[]) as r (route)
     cross join lateral (select j.priority from holdfast.ready_job j
                          where j.route = r.route
                          order by j.priority desc limit 1) t
    union all
    select s.route, t.priority, exists (select 1 from holdfast.ready_job j
                                         where j.route = s.route
                                           and j.priority = t.priority and j.fair_key = %(tenant)s::text
                                           and j.seq <> all (%(taken)s::bigint[]))
      from step s
     cross join lateral (select j.priority from holdfast.ready_job j
                          where j.route = s.route and j.priority < s.priority
                          order by j.priority desc limit 1) t
     where not s.found
)
select route, priority, %(tenant)s::text, %(tenant)s::text from step where found;

-- name: ready_tops_of_tenant_strict
-- For each strict route: the highest priority at which one tenant has ready jobs.
with top (route, priority) as materialized (
    select r.route, (select j.priority from holdfast.ready_job j
                      where j.fair_key = '' and j.tenant = %(tenant)s::text
                        and j.route = r.route and j.seq <> all (%(taken)s::bigint[])
                      order by j.priority desc limit 1)
      from unnest(%(routes)s::integer[]) as r (route)
)
select route, priority, '', '' from top where priority is not null;
