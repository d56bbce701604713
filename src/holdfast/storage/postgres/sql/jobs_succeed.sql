-- End running jobs as done where their fence holds, tell of each in the event log, and return what may have changed
-- since they were claimed. Only a running job has an end of its lease.
with ended as (
    update holdfast.job j
       set state = 'done', outcome = 'done', result = h.result, event_count = j.event_count + 1,
           finished_at_ms = %(finished_at_ms)s, lease_until_ms = null, suspect = 0, unacknowledged = 0,
           failure_class = null, failure_reason = null, failure_message = null, failure_traceback = null
      from unnest(%(held_0)s::bigint[], %(held_1)s::integer[], %(held_2)s::text[], %(held_3)s::text[])
           as h (seq, epoch, lease_token, result)
     where j.seq = h.seq and j.epoch = h.epoch and j.lease_token = h.lease_token
       and j.lease_until_ms > coalesce(%(lease_now)s::bigint, holdfast.clock_ms())
 returning j.seq, j.id, j.priority, j.phase, j.percent, j.cancel_requested, j.event_count,
           j.route, j.tenant, j.tags, j.attempt, j.epoch, j.worker
),
told as (
    insert into holdfast.event (name, at_ms, job_id, number, route, tenant, tags, state, attempt, epoch, worker)
    select 'done', %(finished_at_ms)s::bigint, id, event_count, route, tenant, tags, 'done', attempt, epoch, worker
      from ended
     order by seq
)
select seq, priority, phase, percent, cancel_requested, event_count from ended
