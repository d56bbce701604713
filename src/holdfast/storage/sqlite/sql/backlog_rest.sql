-- Count the unfinished jobs that are not ready, the lapsed and the suspect, each up to so many.
select (select count(*) from (select 1 from holdfast_job
                               where state = 'scheduled' and due_at_ms > 0 limit :most)),
       (select count(*) from (select 1 from holdfast_job
                               where state = 'blocked' and predecessor > 0 limit :most)),
       (select count(*) from (select 1 from holdfast_job
                               where state = 'running' and lease_until_ms > 0 limit :most)),
       (select count(*) from (select 1 from holdfast_job
                               where state = 'running' and lease_until_ms <= :lease_now limit :most)),
       (select count(*) from (select 1 from holdfast_job
                               where suspect = 1 and state = 'ready' limit :most))
