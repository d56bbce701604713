-- Count what an operator should look at: lapsed and not taken back, suspect, due but not promoted.
select (select count(*) from holdfast_job where state = 'running' and lease_until_ms <= :lease_now),
       (select count(*) from holdfast_job where suspect = 1 and state = 'ready'),
       (select count(*) from holdfast_job where state = 'scheduled' and due_at_ms <= :wall_now)
