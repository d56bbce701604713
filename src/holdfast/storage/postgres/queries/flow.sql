-- Flow control: wake rows, schedules, dependencies and groups.

-- name: children_cancelled
-- Find some jobs that were cancelled because of these jobs, which were requeued, and of no others that are not done yet.
select e.child from holdfast.edge e join holdfast.job c on c.seq = e.child
 where e.parent = any (%(seqs)s::bigint[]) and e.child > 0 and e.on_failed = 'cancel' and e.ended > 20
   and c.state = 'cancelled' and c.failure_reason = 'dependency_failed'
   and not exists (select 1 from holdfast.edge o join holdfast.job p on p.seq = o.parent
                    where o.child = e.child and o.ended > 20 and p.state in ('failed', 'cancelled', 'retired'))
 group by e.child
 order by e.child
 limit %(limit)s;

-- name: edge_end
-- Record that children were told of the ends of their parents, one edge for each row of values.
update holdfast.edge e set ended = v.ended
  from unnest(%(c0)s::smallint[], %(c1)s::bigint[], %(c2)s::bigint[]) as v (ended, child, parent)
 where e.child = v.child and e.parent = v.parent;

-- name: edge_insert
-- Store dependencies, one for each row of values.
insert into holdfast.edge (child, parent, place, on_failed)
select * from unnest(%(c0)s::bigint[], %(c1)s::bigint[], %(c2)s::integer[], %(c3)s::text[]);

-- name: edges_delete
-- Delete the dependencies of jobs, as children and as parents.
delete from holdfast.edge where child = any (%(seqs)s::bigint[]) or parent = any (%(seqs)s::bigint[]);

-- name: edges_of_children
-- Read the dependencies of jobs whose parents have not been counted.
select child, parent, on_failed from holdfast.edge
 where child = any (%(seqs)s::bigint[]) and ended is null
 order by child, parent;

-- name: edges_of_parents
-- Read some dependencies on jobs whose ends have not been counted.
select child, parent, on_failed from holdfast.edge
 where parent = any (%(seqs)s::bigint[]) and ended is null
 order by parent, child
 limit %(limit)s;

-- name: edges_reopen
-- Record that the ends of parents that were not done were not counted for these children.
update holdfast.edge set ended = null where child = any (%(children)s::bigint[]) and ended > 20;

-- name: edges_use
-- Record that the store has dependencies.
update holdfast.meta set value = '1' where name = 'edges';

-- name: edges_used
-- Read whether the store has dependencies.
select value from holdfast.meta where name = 'edges';

-- name: group_by_name
-- Read one group, in order to change it.
select number, tenant, name, sealed, members, done, failed, cancelled, retired, on_end, on_success,
       on_first_failure, token, problem, created_at_ms, ended_at_ms
  from holdfast.job_group
 where tenant = %(tenant)s and name = %(name)s
/* lock: for update */;

-- name: group_insert
-- Store a new group, unless there is one of its name.
insert into holdfast.job_group (tenant, name, sealed, members, done, failed, cancelled, retired, on_end, on_success,
    on_first_failure, token, problem, created_at_ms, ended_at_ms)
values (%(tenant)s, %(name)s, %(sealed)s, %(members)s, %(done)s, %(failed)s, %(cancelled)s, %(retired)s, %(on_end)s, %(on_success)s,
    %(on_first_failure)s, %(token)s, %(problem)s, %(created_at_ms)s, %(ended_at_ms)s)
on conflict (tenant, name) do nothing
returning number;

-- name: group_members
-- Find some members of a group that have not ended, in order.
select parent from holdfast.edge
 where child = -%(number)s::bigint and ended is null and parent > %(after)s
 order by parent
 limit %(limit)s;

-- name: group_of_name
-- Read one group, without locking it.
select number, tenant, name, sealed, members, done, failed, cancelled, retired, on_end, on_success,
       on_first_failure, token, problem, created_at_ms, ended_at_ms
  from holdfast.job_group
 where tenant = %(tenant)s and name = %(name)s;

-- name: group_write
-- Store a changed group.
update holdfast.job_group
   set sealed = %(sealed)s,
       members = %(members)s,
       done = %(done)s,
       failed = %(failed)s,
       cancelled = %(cancelled)s,
       retired = %(retired)s,
       on_end = %(on_end)s,
       on_success = %(on_success)s,
       on_first_failure = %(on_first_failure)s,
       token = %(token)s,
       problem = %(problem)s,
       ended_at_ms = %(ended_at_ms)s
 where number = %(number)s;

