-- Failures by fingerprint, and what charts are drawn from.

-- name: failure_patterns
-- Read the patterns with the newest failures: their failures counted up to a maximum, and their newest job.
select g.fingerprint, g.kind, g.error, g.frames, g.message, g.tenant, g.lane, g.first_at_ms,
       coalesce((select at_ms from holdfast_failure f
                  where f.fingerprint = g.fingerprint and f.tenant = g.tenant and f.lane = g.lane
                  order by at_ms desc limit 1), g.last_at_ms),
       (select count(*) from (select 1 from holdfast_failure f
                               where f.fingerprint = g.fingerprint and f.tenant = g.tenant and f.lane = g.lane
                               limit :maximum)),
       (select count(*) from (select 1 from holdfast_failure f
                               where f.fingerprint = g.fingerprint and f.tenant = g.tenant and f.lane = g.lane
                                 and f.at_ms >= :hour limit :maximum)),
       (select count(*) from (select 1 from holdfast_failure f
                               where f.fingerprint = g.fingerprint and f.tenant = g.tenant and f.lane = g.lane
                                 and f.at_ms >= :hour_before and f.at_ms < :hour limit :maximum)),
       (select (select id from holdfast_job j where j.seq = f.seq) from holdfast_failure f
         where f.fingerprint = g.fingerprint and f.tenant = g.tenant and f.lane = g.lane
         order by f.at_ms desc, f.seq desc limit 1)
  from holdfast_failure_pattern g
 where (:fingerprint is null or g.fingerprint = :fingerprint)
   and (:tenant is null or g.tenant = :tenant)
   and (:kind is null or g.kind = :kind)
 order by g.last_at_ms desc, g.fingerprint, g.tenant, g.lane
 limit :limit;

-- name: failure_patterns_delete
-- Delete a chunk of the patterns without failures whose newest one was before a time.
delete from holdfast_failure_pattern
 where (fingerprint, tenant, lane) in (
       select g.fingerprint, g.tenant, g.lane from holdfast_failure_pattern g
        where g.last_at_ms < :before
          and not exists (select 1 from holdfast_failure f
                           where f.fingerprint = g.fingerprint and f.tenant = g.tenant and f.lane = g.lane)
        order by g.last_at_ms
        limit :limit);

-- name: failure_patterns_write
-- Store patterns that are new; the time of the newest failure of the others, if it is a minute later than the stored one.
insert into holdfast_failure_pattern
       (fingerprint, tenant, lane, kind, error, frames, message, first_at_ms, last_at_ms)
values (?, ?, ?, ?, ?, ?, ?, ?, ?)
on conflict (fingerprint, tenant, lane) do update
   set last_at_ms = excluded.last_at_ms
 where last_at_ms < excluded.last_at_ms - 60000;

-- name: failures_delete
-- Delete a chunk of the failures before a time, oldest first.
delete from holdfast_failure
 where (fingerprint, at_ms, seq) in (select fingerprint, at_ms, seq from holdfast_failure
                                      where at_ms < :before order by at_ms limit :limit);

-- name: failures_floor
-- Find the position so many failures with one fingerprint below another, by time.
select at_ms, seq from holdfast_failure
 where fingerprint = :fingerprint and (at_ms, seq) < (:finished_before, :before)
 order by at_ms desc, seq desc
 limit 1 offset :examined;

-- name: failures_insert
-- Append failures of jobs, one for each row of values.
insert into holdfast_failure (fingerprint, at_ms, seq, tenant, lane) values (?, ?, ?, ?, ?)
on conflict do nothing;

-- name: jobs_by_fingerprint
-- List the jobs that failed with one fingerprint by finish time, newest first, with any filter.
select j.* from holdfast_failure f
 cross join holdfast_job_row j on j.seq = f.seq
 where f.fingerprint = :fingerprint and (f.at_ms, f.seq) < (:finished_before, :before)
   and (f.at_ms, f.seq) >= (:finished_floor, :floor)
   and j.finished_at_ms = f.at_ms
   and not exists (select 1 from json_each(:tags) w
                    where not exists (select 1 from holdfast_tag
                                       where tag = w.key and value = w.value and seq = f.seq))
   and {filter_of_jobs}
 order by f.at_ms desc, f.seq desc
 limit :limit;

-- name: rollups_delete
-- Delete rollups.
delete from holdfast_rollup where number in (select value from json_each(:numbers));

-- name: rollups_insert
-- Append rollups, one for each row of values.
insert into holdfast_rollup (width_ms, at_ms, data) values (?, ?, ?);

-- name: rollups_old
-- Read the oldest rollups of one width that began before a time.
select number, at_ms, data from holdfast_rollup
 where width_ms = :width and at_ms < :before
 order by at_ms
 limit :limit;

-- name: rollups_since
-- Read the newest rollups of any width that began since a time.
select number, at_ms, data from holdfast_rollup where at_ms >= :since order by at_ms desc limit :limit;
