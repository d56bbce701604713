-- Enqueueing: numbers, duplicates, new rows.

-- name: enqueue_header
-- Read the routing version and the first of the next numbers in enqueue order; no other transaction can take them
-- while this one writes.
select (select value from holdfast_meta where name = 'routing_version'),
       coalesce((select max(seq) from holdfast_job), 0) + 1;

-- name: job_dedupe_holder
-- Read the unfinished job that holds a dedupe key.
select * from holdfast_job_row
 where tenant = :tenant and dedupe_kind = :dedupe_kind and dedupe_key = :dedupe_key
   and dedupe_key is not null and state_number in ({scheduled}, {ready}, {running});

-- name: job_dedupe_successor
-- Read the blocked job that waits to succeed the holder of a dedupe key.
select * from holdfast_job_row
 where tenant = :tenant and dedupe_kind = :dedupe_kind and dedupe_key = :dedupe_key
   and dedupe_key is not null and state_number = {blocked};

-- name: job_insert
-- Store new jobs, one for each row of values.
insert into holdfast_job (
    seq, id, state, route, tenant, fair_key, priority, affinity, enqueued_at_ms, due_at_ms, deadline_at_ms, max_attempts,
    dedupe_key, dedupe_kind, predecessor, session, enqueue_seq, event_count, extra, payload
) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: job_insert_body
-- Store payloads apart from their jobs, one for each row of values.
insert into holdfast_body (seq, payload) values (?, ?)
on conflict (seq) do update set payload = excluded.payload;

-- name: job_insert_plain
-- Store one new job, unless the routing has changed: then the state is null, and the row is ignored.
insert or ignore into holdfast_job (
    state, route, id, tenant, fair_key, priority, affinity, enqueued_at_ms, due_at_ms, deadline_at_ms, max_attempts,
    extra, payload
) values (
    (select ? from holdfast_meta where name = 'routing_version' and value = ?), ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?
);

-- name: job_payload_write
-- Replace the payload, headers and tags of a job.
update holdfast_job set payload = :payload, extra = :extra, event_count = :event_count where seq = :seq;

-- name: jobs_matching
-- Read the jobs that match a dedupe key, an id or a number.
select * from holdfast_job_row
 where seq in (
    select json_extract(value, '$[4]') from json_each(:matches)
     union all
    select j.seq from json_each(:matches) m
      join holdfast_job j on j.id = json_extract(m.value, '$[3]')
     union all
    select j.seq from json_each(:matches) m
      join holdfast_job j on j.tenant = json_extract(m.value, '$[0]')
       and j.dedupe_kind = json_extract(m.value, '$[1]') and j.dedupe_key = json_extract(m.value, '$[2]')
       and j.dedupe_key is not null and j.state in ({scheduled}, {ready}, {running})
 );

-- name: keys_lock
-- Does nothing: the only writer needs no lock on keys.
select 1;

-- name: keys_of_jobs
-- Read the dedupe keys of jobs, by their ids.
select tenant, dedupe_kind, dedupe_key from holdfast_job
 where id in (select value from json_each(:ids)) and dedupe_key is not null;