-- name: groups_delete
-- Delete some groups that ended before a time and of which no member and no callback is left; return their numbers.
delete from holdfast.job_group
 where number in (select number from holdfast.job_group g
                   where ended_at_ms < %(before)s
                     and not exists (select 1 from holdfast.edge where child = -g.number and place >= 0)
                     and not exists (select 1 from holdfast.edge where parent = -g.number)
                   order by ended_at_ms
                   limit %(limit)s
                     for update skip locked)
returning number;

-- name: groups_existing
-- Find those of these groups that exist, without locking them.
select number from holdfast.job_group where number = any (%(numbers)s::bigint[]);

-- name: groups_newest
-- Read some groups, newest first.
select number, tenant, name, sealed, members, done, failed, cancelled, retired, on_end, on_success,
       on_first_failure, token, problem, created_at_ms, ended_at_ms
  from holdfast.job_group
 where (%(tenant)s::text is null or tenant = %(tenant)s)
 order by number desc
 limit %(limit)s;

-- name: groups_of_members
-- Read the unfinished groups of a job, in order to change them.
select number, tenant, name, sealed, members, done, failed, cancelled, retired, on_end, on_success,
       on_first_failure, token, problem, created_at_ms, ended_at_ms
  from holdfast.job_group
 where number in (select -child from holdfast.edge where parent = %(seq)s and child < 0) and ended_at_ms is null
 order by number
/* lock: for update */;

-- name: groups_to_fold
-- Read groups, skipping locked ones.
select number, tenant, name, sealed, members, done, failed, cancelled, retired, on_end, on_success,
       on_first_failure, token, problem, created_at_ms, ended_at_ms
  from holdfast.job_group
 where number = any (%(numbers)s::bigint[])
 order by number
/* lock: for update skip locked */;

-- name: jobs_await
-- Record that others wait for jobs.
update holdfast.job set awaited = 1 where seq = any (%(seqs)s::bigint[]) and awaited = 0;

-- name: jobs_dependent
-- Read dependent jobs, skipping locked ones.
select * from holdfast.job_row
 where seq = any (%(seqs)s::bigint[]) and state = 'dependent'
 order by seq
/* lock: for update skip locked */;

-- name: jobs_named
-- Read the numbers and tenants of jobs by id; retention keeps the finished ones until the transaction has ended.
select id, seq, tenant from holdfast.jobs_named_1(%(ids)s::text[]);

-- name: jobs_states
-- Read the ids and states of jobs, without locking them.
select seq, id, state from holdfast.job where seq = any (%(seqs)s::bigint[]);

-- name: lane_late
-- Record whether a lane is late.
update holdfast.lane set late = %(late)s where lane = %(lane)s;

-- name: lane_oldest
-- Find the oldest of the first ready jobs of each fair_key on some routes, at some priorities from the lowest up.
with recursive
level (route, priority, depth) as (
    select r.route, (select j.priority from holdfast.ready_job j
                      where j.route = r.route order by j.priority limit 1), 1
      from unnest(%(routes)s::integer[]) as r (route)
    union all
    select l.route, (select j.priority from holdfast.ready_job j
                      where j.route = l.route and j.priority > l.priority
                      order by j.priority limit 1), l.depth + 1
      from level l where l.priority is not null and l.depth < %(priorities)s
),
head (route, priority, fair_key, due_at_ms, seq, depth) as (
    select l.route, l.priority, j.fair_key, j.due_at_ms, j.seq, 1
      from level l
     cross join lateral (select j.fair_key, j.due_at_ms, j.seq from holdfast.ready_job j
                          where j.route = l.route and j.priority = l.priority
                          order by j.fair_key, j.due_at_ms, j.seq limit 1) j
    union all
    select h.route, h.priority, j.fair_key, j.due_at_ms, j.seq, h.depth + 1
      from head h
     cross join lateral (select j.fair_key, j.due_at_ms, j.seq from holdfast.ready_job j
                          where j.route = h.route and j.priority = h.priority
                            and j.fair_key > h.fair_key
                          order by j.fair_key, j.due_at_ms, j.seq limit 1) j
     where h.depth < %(fair_keys)s
)
select seq, due_at_ms from head order by due_at_ms, seq limit 1;

