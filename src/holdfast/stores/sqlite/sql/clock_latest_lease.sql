-- Read the latest end of any lease that is still held.
select coalesce(max(lease_until_ms), 0) from holdfast_job where state = 'running'
