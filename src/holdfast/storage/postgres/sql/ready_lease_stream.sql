-- Lease the first ready jobs of one route, priority and turn from a mark on, past those that somebody else has in hand,
-- and return them without what all claims of the call have in common. One past its deadline is left to be ended.
with locked as materialized (
    select j.seq, j.due_at_ms from holdfast.job j
     where j.state = 'ready' and j.route = %(route)s and j.priority = %(priority)s and j.turn = %(turn)s
       and (j.due_at_ms, j.seq) >= (%(due_low)s, %(seq_low)s)
       and (j.deadline_at_ms is null or j.deadline_at_ms > %(now)s)
     order by j.due_at_ms, j.seq
     limit %(limit)s
       for update of j skip locked
),
first as materialized (select array_agg(seq order by due_at_ms, seq) as seqs from locked)
update holdfast.job j
   set state = 'running', epoch = j.epoch + 1, attempt = j.attempt + 1,
       claim_place = %(place)s + array_position(first.seqs, j.seq) - 1,
       event_count = j.event_count + case when j.record_all = 1 or j.route = any (%(loud)s::integer[]) then 1 else 0 end,
       worker = %(worker)s, incarnation = %(incarnation)s, lease_token = %(lease_token)s,
       lease_until_ms = %(lease_until_ms)s, started_at_ms = %(now)s,
       outcome = null, settle_digest = null, phase = null, percent = null,
       unacknowledged = case when %(place)s + array_position(first.seqs, j.seq) - 1 < %(acknowledged)s then 0
                             else j.unacknowledged + 1 end
  from first
 where j.seq = any (first.seqs) and cardinality(first.seqs) >= %(least)s
returning j.seq, j.id, j.route, j.tenant, j.turn, j.priority, j.affinity, j.payload, j.headers, j.tags, j.result,
          j.enqueued_at_ms, j.due_at_ms, j.deadline_at_ms, j.finished_at_ms, j.attempt, j.max_attempts, j.backoff,
          j.epoch, j.claim_place, j.unacknowledged, j.cancel_requested, j.suspect, j.deferrals, j.deferred_since_ms, j.releases,
          j.failure_class, j.failure_reason, j.failure_message, j.failure_traceback, j.dedupe_key, j.dedupe_kind,
          j.predecessor, j.digest, j.record_all, j.event_count
