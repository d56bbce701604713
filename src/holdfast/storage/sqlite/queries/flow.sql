-- Flow control: wake rows, schedules, dependencies and groups.

-- name: children_cancelled
-- Find some jobs that were cancelled because of these jobs, which were requeued, and of no others that are not done yet.
select e.child from holdfast_edge e cross join holdfast_job c on c.seq = e.child
 where e.parent in (select value from json_each(:seqs)) and e.child > 0 and e.on_failed = 'cancel' and e.ended > {done}
   and c.state = {cancelled} and c.extra ->> '$.failure_reason' = 'dependency_failed'
   and not exists (select 1 from holdfast_edge o cross join holdfast_job p on p.seq = o.parent
                    where o.child = e.child and o.ended > {done} and p.state > {done})
 group by e.child
 order by e.child
 limit :limit;

-- name: edge_end
-- Record that children were told of the ends of their parents, one edge for each row of values.
update holdfast_edge set ended = ? where child = ? and parent = ?;

-- name: edge_insert
-- Store dependencies, one for each row of values.
insert into holdfast_edge (child, parent, place, on_failed)
values (?, ?, ?, ?);

-- name: edges_delete
-- Delete the dependencies of jobs, as children and as parents.
delete from holdfast_edge where child in (select value from json_each(:seqs)) or parent in (select value from json_each(:seqs));

-- name: edges_of_children
-- Read the dependencies of jobs whose parents have not been counted.
select child, parent, on_failed from holdfast_edge
 where child in (select value from json_each(:seqs)) and ended is null
 order by child, parent;

-- name: edges_of_parents
-- Read some dependencies on jobs whose ends have not been counted.
select child, parent, on_failed from holdfast_edge
 where parent in (select value from json_each(:seqs)) and ended is null
 order by parent, child
 limit :limit;

-- name: edges_reopen
-- Record that the ends of parents that were not done were not counted for these children.
update holdfast_edge set ended = null
 where child in (select value from json_each(:children)) and ended > {done};

-- name: edges_use
-- Record that the store has dependencies.
update holdfast_meta set value = '1' where name = 'edges';

-- name: edges_used
-- Read whether the store has dependencies.
select value from holdfast_meta where name = 'edges';

-- name: group_by_name
-- Read one group, in order to change it.
select number, tenant, name, sealed, members, done, failed, cancelled, retired, on_end, on_success,
       on_first_failure, token, problem, created_at_ms, ended_at_ms
  from holdfast_group
 where tenant = :tenant and name = :name;

-- name: group_insert
-- Store a new group, unless there is one of its name.
insert into holdfast_group (tenant, name, sealed, members, done, failed, cancelled, retired, on_end, on_success,
    on_first_failure, token, problem, created_at_ms, ended_at_ms)
values (:tenant, :name, :sealed, :members, :done, :failed, :cancelled, :retired, :on_end, :on_success,
    :on_first_failure, :token, :problem, :created_at_ms, :ended_at_ms)
on conflict (tenant, name) do nothing
returning number;

-- name: group_members
-- Find some members of a group that have not ended, in order.
select parent from holdfast_edge
 where child = -:number and ended is null and parent > :after
 order by parent
 limit :limit;

-- name: group_of_name
-- Read one group, without locking it.
select number, tenant, name, sealed, members, done, failed, cancelled, retired, on_end, on_success,
       on_first_failure, token, problem, created_at_ms, ended_at_ms
  from holdfast_group
 where tenant = :tenant and name = :name;

-- name: group_write
-- Store a changed group.
update holdfast_group
   set sealed = :sealed,
       members = :members,
       done = :done,
       failed = :failed,
       cancelled = :cancelled,
       retired = :retired,
       on_end = :on_end,
       on_success = :on_success,
       on_first_failure = :on_first_failure,
       token = :token,
       problem = :problem,
       ended_at_ms = :ended_at_ms
 where number = :number;

-- name: groups_delete
-- Delete some groups that ended before a time and of which no member and no callback is left; return their numbers.
delete from holdfast_group
 where number in (select number from holdfast_group g
                   where ended_at_ms < :before
                     and not exists (select 1 from holdfast_edge where child = -g.number and place >= 0)
                     and not exists (select 1 from holdfast_edge where parent = -g.number)
                   order by ended_at_ms
                   limit :limit)
returning number;

-- name: groups_existing
-- Find those of these groups that exist, without locking them.
select number from holdfast_group where number in (select value from json_each(:numbers));

-- name: groups_newest
-- Read some groups, newest first.
select number, tenant, name, sealed, members, done, failed, cancelled, retired, on_end, on_success,
       on_first_failure, token, problem, created_at_ms, ended_at_ms
  from holdfast_group
 where (:tenant is null or tenant = :tenant)
 order by number desc
 limit :limit;

-- name: groups_of_members
-- Read the unfinished groups of a job, in order to change them.
select number, tenant, name, sealed, members, done, failed, cancelled, retired, on_end, on_success,
       on_first_failure, token, problem, created_at_ms, ended_at_ms
  from holdfast_group
 where number in (select -child from holdfast_edge where parent = :seq and child < 0) and ended_at_ms is null
 order by number;

