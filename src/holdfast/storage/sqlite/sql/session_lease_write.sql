-- Write who is a session's runtime, and until when.
update holdfast_session
   set generation = :generation, lease_token = :lease_token, lease_worker = :lease_worker,
       lease_incarnation = :lease_incarnation, lease_until_ms = :lease_until_ms
 where number = :number
