-- Read the latest end of any lease that is still held.
select max(coalesce((select max(lease_until_ms) from holdfast_job where state = 'running'), 0),
           coalesce((select max(lease_until_ms) from holdfast_session where lease_until_ms is not null), 0))
