-- Reading jobs: by id, by number, lists, counts, backlog.

-- name: backlog_affinities
-- Count the ready jobs of each affinity, all together up to a maximum; those with the most first.
select a.affinity, count(*)
  from (select j.affinity from holdfast.route r
         cross join lateral (select j.affinity from holdfast.ready_job j
                                          where j.route = r.route and j.affinity is not null
                                          limit %(maximum)s) j
         where r.has_affinity = 1 limit %(maximum)s) a
 group by a.affinity order by count(*) desc, a.affinity limit %(most)s;

-- name: backlog_oldest
-- For each lane and kind: the due time of the oldest of the first ready jobs of each fair_key, at some priorities from
-- the lowest up.
with recursive
level (route, priority, depth) as (
    select r.route, (select j.priority from holdfast.ready_job j
                      where j.route = r.route
                      order by j.priority limit 1), 1
      from holdfast.route r
    union all
    select l.route, (select j.priority from holdfast.ready_job j
                      where j.route = l.route and j.priority > l.priority
                      order by j.priority limit 1), l.depth + 1
      from level l where l.priority is not null and l.depth < %(priorities)s
),
head (route, priority, fair_key, due_at_ms, depth) as (
    select l.route, l.priority, j.fair_key, j.due_at_ms, 1
      from level l
     cross join lateral (select j.fair_key, j.due_at_ms from holdfast.ready_job j
                          where j.route = l.route and j.priority = l.priority
                          order by j.fair_key, j.due_at_ms limit 1) j
    union all
    select h.route, h.priority, j.fair_key, j.due_at_ms, h.depth + 1
      from head h
     cross join lateral (select j.fair_key, j.due_at_ms from holdfast.ready_job j
                          where j.route = h.route and j.priority = h.priority
                            and j.fair_key > h.fair_key
                          order by j.fair_key, j.due_at_ms limit 1) j
     where h.depth < %(fair_keys)s
)
select r.lane, r.kind, min(h.due_at_ms) from (select route, due_at_ms from head limit %(heads)s) h
  join holdfast.route r on r.route = h.route
 group by r.lane, r.kind;

-- name: backlog_ready
-- Count the ready jobs of each route, up to a maximum.
select r.lane, r.kind, r.requires, (select count(*) from (select 1 from holdfast.ready_job j
                                               where j.route = r.route
                                               limit %(maximum)s) counted)
  from holdfast.route r;

-- name: backlog_rest
-- Count the unfinished jobs that are not ready, the expired and the suspect, each up to a maximum.
select (select count(*) from (select 1 from holdfast.open_job where state = 'scheduled' limit %(maximum)s) counted),
       (select count(*) from (select 1 from holdfast.open_job where state = 'blocked' limit %(maximum)s) counted),
       (select count(*) from (select 1 from holdfast.lease l
                               cross join lateral unnest(l.seqs) as u (seq)
                                join holdfast.job j on j.seq = u.seq
                               where j.state = 'running' and j.worker = l.worker and j.lease_token = l.token
                               limit %(maximum)s) counted),
       (select count(*) from (select 1 from holdfast.lease l
                               cross join lateral unnest(l.seqs) as u (seq)
                                join holdfast.job j on j.seq = u.seq
                               where l.until_ms <= %(lease_now)s and j.state = 'running' and j.worker = l.worker
                                 and j.lease_token = l.token and j.lease_until_ms <= %(lease_now)s
                               limit %(maximum)s) counted),
       (select count(*) from (select 1 from holdfast.open_job
                               where suspect = 1 and state = 'ready' limit %(maximum)s) counted),
       (select count(*) from (select 1 from holdfast.open_job where state = 'dependent' limit %(maximum)s) counted),
       (select count(*) from (select 1 from holdfast.gate g join holdfast.open_job j on j.gate = g.gate
                               where j.state = 'parked' limit %(maximum)s) counted);

-- name: counts_by_failure_class
-- Count failed jobs by the class of their failure.
select j.failure_class, count(*) from holdfast.ended e
 cross join lateral unnest(e.seqs, e.event_counts) as u (seq, event_count)
  join holdfast.job j on j.seq = u.seq
 where e.state = 'failed' and j.state = 'failed' and j.finished_at_ms = e.finished_at_ms and j.event_count = u.event_count
   and j.failure_class is not null
   and (%(tenant)s::text is null or j.tenant = %(tenant)s::text)
   and j.route not in (select route from holdfast.route where lane = %(system_lane)s::text)
 group by j.failure_class;

