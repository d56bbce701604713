-- Reading jobs: by id, by number, lists, counts, backlog.

-- name: backlog_affinities
-- Count the ready jobs of each affinity, all together up to a maximum; those with the most first.
select a.affinity, count(*)
  from (select j.affinity from holdfast_route r
         cross join holdfast_job j on j.route = r.route and j.rare_state = {ready} and j.affinity is not null
         where r.has_affinity = 1 limit :maximum) a
 group by a.affinity order by count(*) desc, a.affinity limit :most;

-- name: backlog_oldest
-- For each route: the due time of the first ready job of each fair_key, at some priorities from the lowest up.
with recursive
level (route, priority, depth) as (
    select r.route, (select priority from holdfast_job
                      where state = {ready} and route = r.route
                      order by priority limit 1), 1
      from holdfast_route r
    union all
    select l.route, (select priority from holdfast_job
                      where state = {ready} and route = l.route and priority > l.priority
                      order by priority limit 1), l.depth + 1
      from level l where l.priority is not null and l.depth < :priorities
),
head (route, priority, fair_key, depth) as (
    select l.route, l.priority, (select fair_key from holdfast_job
                                  where state = {ready} and route = l.route and priority = l.priority
                                  order by fair_key limit 1), 1
      from level l where l.priority is not null
    union all
    select h.route, h.priority, (select fair_key from holdfast_job
                                  where state = {ready} and route = h.route and priority = h.priority
                                    and fair_key > h.fair_key
                                  order by fair_key limit 1), h.depth + 1
      from head h where h.fair_key is not null and h.depth < :fair_keys
     limit :heads
)
select r.lane, r.kind, (select due_at_ms from holdfast_job
                         where state = {ready} and route = h.route and priority = h.priority and fair_key = h.fair_key
                         order by due_at_ms limit 1)
  from head h join holdfast_route r on r.route = h.route
 where h.fair_key is not null;

-- name: backlog_ready
-- Count the ready jobs of each route, up to a maximum.
select r.lane, r.kind, r.requires, (select count(*) from (select 1 from holdfast_job
                                               where state = {ready} and route = r.route limit :maximum))
  from holdfast_route r;

-- name: backlog_rest
-- Count the unfinished jobs that are not ready, the expired and the suspect, each up to a maximum.
select (select count(*) from (select 1 from holdfast_job
                               where state = {scheduled} and due_at_ms > 0 limit :maximum)),
       (select count(*) from (select 1 from holdfast_job
                               where rare_state = {blocked} and predecessor > 0 limit :maximum)),
       (select count(*) from (select 1 from holdfast_job
                               where state = {running} and ends_at_ms > 0 limit :maximum)),
       (select count(*) from (select 1 from holdfast_job
                               where state = {running} and ends_at_ms <= :lease_now limit :maximum)),
       (select count(*) from (select 1 from holdfast_job
                               where suspect = 1 and rare_state = {ready} limit :maximum)),
       (select count(*) from (select 1 from (select distinct child from holdfast_edge where ended is null and child > 0) e
                                 cross join holdfast_job on seq = e.child
                               where state = {dependent} limit :maximum)),
       (select count(*) from (select 1 from holdfast_gate g cross join holdfast_job j
                               where j.gate = g.gate and j.rare_state = {parked} limit :maximum));

-- name: counts_by_failure_class
-- Count failed jobs by the class of their failure.
select extra ->> '$.failure_class', count(*) from holdfast_job
 where ends_at_ms is not null and state = {failed} and extra ->> '$.failure_class' is not null
   and (:tenant is null or tenant = :tenant)
   and route not in (select route from holdfast_route where lane = :system_lane)
 group by extra ->> '$.failure_class';

-- name: counts_by_kind
-- Count jobs by kind.
select r.kind, sum(j.jobs)
  from (select route, count(*) as jobs from holdfast_job
         where (:tenant is null or tenant = :tenant) and state <> {deleted} group by route) j
  join holdfast_route r on r.route = j.route and r.lane <> :system_lane
 group by r.kind;

-- name: counts_by_lane
-- Count jobs by lane.
select r.lane, sum(j.jobs)
  from (select route, count(*) as jobs from holdfast_job
         where (:tenant is null or tenant = :tenant) and state <> {deleted} group by route) j
  join holdfast_route r on r.route = j.route and r.lane <> :system_lane
 group by r.lane;

-- name: counts_by_state
-- Count jobs by state.
select s.name, j.jobs
  from (select state, count(*) as jobs from holdfast_job
         where (:tenant is null or tenant = :tenant)
           and route not in (select route from holdfast_route where lane = :system_lane)
         group by state) j
  join holdfast_state s on s.number = j.state;

-- name: counts_by_tenant
-- Count jobs by tenant.
select tenant, count(*) from holdfast_job
 where (:tenant is null or tenant = :tenant) and state <> {deleted}
   and route not in (select route from holdfast_route where lane = :system_lane)
 group by tenant;

-- name: job_by_id
-- Read one job by its id.
select * from holdfast_job_row where id = :id;

-- name: jobs_by_finish
-- List jobs of one finished state by finish time, newest first, with any filter.
select * from holdfast_job_row
 where ends_at_ms is not null and state_number = (select number from holdfast_state where name = :state)
   and (ends_at_ms, seq) < (:finished_before, :before)
   and (ends_at_ms, seq) >= (:finished_floor, :floor)
   and (:kind is null or kind = :kind)
   and (lane = :lane or (:lane is null and lane <> :system_lane))
   and (:tenant is null or tenant = :tenant)
   and (:failure_class is null or failure_class = :failure_class)
   and (:aged_before is null or coalesce(finished_at_ms, enqueued_at_ms) < :aged_before)
 order by ends_at_ms desc, seq desc
 limit :limit;

