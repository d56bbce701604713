-- Write who is a session's runtime, and until when.
update holdfast.session
   set generation = %(generation)s, lease_token = %(lease_token)s, lease_worker = %(lease_worker)s,
       lease_incarnation = %(lease_incarnation)s, lease_until_ms = %(lease_until_ms)s
 where number = %(number)s
