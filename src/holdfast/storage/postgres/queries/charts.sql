-- Failures by fingerprint, and what charts are drawn from.

-- name: failure_patterns
-- Read the patterns with the newest failures: their failures counted up to a maximum, and their newest job.
select g.fingerprint, g.kind, g.error, g.frames, g.message, g.tenant, g.lane, g.first_at_ms,
       coalesce((select f.at_ms from holdfast.failure f
                  where f.fingerprint = g.fingerprint and f.tenant = g.tenant and f.lane = g.lane
                  order by f.at_ms desc limit 1), g.last_at_ms),
       (select count(*) from (select 1 from holdfast.failure f
                               where f.fingerprint = g.fingerprint and f.tenant = g.tenant and f.lane = g.lane
                               limit %(maximum)s) counted),
       (select count(*) from (select 1 from holdfast.failure f
                               where f.fingerprint = g.fingerprint and f.tenant = g.tenant and f.lane = g.lane
                                 and f.at_ms >= %(hour)s limit %(maximum)s) counted),
       (select count(*) from (select 1 from holdfast.failure f
                               where f.fingerprint = g.fingerprint and f.tenant = g.tenant and f.lane = g.lane
                                 and f.at_ms >= %(hour_before)s and f.at_ms < %(hour)s limit %(maximum)s) counted),
       (select (select j.id from holdfast.job j where j.seq = f.seq) from holdfast.failure f
         where f.fingerprint = g.fingerprint and f.tenant = g.tenant and f.lane = g.lane
         order by f.at_ms desc, f.seq desc limit 1)
  from holdfast.failure_pattern g
 where (%(fingerprint)s::text is null or g.fingerprint = %(fingerprint)s::text)
   and (%(tenant)s::text is null or g.tenant = %(tenant)s::text)
   and (%(kind)s::text is null or g.kind = %(kind)s::text)
 order by g.last_at_ms desc, g.fingerprint, g.tenant, g.lane
 limit %(limit)s;

-- name: failure_patterns_delete
-- Delete a chunk of the patterns without failures whose newest one was before a time.
delete from holdfast.failure_pattern
 where ctid = any (array(
       select g.ctid from holdfast.failure_pattern g
        where g.last_at_ms < %(before)s
          and not exists (select 1 from holdfast.failure f
                           where f.fingerprint = g.fingerprint and f.tenant = g.tenant and f.lane = g.lane)
        order by g.last_at_ms
        limit %(limit)s
          for update skip locked));

-- name: failure_patterns_write
-- Store patterns that are new; the time of the newest failure of the others, if it is a minute later than the stored one.
-- Groups that are neither are not locked: settling processes do not wait for each other.
insert into holdfast.failure_pattern as g
       (fingerprint, tenant, lane, kind, error, frames, message, first_at_ms, last_at_ms)
select v.* from unnest(
    %(c0)s::text[], %(c1)s::text[], %(c2)s::text[], %(c3)s::text[], %(c4)s::text[], %(c5)s::text[], %(c6)s::text[],
    %(c7)s::bigint[], %(c8)s::bigint[]
) as v (fingerprint, tenant, lane, kind, error, frames, message, first_at_ms, last_at_ms)
 where not exists (select 1 from holdfast.failure_pattern o
                    where o.fingerprint = v.fingerprint and o.tenant = v.tenant and o.lane = v.lane
                      and o.last_at_ms >= v.last_at_ms - 60000)
on conflict (fingerprint, tenant, lane) do update
   set last_at_ms = excluded.last_at_ms
 where g.last_at_ms < excluded.last_at_ms - 60000;

-- name: failures_delete
-- Delete a chunk of the failures before a time, oldest first.
delete from holdfast.failure
 where ctid = any (array(select ctid from holdfast.failure where at_ms < %(before)s
                          order by at_ms limit %(limit)s for update skip locked));

-- name: failures_floor
-- Find the position so many failures with one fingerprint below another, by time.
select at_ms, seq from holdfast.failure
 where fingerprint = %(fingerprint)s and (at_ms, seq) < (%(finished_before)s, %(before)s)
 order by at_ms desc, seq desc
 limit 1 offset %(examined)s;

-- name: failures_insert
-- Append failures of jobs, one for each row of values.
insert into holdfast.failure (fingerprint, at_ms, seq, tenant, lane)
select * from unnest(%(c0)s::text[], %(c1)s::bigint[], %(c2)s::bigint[], %(c3)s::text[], %(c4)s::text[])
on conflict do nothing;

-- name: jobs_by_fingerprint
-- List the jobs that failed with one fingerprint by finish time, newest first, with any filter.
-- The jobs are looked up one by one in this order, so that it ends with the last one of the page.
select j.* from holdfast.failure t
 cross join lateral (select 1 from holdfast.job b
                     where b.seq = t.seq and b.finished_at_ms = t.at_ms and /* filter of jobs */ offset 0) b
 cross join lateral (select * from holdfast.job_row where job_row.seq = t.seq offset 0) j
 where t.fingerprint = %(fingerprint)s and (t.at_ms, t.seq) < (%(finished_before)s, %(before)s)
   and (t.at_ms, t.seq) >= (%(finished_floor)s, %(floor)s)
 order by t.at_ms desc, t.seq desc
 limit %(limit)s;

-- name: rollups_delete
-- Delete rollups.
delete from holdfast.rollup where number = any (%(numbers)s::bigint[]);

-- name: rollups_insert
-- Append rollups, one for each row of values.
insert into holdfast.rollup (width_ms, at_ms, data)
select * from unnest(%(c0)s::integer[], %(c1)s::bigint[], %(c2)s::text[]);

-- name: rollups_old
-- Read and lock the oldest rollups of one width that began before a time; those that another transaction merges are
-- skipped.
select number, at_ms, data from holdfast.rollup
 where width_ms = %(width)s and at_ms < %(before)s
 order by at_ms
 limit %(limit)s
/* lock: for update skip locked */;

-- name: rollups_since
-- Read the newest rollups of any width that began since a time.
select number, at_ms, data from holdfast.rollup where at_ms >= %(since)s order by at_ms desc limit %(limit)s;
