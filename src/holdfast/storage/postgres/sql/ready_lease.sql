-- Lease those of the chosen jobs that are still ready and that nobody else has in hand, in the order of the choice, and
-- return them without what all claims of the call have in common. One past its deadline is left to be ended. The state
-- is hidden from the planner, which would else go through all ready jobs rather than straight to the chosen.
with locked as materialized (
    select j.seq, array_position(%(seqs)s::bigint[], j.seq) as place from holdfast.job j
     where j.seq = any (%(seqs)s::bigint[]) and coalesce(j.state, '') = 'ready' and j.priority = %(priority)s
       and (j.deadline_at_ms is null or j.deadline_at_ms > %(now)s)
     order by place
     limit %(limit)s
       for update of j skip locked
),
first as materialized (select array_agg(seq order by place) as seqs from locked)
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
