-- Append to the event log one event of each job, in order, telling of the job as its row stands now.
insert into holdfast.event (
    name, at_ms, job_id, number, route, tenant, tags, state, attempt, epoch, worker, due_at_ms, failure_class, failure_reason
)
select t.name, %(at_ms)s::bigint, j.id, j.event_count, j.route, j.tenant, j.tags, j.state, j.attempt, j.epoch, j.worker,
       case when j.state in ('scheduled', 'blocked', 'ready') then j.due_at_ms end, j.failure_class, j.failure_reason
  from unnest(%(told_0)s::bigint[], %(told_1)s::text[]) with ordinality as t (seq, name, place)
  join holdfast.job j on j.seq = t.seq
 order by t.place
