-- Read the kept attempts of one job, oldest first.
select epoch, number, worker, incarnation, started_at_ms, ended_at_ms, outcome,
       failure_class, failure_reason, failure_message, failure_traceback
  from holdfast.attempt where seq = %(seq)s order by epoch
