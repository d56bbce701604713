-- Write claims: what they have in common once, what differs by job, but only onto the epoch each was decided for.
update holdfast_job
   set state = 'running', epoch = json_extract(r.value, '$[2]'), attempt = json_extract(r.value, '$[3]'),
       claim_place = json_extract(r.value, '$[4]'), event_count = json_extract(r.value, '$[5]'),
       worker = :worker, incarnation = :incarnation, lease_token = :lease_token, lease_until_ms = :lease_until_ms,
       started_at_ms = :started_at_ms, outcome = null, settle_digest = null, phase = null, percent = null
  from json_each(:rows) r
 where seq = json_extract(r.value, '$[0]') and epoch = json_extract(r.value, '$[1]')