-- name: counts_by_kind
-- Count jobs by kind.
select r.kind, sum(j.jobs)::bigint
  from (select route, count(*) as jobs from holdfast.job
         where (%(tenant)s::text is null or tenant = %(tenant)s::text) group by route) j
  join holdfast.route r on r.route = j.route and r.lane <> %(system_lane)s::text
 group by r.kind;

-- name: counts_by_lane
-- Count jobs by lane.
select r.lane, sum(j.jobs)::bigint
  from (select route, count(*) as jobs from holdfast.job
         where (%(tenant)s::text is null or tenant = %(tenant)s::text) group by route) j
  join holdfast.route r on r.route = j.route and r.lane <> %(system_lane)s::text
 group by r.lane;

-- name: counts_by_state
-- Count jobs by state.
select state, count(*) from holdfast.job
 where (%(tenant)s::text is null or tenant = %(tenant)s::text)
   and route not in (select route from holdfast.route where lane = %(system_lane)s::text)
 group by state;

-- name: counts_by_tenant
-- Count jobs by tenant.
select tenant, count(*) from holdfast.job
 where (%(tenant)s::text is null or tenant = %(tenant)s::text)
   and route not in (select route from holdfast.route where lane = %(system_lane)s::text)
 group by tenant;

-- name: job_by_id
-- Read one job by its id, locked in write transactions.
select * from holdfast.job_row where id = %(id)s /* lock: for update */;

-- name: jobs_by_finish
-- List jobs of one finished state by finish time, newest first, with any filter.
select * from holdfast.jobs_by_finish_1(
    %(state)s, %(finished_before)s, %(before)s, %(finished_floor)s, %(floor)s, %(kind)s, %(lane)s, %(system_lane)s, %(tenant)s,
    %(failure_class)s, %(aged_before)s::bigint, %(limit)s::integer
);

-- name: jobs_by_group
-- List the members of one group by enqueue order, newest first, with any filter.
select j.* from holdfast.edge e
  join holdfast.job_row j on j.seq = e.parent
 where e.child = (select -number from holdfast.job_group where tenant = %(tenant)s and name = %(group)s)
   and e.parent < %(before)s
   and not exists (select 1 from unnest(%(tags_0)s::text[], %(tags_1)s::text[]) as w (tag, value)
                    where not exists (select 1 from holdfast.tag o
                                       where o.tag = w.tag and o.value = w.value and o.seq = e.parent))
   and (%(states)s::text[] is null or j.state = any (%(states)s::text[]))
   and (%(kind)s::text is null or j.kind = %(kind)s::text)
   and (j.lane = %(lane)s::text or (%(lane)s::text is null and j.lane <> %(system_lane)s::text))
   and (%(failure_class)s::text is null or j.failure_class = %(failure_class)s::text)
   and (%(aged_before)s::bigint is null or coalesce(j.finished_at_ms, j.enqueued_at_ms) < %(aged_before)s::bigint)
 order by e.parent desc
 limit %(limit)s;

-- name: jobs_by_id
-- Read jobs by their ids, locked in order in write transactions.
select * from holdfast.job_row where id = any (%(ids)s::text[]) order by seq /* lock: for update */;

-- name: jobs_by_order
-- List jobs by enqueue order, newest first, with any filter.
select * from holdfast.job_row
 where seq < %(before)s and seq >= %(floor)s
   and (%(states)s::text[] is null or state = any (%(states)s::text[]))
   and (%(kind)s::text is null or kind = %(kind)s::text)
   and (lane = %(lane)s::text or (%(lane)s::text is null and lane <> %(system_lane)s::text))
   and (%(tenant)s::text is null or tenant = %(tenant)s::text)
   and (%(failure_class)s::text is null or failure_class = %(failure_class)s::text)
   and (%(aged_before)s::bigint is null or coalesce(finished_at_ms, enqueued_at_ms) < %(aged_before)s::bigint)
 order by seq desc
 limit %(limit)s;

-- name: jobs_by_root
-- List the jobs of one tree by enqueue order, newest first, with any filter.
-- The jobs are looked up one by one in this order, so that it ends with the last one of the page.
select j.* from (select u.seq from unnest(array(select seq from holdfast.job where root = %(root)s
                                                 union all
                                                select seq from holdfast.job where id = %(root)s)) as u (seq)
                  where u.seq < %(before)s order by u.seq desc) t
 cross join lateral (select 1 from holdfast.job b where b.seq = t.seq and /* filter of jobs */ offset 0) b
 cross join lateral (select * from holdfast.job_row where job_row.seq = t.seq offset 0) j
 order by t.seq desc
 limit %(limit)s;