-- name: groups_to_fold
-- Read groups.
select number, tenant, name, sealed, members, done, failed, cancelled, retired, on_end, on_success,
       on_first_failure, token, problem, created_at_ms, ended_at_ms
  from holdfast_group
 where number in (select value from json_each(:numbers))
 order by number;

-- name: jobs_await
-- Record that others wait for jobs.
update holdfast_job set awaited = 1 where seq in (select value from json_each(:seqs)) and awaited = 0;

-- name: jobs_dependent
-- Read dependent jobs.
select * from holdfast_job_row
 where seq in (select value from json_each(:seqs)) and state_number = {dependent}
 order by seq;

-- name: jobs_named
-- Read the numbers and tenants of jobs by id.
select id, seq, tenant from holdfast_job where id in (select value from json_each(:ids));

-- name: jobs_states
-- Read the ids and states of jobs, without locking them.
select seq, id, (select name from holdfast_state where number = state) from holdfast_job where seq in (select value from json_each(:seqs));

-- name: lane_late
-- Record whether a lane is late.
update holdfast_lane set late = :late where lane = :lane;

-- name: lane_oldest
-- Find the oldest of the first ready jobs of each fair_key on some routes, at some priorities from the lowest up.
with recursive
level (route, priority, depth) as (
    select r.value, (select priority from holdfast_job
                      where state = {ready} and route = r.value
                      order by priority limit 1), 1
      from json_each(:routes) r
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
)
select j.seq, j.due_at_ms
  from head h cross join holdfast_job j
 where j.seq = (select seq from holdfast_job
                 where state = {ready} and route = h.route and priority = h.priority and fair_key = h.fair_key
                 order by due_at_ms, seq limit 1)
 order by j.due_at_ms, j.seq
 limit 1;

-- name: lane_waiting
-- Count the ready and parked jobs of one tenant on some routes, up to a maximum. In strict lanes the fair_key is empty.
with recursive
ready (route, priority, depth) as (
    select value, (select priority from holdfast_job
                    where state = {ready} and route = value order by priority desc limit 1), 1
      from json_each(:routes)
    union all
    select r.route, (select priority from holdfast_job
                      where state = {ready} and route = r.route and priority < r.priority
                      order by priority desc limit 1), r.depth + 1
      from ready r where r.priority is not null and r.depth < :priorities
),
parked (gate, route, priority, depth) as (
    select g.gate, value, (select priority from holdfast_job
                            where gate = g.gate and rare_state = {parked} and route = value
                            order by priority desc limit 1), 1
      from json_each(:routes) cross join holdfast_gate g
    union all
    select p.gate, p.route, (select priority from holdfast_job
                              where gate = p.gate and rare_state = {parked} and route = p.route and priority < p.priority
                              order by priority desc limit 1), p.depth + 1
      from parked p where p.priority is not null and p.depth < :priorities
)
select count(*) from (
    select 1 from ready r cross join holdfast_job j
     where j.state = {ready} and j.route = r.route and j.priority = r.priority and j.fair_key = :tenant
    union all
    select 1 from json_each(:routes) r cross join holdfast_job j
     where j.rare_state = {ready} and j.fair_key = '' and j.tenant = :tenant and j.route = r.value
    union all
    select 1 from parked p cross join holdfast_job j
     where j.gate = p.gate and j.rare_state = {parked} and j.route = p.route and j.priority = p.priority
       and j.fair_key in (:tenant, '') and j.tenant = :tenant
    limit :maximum);

-- name: lanes_late
-- Read the lanes that are late.
select lane from holdfast_lane where late = 1;

-- name: members_end
-- Record that members of a group have ended in a state; return those whose ends were not counted.
update holdfast_edge set ended = :state
 where child = -:number and parent in (select value from json_each(:seqs)) and ended is null
returning parent;

-- name: members_insert
-- Make jobs members of a group; return those that were not.
insert into holdfast_edge (child, parent, place, on_failed)
select -:number, value, :place + key, 'run' from json_each(:seqs) where true
on conflict do nothing
returning parent;

-- name: members_reopen
-- Record that a member of groups has not ended; return the groups that had counted its end.
update holdfast_edge set ended = null
 where parent = :seq and child in (select -value from json_each(:numbers)) and ended is not null
returning -child;

-- name: note_time
-- Note the time of the wall clock.
update holdfast_meta set value = :now where name = 'noted_ms';

-- name: noted_time
-- Read the time of the wall clock that was noted last.
select value from holdfast_meta where name = 'noted_ms';

-- name: parents_of_job
-- Read the jobs on which a job depends, in the given order; for a callback of a group its members.
select j.* from holdfast_edge e cross join holdfast_job_row j
 where e.child in (select :seq union all select parent from holdfast_edge where child = :seq and parent < 0)
   and j.seq = e.parent
 order by e.place;

