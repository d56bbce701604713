-- Count the unfinished jobs that are not ready, the lapsed and the suspect, each up to so many.
select (select count(*) from (select 1 from holdfast.job where state = 'scheduled' limit %(most)s) counted),
       (select count(*) from (select 1 from holdfast.job where state = 'blocked' limit %(most)s) counted),
       (select count(*) from (select 1 from holdfast.job where state = 'running' limit %(most)s) counted),
       (select count(*) from (select 1 from holdfast.job
                               where state = 'running' and lease_until_ms <= %(lease_now)s limit %(most)s) counted),
       (select count(*) from (select 1 from holdfast.job
                               where suspect = 1 and state = 'ready' limit %(most)s) counted)
