-- Read when the next job falls due and when the next lease lapses.
select (select due_at_ms from holdfast.job where state = 'scheduled' order by due_at_ms limit 1),
       (select lease_until_ms from holdfast.job where state = 'running' order by lease_until_ms limit 1)
