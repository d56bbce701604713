-- Read of some jobs only what may have changed since they were claimed, locked for what is decided next.
select seq, epoch, state, lease_token, lease_until_ms, priority, phase, percent, cancel_requested, event_count
  from holdfast_job where seq in (select value from json_each(:seqs))
