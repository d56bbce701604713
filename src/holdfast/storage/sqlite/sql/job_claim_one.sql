-- As job_claim, for one job.
update holdfast_job
   set state = 'running', epoch = epoch + 1, attempt = attempt + 1, claim_place = :value,
       event_count = event_count + :counted, worker = :worker, incarnation = :incarnation,
       lease_token = :lease_token, lease_until_ms = :lease_until_ms, started_at_ms = :started_at_ms,
       outcome = null, settle_digest = null, phase = null, percent = null,
       unacknowledged = case when :value < :acknowledged then 0 else unacknowledged + 1 end
 where seq = :key and state = 'ready'