-- name: lane_waiting
-- Count the ready and parked jobs of one tenant on some routes, up to a maximum. In strict lanes the fair_key is empty.
with recursive
ready (route, priority, depth) as (
    select r.route, (select j.priority from holdfast.ready_job j
                      where j.route = r.route order by j.priority desc limit 1), 1
      from unnest(%(routes)s::integer[]) as r (route)
    union all
    select r.route, (select j.priority from holdfast.ready_job j
                      where j.route = r.route and j.priority < r.priority
                      order by j.priority desc limit 1), r.depth + 1
      from ready r where r.priority is not null and r.depth < %(priorities)s
),
parked (gate, route, priority, depth) as (
    select g.gate, r.route, (select j.priority from holdfast.open_job j
                              where j.gate = g.gate and j.state = 'parked' and j.route = r.route
                              order by j.priority desc limit 1), 1
      from unnest(%(routes)s::integer[]) as r (route) cross join holdfast.gate g
    union all
    select p.gate, p.route, (select j.priority from holdfast.open_job j
                              where j.gate = p.gate and j.state = 'parked' and j.route = p.route
                                and j.priority < p.priority
                              order by j.priority desc limit 1), p.depth + 1
      from parked p where p.priority is not null and p.depth < %(priorities)s
)
select count(*) from (
    select 1 from ready r join holdfast.ready_job j
        on j.route = r.route and j.priority = r.priority and j.fair_key = %(tenant)s
    union all
    select 1 from unnest(%(routes)s::integer[]) as r (route) join holdfast.ready_job j
        on j.fair_key = '' and j.tenant = %(tenant)s and j.route = r.route
    union all
    select 1 from parked p join holdfast.open_job j
        on j.gate = p.gate and j.state = 'parked' and j.route = p.route and j.priority = p.priority
           and j.fair_key in (%(tenant)s, '') and j.tenant = %(tenant)s
    limit %(maximum)s) counted;

-- name: lanes_late
-- Read the lanes that are late.
select lane from holdfast.lane where late = 1;

-- name: members_end
-- Record that members of a group have ended in a state; return those whose ends were not counted.
update holdfast.edge set ended = %(state)s
 where child = -%(number)s::bigint and parent = any (%(seqs)s::bigint[]) and ended is null
returning parent;

-- name: members_insert
-- Make jobs members of a group; return those that were not.
insert into holdfast.edge (child, parent, place, on_failed)
select -%(number)s::bigint, v.seq, %(place)s::integer + v.ordinal::integer - 1, 'run'
  from unnest(%(seqs)s::bigint[]) with ordinality as v (seq, ordinal)
on conflict do nothing
returning parent;

-- name: members_reopen
-- Record that a member of groups has not ended; return the groups that had counted its end.
update holdfast.edge set ended = null
 where parent = %(seq)s and -child = any (%(numbers)s::bigint[]) and ended is not null
returning -child;

-- name: note_time
-- Note the time of the wall clock.
update holdfast.meta set value = %(now)s where name = 'noted_ms';

-- name: noted_time
-- Read the time of the wall clock that was noted last.
select value from holdfast.meta where name = 'noted_ms';

-- name: parents_of_job
-- Read the jobs on which a job depends, in the given order; for a callback of a group its members.
select j.* from holdfast.edge e cross join holdfast.job_row j
 where e.child in (select %(seq)s::bigint union all select parent from holdfast.edge where child = %(seq)s and parent < 0)
   and j.seq = e.parent
 order by e.place;

-- name: parents_unlocked
-- Read the ids and states of jobs, skipping locked ones.
select seq, id, state from holdfast.job where seq = any (%(seqs)s::bigint[])
 order by seq
/* lock: for update skip locked */;

-- name: pending_children
-- Find those of these jobs that depend on a job whose end has not been counted. Most parents end in the order of their numbers:
-- from the highest down, a search meets none of the many index entries of edges that were marked before.
select c.seq from unnest(%(seqs)s::bigint[]) as c (seq)
 where (select e.parent from holdfast.edge e
         where e.child = c.seq and e.ended is null order by e.parent desc limit 1) is not null;

-- name: schedule_by_name
-- Read one schedule.
select number, tenant, name, kind, payload, options, cron, every_ms, zone, missed, overlap, owner, ticks,
       last_at_ms, last_tick_ms, last_job_id, paused, problem, set_at_ms, declared_at_ms
  from holdfast.schedule
 where tenant = %(tenant)s and name = %(name)s
/* lock: for update */;

-- name: schedule_delete
-- Delete a schedule.
delete from holdfast.schedule where number = %(number)s;

-- name: schedule_insert
-- Store a new schedule, unless there is one of its name.
insert into holdfast.schedule (tenant, name, kind, payload, options, cron, every_ms, zone, missed, overlap, owner, ticks,
    last_at_ms, last_tick_ms, last_job_id, paused, problem, set_at_ms, declared_at_ms)
