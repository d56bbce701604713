-- Flow control: wake rows, schedules and dependencies.

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

-- name: edges_use
-- Record that the store has dependencies.
update holdfast_meta set value = '1' where name = 'edges';

-- name: edges_used
-- Read whether the store has dependencies.
select value from holdfast_meta where name = 'edges';

-- name: jobs_await
-- Record that others wait for jobs.
update holdfast_job set awaited = 1 where seq in (select value from json_each(:seqs)) and awaited = 0;

-- name: jobs_dependent
-- Read dependent jobs.
select * from holdfast_job_row
 where seq in (select value from json_each(:seqs)) and state_number = {dependent}
 order by seq;

-- name: jobs_named
-- Read the numbers and tenants of jobs by id, without locking them.
select id, seq, tenant from holdfast_job where id in (select value from json_each(:ids));

-- name: jobs_states
-- Read the ids and states of jobs, without locking them.
select seq, id, (select name from holdfast_state where number = state) from holdfast_job where seq in (select value from json_each(:seqs));

-- name: parents_of_job
-- Read the jobs on which a job depends, in the given order.
select j.* from holdfast_edge e cross join holdfast_job_row j
 where e.child = :seq and j.seq = e.parent
 order by e.place;

-- name: parents_unlocked
-- Read the ids and states of jobs.
select seq, id, (select name from holdfast_state where number = state) from holdfast_job where seq in (select value from json_each(:seqs))
 order by seq;

-- name: pending_children
-- Find those of these jobs that depend on a job whose end has not been counted.
select value from json_each(:seqs)
 where exists (select 1 from holdfast_edge where child = value and ended is null);

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

-- name: wake_awaited
-- Append a wake row for each of these jobs that others wait for.
insert into holdfast_wake (at_ms, target, number)
select :now, 'parent', seq from holdfast_job where seq in (select value from json_each(:seqs)) and awaited = 1;

-- name: wake_delete
-- Delete wake rows that have been folded.
delete from holdfast_wake where wake in (select value from json_each(:wakes));

-- name: wake_insert
-- Append a wake row.
insert into holdfast_wake (at_ms, target, number) values (:at_ms, :target, :number);

-- name: wake_move
-- Look at the targets of wake rows later.
update holdfast_wake set at_ms = :at_ms where wake in (select value from json_each(:wakes));

-- name: wake_of_target
-- Delete the wake rows of one target.
delete from holdfast_wake where target = :target and number = :number;

-- name: wakes_due
-- Read some wake rows that are due, earliest first.
select wake, target, number from holdfast_wake
 where at_ms <= :now
 order by at_ms, wake
 limit :limit;

-- name: wakes_insert
-- Append wake rows.
insert into holdfast_wake (at_ms, target, number)
select :now, :target, value from json_each(:numbers);
