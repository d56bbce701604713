-- Read what every claim begins with: the catalog's version, and whether anything is due, lapsed or overdue.
select (select value from holdfast_meta where name = 'catalog_version'),
       exists (select 1 from holdfast_job where state = 'scheduled' and due_at_ms <= :wall_now),
       exists (select 1 from holdfast_job where state = 'running' and lease_until_ms <= :lease_now),
       exists (select 1 from holdfast_job
                where deadline_at_ms is not null and state in ('scheduled', 'blocked', 'ready')
                  and deadline_at_ms <= :wall_now)