values (%(tenant)s, %(name)s, %(kind)s, %(payload)s, %(options)s, %(cron)s, %(every_ms)s, %(zone)s, %(missed)s, %(overlap)s,
    %(owner)s, %(ticks)s, %(last_at_ms)s, %(last_tick_ms)s, %(last_job_id)s, %(paused)s, %(problem)s, %(set_at_ms)s, %(declared_at_ms)s)
on conflict (tenant, name) do nothing
returning number;

-- name: schedule_write
-- Store a changed schedule.
update holdfast.schedule
   set kind = %(kind)s,
       payload = %(payload)s,
       options = %(options)s,
       cron = %(cron)s,
       every_ms = %(every_ms)s,
       zone = %(zone)s,
       missed = %(missed)s,
       overlap = %(overlap)s,
       owner = %(owner)s,
       ticks = %(ticks)s,
       last_at_ms = %(last_at_ms)s,
       last_tick_ms = %(last_tick_ms)s,
       last_job_id = %(last_job_id)s,
       paused = %(paused)s,
       problem = %(problem)s,
       set_at_ms = %(set_at_ms)s,
       declared_at_ms = %(declared_at_ms)s
 where number = %(number)s;

-- name: schedules_by_name
-- Read some schedules in order of tenant and name.
select number, tenant, name, kind, payload, options, cron, every_ms, zone, missed, overlap, owner, ticks,
       last_at_ms, last_tick_ms, last_job_id, paused, problem, set_at_ms, declared_at_ms
  from holdfast.schedule
 where (%(tenant)s::text is null or tenant = %(tenant)s)
 order by tenant, name
 limit %(limit)s;

-- name: schedules_to_fire
-- Read schedules that are not paused, skipping locked ones.
select number, tenant, name, kind, payload, options, cron, every_ms, zone, missed, overlap, owner, ticks,
       last_at_ms, last_tick_ms, last_job_id, paused, problem, set_at_ms, declared_at_ms
  from holdfast.schedule
 where number = any (%(numbers)s::bigint[]) and paused = 0
 order by number
/* lock: for update skip locked */;

-- name: tree_unfinished
-- Find some unfinished jobs of a tree besides its first, in order.
select seq from holdfast.job where root = %(root)s and seq > %(after)s and finished_at_ms is null
 order by seq
 limit %(limit)s;

-- name: wake_awaited
-- Append a wake row for each of these jobs that others wait for.
insert into holdfast.wake (at_ms, target, number)
select 0, 'parent', seq from holdfast.job where seq = any (%(seqs)s::bigint[]) and awaited = 1;

-- name: wake_delete
-- Delete wake rows that have been folded.
delete from holdfast.wake where wake = any (%(wakes)s::bigint[]);

-- name: wake_insert
-- Append a wake row.
insert into holdfast.wake (at_ms, target, number) values (%(at_ms)s, %(target)s, %(number)s);

-- name: wake_is_due
-- Find whether a wake row is due.
select exists (select 1 from holdfast.wake where at_ms <= %(now)s);

-- name: wake_move
-- Look at the targets of wake rows later.
update holdfast.wake set at_ms = %(at_ms)s where wake = any (%(wakes)s::bigint[]);

-- name: wake_of_target
-- Delete the wake rows of one target.
delete from holdfast.wake where target = %(target)s and number = %(number)s;

-- name: wakes_due
-- Read some wake rows that ask to look at once, and some of those whose time has passed, earliest first: neither keep
-- the others waiting. Locked ones are skipped.
with at_once as (
    select wake, target, number from holdfast.wake
     where at_ms = 0
     order by wake
     limit %(limit)s
    /* lock: for update skip locked */
),
at_a_time as (
    select wake, target, number from holdfast.wake
     where at_ms > 0 and at_ms <= %(now)s
     order by at_ms, wake
     limit %(limit)s
    /* lock: for update skip locked */
)
select wake, target, number from at_once
union all
select wake, target, number from at_a_time;

-- name: wakes_hasten
-- Look at once at what wake rows ask to look at later, except gates, which know the times of theirs, and schedules.
update holdfast.wake set at_ms = 0
 where wake = any (array(select wake from holdfast.wake
                          where at_ms > %(now)s and target not in ('schedule', 'gate')
                            for update skip locked));

-- name: wakes_insert
-- Append wake rows that ask to look at once.
insert into holdfast.wake (at_ms, target, number)
select 0, %(target)s, n from unnest(%(numbers)s::bigint[]) as v (n);

-- name: wakes_of_gates
-- Append wake rows that ask to look at once at gates that are looked at later.
insert into holdfast.wake (at_ms, target, number)
select 0, 'gate', number from holdfast.wake where target = 'gate' and at_ms > %(now)s;
