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
   and dedupe_key is not null and rare_state in ({scheduled}, {dependent}, {parked}, {ready}, {running});

-- name: job_dedupe_successor
-- Read the blocked job that waits to succeed the holder of a dedupe key.
select * from holdfast_job_row
 where tenant = :tenant and dedupe_kind = :dedupe_kind and dedupe_key = :dedupe_key
   and dedupe_key is not null and rare_state = {blocked};

-- name: job_insert
-- Store new jobs, one for each row of values.
insert into holdfast_job (
    seq, id, state, route, tenant, fair_key, priority, affinity, enqueued_at_ms, due_at_ms, deadline_at_ms, max_attempts,
    dedupe_key, dedupe_kind, predecessor, session, enqueue_seq, root, event_count, extra, payload, rare_state
) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: job_insert_body
-- Store payloads apart from their jobs, one for each row of values.
insert into holdfast_body (seq, payload) values (?, ?)
on conflict (seq) do update set payload = excluded.payload;

-- name: job_insert_plain
-- Store one new job, unless the routing has changed: then the maximum of attempts is null, and the row is ignored.
insert or ignore into holdfast_job (
    id, payload, enqueued_at_ms, due_at_ms, deadline_at_ms, state, route, tenant, fair_key, priority, affinity,
    max_attempts, extra, rare_state
) values (
    ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12,
    (select ?13 from holdfast_meta where name = 'routing_version' and value = ?1), ?14, ?15
);

-- name: job_insert_plain_many
-- Store new jobs, one for each row of values. With "or fail" SQLite keeps no copies of the pages that it changes, by
-- which it would undo a part of the rows: if a row is refused, the caller undoes all of them.
insert or fail into holdfast_job (
    seq, id, payload, enqueued_at_ms, due_at_ms, deadline_at_ms, state, route, tenant, fair_key, priority, affinity,
    max_attempts, extra, rare_state
) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

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
       and j.dedupe_key is not null and j.rare_state in ({scheduled}, {dependent}, {parked}, {ready}, {running})
 );

-- name: kept_key_write
-- Keep dedupe keys for new jobs, one for each row of values, unless another job keeps the key.
insert into holdfast_kept_key as k (
    tenant, dedupe_kind, dedupe_key, until_ms, seq, id, route, enqueued_at_ms
) values (?, ?, ?, ?, ?, ?, ?, ?)
on conflict (tenant, dedupe_kind, dedupe_key) do update
   set until_ms = excluded.until_ms, seq = excluded.seq, id = excluded.id, route = excluded.route,
       enqueued_at_ms = excluded.enqueued_at_ms, state = null, deleted_at_ms = null
 where k.until_ms <= excluded.enqueued_at_ms;

-- name: kept_keys
-- Read the first jobs of dedupe keys that are kept, as the keys describe them.
select k.tenant, k.dedupe_kind, k.dedupe_key, k.seq, k.id, k.state, r.kind, r.lane, r.requires, k.enqueued_at_ms,
       k.deleted_at_ms
  from json_each(:matches) m
  join holdfast_kept_key k on k.tenant = json_extract(m.value, '$[0]')
   and k.dedupe_kind = json_extract(m.value, '$[1]') and k.dedupe_key = json_extract(m.value, '$[2]')
   and k.until_ms > :now
  join holdfast_route r on r.route = k.route;

-- name: kept_keys_delete
-- Delete some dedupe keys whose period has passed, earliest first.
delete from holdfast_kept_key
 where (tenant, dedupe_kind, dedupe_key) in (select tenant, dedupe_kind, dedupe_key from holdfast_kept_key
                                              where until_ms <= :now order by until_ms limit :limit);

-- name: kept_keys_mark_deleted
-- Record the final state and deletion time of jobs that are about to be deleted and whose keys outlive them.
update holdfast_kept_key set state = :state, deleted_at_ms = :now
 where seq in (select value from json_each(:seqs));

-- name: keys_lock
-- Does nothing: the only writer needs no lock on keys.
select 1;

-- name: keys_of_jobs
-- Read the dedupe keys of jobs, by their ids.
select tenant, dedupe_kind, dedupe_key from holdfast_job
 where id in (select value from json_each(:ids)) and dedupe_key is not null;

-- name: tags_delete
-- Delete the tags of jobs that are about to be changed or deleted.
delete from holdfast_tag
 where (tag, value, seq) in (select t.key, t.value, j.seq
                               from holdfast_job j, json_each(j.extra ->> '$.tags_json') t
                              where j.seq in (select value from json_each(:seqs)));

-- name: tags_insert
-- Store the tags of a job, one job for each row of values.
insert into holdfast_tag (tag, value, seq) select t.key, t.value, ?1 from json_each(?2) t;