-- name: parents_unlocked
-- Read the ids and states of jobs.
select seq, id, (select name from holdfast_state where number = state) from holdfast_job where seq in (select value from json_each(:seqs))
 order by seq;

-- name: pending_children
-- Find those of these jobs that depend on a job whose end has not been counted.
select value from json_each(:seqs)
 where exists (select 1 from holdfast_edge indexed by holdfast_edge_pending where child = value and ended is null);

-- name: schedule_by_name
-- Read one schedule.
select number, tenant, name, kind, payload, options, cron, every_ms, zone, missed, overlap, owner, ticks,
       last_at_ms, last_tick_ms, last_job_id, paused, problem, set_at_ms, declared_at_ms
  from holdfast_schedule
 where tenant = :tenant and name = :name;

-- name: schedule_delete
-- Delete a schedule.
delete from holdfast_schedule where number = :number;

-- name: schedule_insert
-- Store a new schedule, unless there is one of its name.
insert into holdfast_schedule (tenant, name, kind, payload, options, cron, every_ms, zone, missed, overlap, owner, ticks,
    last_at_ms, last_tick_ms, last_job_id, paused, problem, set_at_ms, declared_at_ms)
values (:tenant, :name, :kind, :payload, :options, :cron, :every_ms, :zone, :missed, :overlap,
    :owner, :ticks, :last_at_ms, :last_tick_ms, :last_job_id, :paused, :problem, :set_at_ms, :declared_at_ms)
on conflict (tenant, name) do nothing
returning number;

-- name: schedule_write
-- Store a changed schedule.
update holdfast_schedule
   set kind = :kind,
       payload = :payload,
       options = :options,
       cron = :cron,
       every_ms = :every_ms,
       zone = :zone,
       missed = :missed,
       overlap = :overlap,
       owner = :owner,
       ticks = :ticks,
       last_at_ms = :last_at_ms,
       last_tick_ms = :last_tick_ms,
       last_job_id = :last_job_id,
       paused = :paused,
       problem = :problem,
       set_at_ms = :set_at_ms,
       declared_at_ms = :declared_at_ms
 where number = :number;

-- name: schedules_by_name
-- Read some schedules in order of tenant and name.
select number, tenant, name, kind, payload, options, cron, every_ms, zone, missed, overlap, owner, ticks,
       last_at_ms, last_tick_ms, last_job_id, paused, problem, set_at_ms, declared_at_ms
  from holdfast_schedule
 where (:tenant is null or tenant = :tenant)
 order by tenant, name
 limit :limit;

-- name: schedules_to_fire
-- Read schedules that are not paused, by number.
select number, tenant, name, kind, payload, options, cron, every_ms, zone, missed, overlap, owner, ticks,
       last_at_ms, last_tick_ms, last_job_id, paused, problem, set_at_ms, declared_at_ms
  from holdfast_schedule
 where number in (select value from json_each(:numbers)) and paused = 0
 order by number;

-- name: tree_unfinished
-- Find some unfinished jobs of a tree besides its first, in order.
select seq from holdfast_job where root = :root and seq > :after and state < {done}
 order by seq
 limit :limit;

-- name: wake_awaited
-- Append a wake row for each of these jobs that others wait for.
insert into holdfast_wake (at_ms, target, number)
select 0, 'parent', seq from holdfast_job where seq in (select value from json_each(:seqs)) and awaited = 1;

-- name: wake_delete
-- Delete wake rows that have been folded.
delete from holdfast_wake where wake in (select value from json_each(:wakes));

-- name: wake_insert
-- Append a wake row.
insert into holdfast_wake (at_ms, target, number) values (:at_ms, :target, :number);

-- name: wake_is_due
-- Find whether a wake row is due.
select exists (select 1 from holdfast_wake where at_ms <= :now);

-- name: wake_move
-- Look at the targets of wake rows later.
update holdfast_wake set at_ms = :at_ms where wake in (select value from json_each(:wakes));

-- name: wake_of_target
-- Delete the wake rows of one target.
delete from holdfast_wake where target = :target and number = :number;

-- name: wakes_due
-- Read some wake rows that ask to look at once, and some of those whose time has passed, earliest first: neither keep
-- the others waiting.
select * from (select wake, target, number from holdfast_wake where at_ms = 0 order by wake limit :limit)
union all
select * from (select wake, target, number from holdfast_wake
                where at_ms > 0 and at_ms <= :now
                order by at_ms, wake
                limit :limit);

-- name: wakes_hasten
-- Look at once at what wake rows ask to look at later, except gates, which know the times of theirs, and schedules.
update holdfast_wake set at_ms = 0
 where at_ms > :now and target not in ('schedule', 'gate');

-- name: wakes_insert
-- Append wake rows that ask to look at once.
insert into holdfast_wake (at_ms, target, number)
select 0, :target, value from json_each(:numbers);

-- name: wakes_of_gates
-- Append wake rows that ask to look at once at gates that are looked at later.
insert into holdfast_wake (at_ms, target, number)
select 0, 'gate', number from holdfast_wake where target = 'gate' and at_ms > :now;
