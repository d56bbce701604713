-- As jobs_standing, for one job.
select seq, epoch, state, lease_token, lease_until_ms, priority, phase, percent, cancel_requested, event_count
  from holdfast_job where seq = :value
