-- Read when the next job falls due and when the next lease lapses.
select (select due_at_ms from holdfast_job where state = 'scheduled' and due_at_ms > 0 order by due_at_ms limit 1),
       (select lease_until_ms from holdfast_job where state = 'running' and lease_until_ms > 0
         order by lease_until_ms limit 1)
