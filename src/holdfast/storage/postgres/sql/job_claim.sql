-- Write claims of ready jobs: what they have in common once, and the place of each in its batch. The state is hidden
-- from the planner, which would else go through all ready jobs rather than straight to these.
update holdfast.job j
   set state = 'running', epoch = j.epoch + 1, attempt = j.attempt + 1, claim_place = p.place,
       event_count = j.event_count + %(counted)s::integer, worker = %(worker)s, incarnation = %(incarnation)s,
       lease_token = %(lease_token)s, lease_until_ms = %(lease_until_ms)s, started_at_ms = %(started_at_ms)s,
       outcome = null, settle_digest = null, phase = null, percent = null,
       unacknowledged = case when p.place < %(acknowledged)s::integer then 0 else j.unacknowledged + 1 end
  from unnest(%(places_0)s::bigint[], %(places_1)s::integer[]) as p (seq, place)
 where j.seq = p.seq and coalesce(j.state, '') = 'ready'