-- name: jobs_by_group
-- List the members of one group by enqueue order, newest first, with any filter.
select j.* from holdfast_edge e
 cross join holdfast_job_row j on j.seq = e.parent
 where e.child = (select -number from holdfast_group where tenant = :tenant and name = :group) and e.parent < :before
   and not exists (select 1 from json_each(:tags) w
                    where not exists (select 1 from holdfast_tag
                                       where tag = w.key and value = w.value and seq = e.parent))
   and {filter_of_jobs}
 order by e.parent desc
 limit :limit;

-- name: jobs_by_id
-- Read jobs by their ids.
select * from holdfast_job_row where id in (select value from json_each(:ids));

-- name: jobs_by_order
-- List jobs by enqueue order, newest first, with any filter.
select * from holdfast_job_row j
 where seq < :before and seq >= :floor
   and {filter_of_jobs}
 order by seq desc
 limit :limit;

-- name: jobs_by_root
-- List the jobs of one tree by enqueue order, newest first, with any filter.
select * from holdfast_job_row j
 where seq in (select seq from holdfast_job where root = :root and root is not null
                union all
               select seq from holdfast_job where id = :root)
   and seq < :before
   and not exists (select 1 from json_each(:tags) w
                    where not exists (select 1 from holdfast_tag
                                       where tag = w.key and value = w.value and seq = j.seq))
   and {filter_of_jobs}
 order by seq desc
 limit :limit;

-- name: jobs_by_seq
-- Read jobs by their numbers.
select * from holdfast_job_row where seq in (select value from json_each(:seqs));

-- name: jobs_by_session
-- List the entries of one session, newest first, with any filter.
select * from holdfast_job_row j
 where session_number = (select number from holdfast_session where tenant = :tenant and name = :session)
   and session_number is not null and seq < :before and seq >= :floor
   and (:root is null or coalesce(root, id) = :root)
   and not exists (select 1 from json_each(:tags) w
                    where not exists (select 1 from holdfast_tag
                                       where tag = w.key and value = w.value and seq = j.seq))
   and {filter_of_jobs}
 order by seq desc
 limit :limit;

-- name: jobs_by_tags
-- List the jobs with some tags by enqueue order, newest first, with any filter.
select j.* from holdfast_tag t
 cross join holdfast_job_row j on j.seq = t.seq
 where t.tag = :tag and t.value = :value and t.seq < :before and t.seq >= :floor
   and not exists (select 1 from json_each(:tags) w
                    where not exists (select 1 from holdfast_tag
                                       where tag = w.key and value = w.value and seq = t.seq))
   and {filter_of_jobs}
 order by t.seq desc
 limit :limit;

-- name: jobs_count
-- Count jobs by lane, kind and state, with any filter.
select r.lane, r.kind, s.name, sum(j.jobs)
  from (select route, state, count(*) as jobs from holdfast_job
         where (:states is null or state in (select number from holdfast_state
                                              where name in (select value from json_each(:states))))
           and (:tenant is null or tenant = :tenant)
           and (:failure_class is null or extra ->> '$.failure_class' = :failure_class)
           and (:aged_before is null or coalesce(finished_at_ms, enqueued_at_ms) < :aged_before)
         group by route, state) j
  join holdfast_route r on r.route = j.route
  join holdfast_state s on s.number = j.state
 where (:kind is null or r.kind = :kind)
   and (r.lane = :lane or (:lane is null and r.lane <> :system_lane))
 group by r.lane, r.kind, s.name;

-- name: jobs_finish_floor
-- Find the position so many jobs of one finished state below another, by finish time.
select ends_at_ms, seq from holdfast_job
 where ends_at_ms is not null and state = (select number from holdfast_state where name = :state)
   and (ends_at_ms, seq) < (:finished_before, :before)
 order by ends_at_ms desc, seq desc
 limit 1 offset :examined;

-- name: jobs_finished
-- Read the jobs among these that have finished, and those that wait although their deadline has passed.
select * from holdfast_job_row
 where id in (select value from json_each(:ids))
   and (finished_at_ms is not null or (deadline_at_ms <= :now and state_number <> {running}));

-- name: jobs_order_floor
-- Find the job so many jobs below another, by enqueue order.
select seq from holdfast_job where seq < :before order by seq desc limit 1 offset :examined;

-- name: jobs_session_floor
-- Find the entry so many entries of one session below another, by enqueue order.
select seq from holdfast_job
 where session = (select number from holdfast_session where tenant = :tenant and name = :session)
   and session is not null and seq < :before
 order by seq desc limit 1 offset :examined;

-- name: jobs_tag_floor
-- Find the job so many jobs with one tag below another, by enqueue order.
select seq from holdfast_tag where tag = :tag and value = :value and seq < :before
 order by seq desc limit 1 offset :examined;

-- name: report_problems
-- Count jobs that an operator should look at: expired but still running, suspect, due but not promoted.
select (select count(*) from holdfast_job where state = {running} and ends_at_ms <= :lease_now),
       (select count(*) from holdfast_job where suspect = 1 and rare_state = {ready}),
       (select count(*) from holdfast_job where state = {scheduled} and due_at_ms <= :wall_now);
