-- Count what an operator should look at: lapsed and not taken back, suspect, due but not promoted.
select (select count(*) from holdfast.job where state = 'running' and lease_until_ms <= %(lease_now)s),
       (select count(*) from holdfast.job where state = 'ready' and suspect = 1),
       (select count(*) from holdfast.job where state = 'scheduled' and due_at_ms <= %(wall_now)s)
