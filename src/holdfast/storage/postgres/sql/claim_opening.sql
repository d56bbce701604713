-- Read what every claim begins with: the catalog's version, and whether anything is due, lapsed or overdue since moments up
-- to which nothing was.
select (select holdfast.catalog_version(false /* lock: or true */)),
       exists (select 1 from holdfast.job
                where state = 'scheduled' and due_at_ms > %(wall_low)s and due_at_ms <= %(wall_now)s),
       exists (select 1 from holdfast.job
                where state = 'running' and lease_until_ms > %(lease_low)s and lease_until_ms <= %(lease_now)s),
       exists (select 1 from holdfast.job
                where deadline_at_ms is not null and state in ('scheduled', 'blocked', 'ready')
                  and deadline_at_ms > %(wall_low)s and deadline_at_ms <= %(wall_now)s)
