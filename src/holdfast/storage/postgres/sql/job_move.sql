-- Write what transitions changed, but only onto the epoch each was decided for.
update holdfast.job j
   set state = v.state, turn = v.turn, due_at_ms = v.due_at_ms, deadline_at_ms = v.deadline_at_ms,
       finished_at_ms = v.finished_at_ms, attempt = v.attempt, epoch = v.epoch, worker = v.worker,
       incarnation = v.incarnation, lease_token = v.lease_token, lease_until_ms = v.lease_until_ms,
       claim_place = v.claim_place, started_at_ms = v.started_at_ms, outcome = v.outcome,
       settle_digest = v.settle_digest, phase = v.phase, percent = v.percent,
       cancel_requested = v.cancel_requested, suspect = v.suspect, deferrals = v.deferrals,
       deferred_since_ms = v.deferred_since_ms, releases = v.releases, failure_class = v.failure_class,
       failure_reason = v.failure_reason, failure_message = v.failure_message,
       failure_traceback = v.failure_traceback, predecessor = v.predecessor, event_count = v.event_count,
       result = v.result, unacknowledged = v.unacknowledged
  from unnest(
    %(c0)s::text[], %(c1)s::text[], %(c2)s::bigint[], %(c3)s::bigint[], %(c4)s::bigint[], %(c5)s::integer[],
    %(c6)s::integer[], %(c7)s::text[], %(c8)s::text[], %(c9)s::text[], %(c10)s::bigint[], %(c11)s::integer[],
    %(c12)s::bigint[], %(c13)s::text[], %(c14)s::text[], %(c15)s::text[], %(c16)s::double precision[],
    %(c17)s::smallint[], %(c18)s::smallint[], %(c19)s::integer[], %(c20)s::bigint[], %(c21)s::integer[],
    %(c22)s::text[], %(c23)s::text[], %(c24)s::text[], %(c25)s::text[], %(c26)s::bigint[], %(c27)s::integer[],
    %(c28)s::text[], %(c29)s::smallint[], %(c30)s::bigint[], %(c31)s::integer[]
  ) as v (
    state, turn, due_at_ms, deadline_at_ms, finished_at_ms, attempt, epoch, worker, incarnation, lease_token,
    lease_until_ms, claim_place, started_at_ms, outcome, settle_digest, phase, percent, cancel_requested, suspect,
    deferrals, deferred_since_ms, releases, failure_class, failure_reason, failure_message, failure_traceback,
    predecessor, event_count, result, unacknowledged, seq, epoch_before
  )
 where j.seq = v.seq and j.epoch = v.epoch_before
