-- Lock the first ready jobs of one route, priority and turn from a mark on, past those that somebody else has in hand. The columns are
-- those of job_row, which does not tell the route's number.
select j.seq, j.id, j.state, r.kind, r.lane, j.tenant, j.turn, j.priority, j.affinity,
       r.requires, j.payload, j.headers, j.tags, j.result, j.enqueued_at_ms, j.due_at_ms, j.deadline_at_ms,
       j.finished_at_ms, j.attempt, j.max_attempts, j.backoff, j.epoch, j.worker, j.incarnation, j.lease_token,
       j.lease_until_ms, j.claim_place, j.started_at_ms, j.outcome, j.settle_digest, j.phase, j.percent,
       j.cancel_requested, j.suspect, j.deferrals, j.deferred_since_ms, j.releases, j.failure_class,
       j.failure_reason, j.failure_message, j.failure_traceback, j.dedupe_key, j.dedupe_kind, j.predecessor,
       j.digest, j.session, j.enqueue_seq, j.batch, j.record_all, j.event_count
  from holdfast.job j
 cross join lateral holdfast.route_of(j.route) r
 where j.state = 'ready' and j.route = %(route)s and j.priority = %(priority)s and j.turn = %(turn)s
   and (j.due_at_ms, j.seq) >= (%(due_low)s, %(seq_low)s)
 order by j.due_at_ms, j.seq
 limit %(limit)s
   for update of j skip locked
