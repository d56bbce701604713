-- Read of some jobs only what may have changed since they were claimed, locked in order for what is decided next.
select seq, epoch, state, lease_token, lease_until_ms, priority, phase, percent, cancel_requested, event_count
  from holdfast.job where seq = any (%(seqs)s::bigint[])
 order by seq
/* lock: for update */