-- name: jobs_by_seq
-- Read jobs by their numbers, locked in order in write transactions.
select * from holdfast.job_row where seq = any (%(seqs)s::bigint[]) order by seq /* lock: for update */;

-- name: jobs_by_session
-- List the entries of one session, newest first, with any filter.
select * from holdfast.job_row
 where session_number = (select number from holdfast.session where tenant = %(tenant)s and name = %(session)s)
   and session_number is not null and seq < %(before)s and seq >= %(floor)s
   and (%(root)s::text is null or coalesce(root, id) = %(root)s::text)
   and not exists (select 1 from unnest(%(tags_0)s::text[], %(tags_1)s::text[]) as w (tag, value)
                    where not exists (select 1 from holdfast.tag o
                                       where o.tag = w.tag and o.value = w.value and o.seq = job_row.seq))
   and (%(states)s::text[] is null or state = any (%(states)s::text[]))
   and (%(kind)s::text is null or kind = %(kind)s::text)
   and (lane = %(lane)s::text or (%(lane)s::text is null and lane <> %(system_lane)s::text))
   and (%(failure_class)s::text is null or failure_class = %(failure_class)s::text)
   and (%(aged_before)s::bigint is null or coalesce(finished_at_ms, enqueued_at_ms) < %(aged_before)s::bigint)
 order by seq desc
 limit %(limit)s;

-- name: jobs_by_tags
-- List the jobs with some tags by enqueue order, newest first, with any filter; looked up one by one, as above.
select j.* from holdfast.tag t
 cross join lateral (select 1 from holdfast.job b where b.seq = t.seq and /* filter of jobs */ offset 0) b
 cross join lateral (select * from holdfast.job_row where job_row.seq = t.seq offset 0) j
 where t.tag = %(tag)s and t.value = %(value)s and t.seq < %(before)s and t.seq >= %(floor)s
 order by t.seq desc
 limit %(limit)s;

-- name: jobs_count
-- Count jobs by lane, kind and state, with any filter.
select r.lane, r.kind, j.state, sum(j.jobs)::bigint
  from (select route, state, count(*) as jobs from holdfast.job
         where (%(states)s::text[] is null or state = any (%(states)s::text[]))
           and (%(tenant)s::text is null or tenant = %(tenant)s::text)
           and (%(failure_class)s::text is null or failure_class = %(failure_class)s::text)
           and (%(aged_before)s::bigint is null
                or coalesce(finished_at_ms, enqueued_at_ms) < %(aged_before)s::bigint)
         group by route, state) j
  join holdfast.route r on r.route = j.route
 where (%(kind)s::text is null or r.kind = %(kind)s::text)
   and (r.lane = %(lane)s::text or (%(lane)s::text is null and r.lane <> %(system_lane)s::text))
 group by r.lane, r.kind, j.state;

-- name: jobs_finish_floor
-- Find the position so many jobs of one finished state below another, by finish time.
select finished_at_ms, seq
  from holdfast.finish_floor_1(%(state)s, %(finished_before)s, %(before)s, %(examined)s::integer);

-- name: jobs_finished
-- Read the jobs among these that have finished, and those that wait although their deadline has passed.
select * from holdfast.job_row
 where id = any (%(ids)s::text[])
   and (finished_at_ms is not null or (deadline_at_ms <= %(now)s and state <> 'running'));

-- name: jobs_order_floor
-- Find the job so many jobs below another, by enqueue order.
select seq from holdfast.job where seq < %(before)s order by seq desc limit 1 offset %(examined)s;

-- name: jobs_session_floor
-- Find the entry so many entries of one session below another, by enqueue order.
select seq from holdfast.job
 where session = (select number from holdfast.session where tenant = %(tenant)s and name = %(session)s)
   and session is not null and seq < %(before)s
 order by seq desc limit 1 offset %(examined)s;

-- name: jobs_tag_floor
-- Find the job so many jobs with one tag below another, by enqueue order.
select seq from holdfast.tag where tag = %(tag)s and value = %(value)s and seq < %(before)s
 order by seq desc limit 1 offset %(examined)s;

-- name: report_problems
-- Count jobs that an operator should look at: expired but still running, suspect, due but not promoted.
select (select count(*) from holdfast.lease l
         cross join lateral unnest(l.seqs) as u (seq)
          join holdfast.job j on j.seq = u.seq
         where l.until_ms <= %(lease_now)s and j.state = 'running' and j.worker = l.worker and j.lease_token = l.token
           and j.lease_until_ms <= %(lease_now)s),
       (select count(*) from holdfast.open_job where state = 'ready' and suspect = 1),
       (select count(*) from holdfast.open_job where state = 'scheduled' and due_at_ms <= %(wall_now)s);
