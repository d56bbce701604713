-- Write claims of ready jobs: what they have in common once, and the place of each in its batch.
-- The plus before the state keeps the planner from going through all that are ready.
update holdfast_job
   set state = 'running', epoch = epoch + 1, attempt = attempt + 1, claim_place = p.value,
       event_count = event_count + :counted, worker = :worker, incarnation = :incarnation,
       lease_token = :lease_token, lease_until_ms = :lease_until_ms, started_at_ms = :started_at_ms,
       outcome = null, settle_digest = null, phase = null, percent = null,
       unacknowledged = case when p.value < :acknowledged then 0 else unacknowledged + 1 end
  from json_each(:places) p
 where seq = cast(p.key as integer) and +state = 'ready'
