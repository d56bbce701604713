-- Enqueueing: numbers, duplicates, new rows.

-- name: enqueue_header
-- Lock the keys of the new jobs, read the routing version and draw the next numbers in enqueue order, which are never
-- reused.
select (select holdfast.routing_version(false /* lock: or true */, %(keys)s::integer[])),
       array(select nextval('holdfast.job_seq') from generate_series(1, %(count)s::integer));

-- name: job_copy
-- Store many new jobs that no other call can refer to: new ids, no dedupe keys.
copy holdfast.job (
    route, seq, id, state, tenant, fair_key, priority, affinity, payload, headers, tags,
    enqueued_at_ms, due_at_ms, deadline_at_ms, max_attempts, backoff,
    dedupe_key, dedupe_kind, predecessor, digest, record_all, event_count
) from stdin;

-- name: job_dedupe_holder
-- Read and lock the unfinished job that holds a dedupe key.
select * from holdfast.job_row
 where tenant = %(tenant)s and dedupe_kind = %(dedupe_kind)s and dedupe_key = %(dedupe_key)s
   and dedupe_key is not null and state in ('scheduled', 'ready', 'running')
/* lock: for update */;

-- name: job_dedupe_successor
-- Read and lock the blocked job that waits to succeed the holder of a dedupe key.
select * from holdfast.job_row
 where tenant = %(tenant)s and dedupe_kind = %(dedupe_kind)s and dedupe_key = %(dedupe_key)s
   and dedupe_key is not null and state = 'blocked'
/* lock: for update */;

-- name: job_insert
-- Store new jobs. Jobs whose id or key another transaction has taken are skipped; the row count reveals it.
insert into holdfast.job (
    route, seq, id, state, tenant, fair_key, priority, affinity, payload, headers, tags,
    enqueued_at_ms, due_at_ms, deadline_at_ms, max_attempts, backoff,
    dedupe_key, dedupe_kind, predecessor, digest, record_all, event_count
)
select * from unnest(
    %(c0)s::integer[], %(c1)s::bigint[], %(c2)s::text[], %(c3)s::text[], %(c4)s::text[], %(c5)s::text[],
    %(c6)s::integer[], %(c7)s::text[], %(c8)s::text[], %(c9)s::text[], %(c10)s::text[], %(c11)s::bigint[],
    %(c12)s::bigint[], %(c13)s::bigint[], %(c14)s::integer[], %(c15)s::text[], %(c16)s::text[], %(c17)s::text[],
    %(c18)s::bigint[], %(c19)s::text[], %(c20)s::smallint[], %(c21)s::integer[]
)
on conflict do nothing;

-- name: job_insert_plain
-- Store one plain job if the routing table still has the caller's version; otherwise return no number.
select seq, now_ms from holdfast.job_store(
    %(version)s, %(now)s, %(route)s, %(id)s, %(tenant)s, %(fair_key)s, %(priority)s, %(affinity)s,
    %(payload)s, %(headers)s, %(tags)s, %(max_attempts)s, %(backoff)s
);

-- name: job_payload_write
-- Replace the payload, headers and tags of a job.
update holdfast.job
   set payload = %(payload)s, headers = %(headers)s, tags = %(tags)s, event_count = %(event_count)s
 where seq = %(seq)s;

-- name: jobs_matching
-- Read and lock, in order, the jobs that match a dedupe key, an id or a number.
with matches as (
    select * from unnest(
        %(matches_0)s::text[], %(matches_1)s::text[], %(matches_2)s::text[], %(matches_3)s::text[], %(matches_4)s::bigint[]
    ) as m (tenant, dedupe_kind, dedupe_key, id, seq)
)
select * from holdfast.job_row
 where seq = any (array(
    select seq from matches
     union all
    select j.seq from matches m
     cross join lateral (select seq from holdfast.job where id = m.id limit 1) j
     union all
    select j.seq from matches m
     cross join lateral (
        select seq from holdfast.job
         where tenant = m.tenant and dedupe_kind = m.dedupe_kind and dedupe_key = m.dedupe_key
           and dedupe_key is not null and state in ('scheduled', 'ready', 'running')
         limit 1
     ) j
 ))
 order by seq
/* lock: for update */;

-- name: keys_lock
-- Lock these keys until the transaction ends, waiting for transactions that hold them.
select holdfast.hold_keys(%(keys)s::integer[]);

-- name: keys_of_jobs
-- Read the dedupe keys of jobs, by their ids, without locking them.
select tenant, dedupe_kind, dedupe_key from holdfast.job
 where id = any (%(ids)s::text[]) and dedupe_key is not null;
