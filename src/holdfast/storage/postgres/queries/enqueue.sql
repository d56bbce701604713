-- Enqueueing: numbers, duplicates, new rows.

-- name: enqueue_header
-- Lock the keys of the new jobs, read the routing version and draw the next numbers in enqueue order, which are never
-- reused. The transaction gets its number before it draws theirs: see `ready_since_1`.
select (select holdfast.routing_version(false /* lock: or true */, %(keys)s::integer[])),
       array(select nextval('holdfast.job_seq') from generate_series(1, %(count)s::integer)
              where pg_current_xact_id() is not null);

-- name: job_dedupe_holder
-- Read and lock the unfinished job that holds a dedupe key.
select j.* from holdfast.open_job o
  join holdfast.job_row j on j.seq = o.seq
 where o.tenant = %(tenant)s and o.dedupe_kind = %(dedupe_kind)s and o.dedupe_key = %(dedupe_key)s
   and o.dedupe_key is not null and o.state in ('scheduled', 'dependent', 'parked', 'ready', 'running')
   and j.state in ('scheduled', 'dependent', 'parked', 'ready', 'running')
/* lock: for update of j */;

-- name: job_dedupe_successor
-- Read and lock the blocked job that waits to succeed the holder of a dedupe key.
select j.* from holdfast.open_job o
  join holdfast.job_row j on j.seq = o.seq
 where o.tenant = %(tenant)s and o.dedupe_kind = %(dedupe_kind)s and o.dedupe_key = %(dedupe_key)s
   and o.dedupe_key is not null and o.state = 'blocked'
   and j.state = 'blocked'
/* lock: for update of j */;

-- name: job_insert
-- Store new jobs. Jobs whose id or key another transaction has taken are skipped; the row count reveals it.
with stored as (
    insert into holdfast.job (
        route, seq, id, state, tenant, fair_key, priority, affinity, payload, headers, tags,
        enqueued_at_ms, due_at_ms, deadline_at_ms, max_attempts, backoff,
        dedupe_key, dedupe_kind, predecessor, digest, parent, root, record_all, event_count
    )
    select * from unnest(
        %(c0)s::integer[], %(c1)s::bigint[], %(c2)s::text[], %(c3)s::text[], %(c4)s::text[], %(c5)s::text[],
        %(c6)s::integer[], %(c7)s::text[], %(c8)s::text[], %(c9)s::text[], %(c10)s::text[], %(c11)s::bigint[],
        %(c12)s::bigint[], %(c13)s::bigint[], %(c14)s::integer[], %(c15)s::text[], %(c16)s::text[], %(c17)s::text[],
        %(c18)s::bigint[], %(c19)s::text[], %(c20)s::text[], %(c21)s::text[], %(c22)s::smallint[], %(c23)s::integer[]
    )
    on conflict do nothing
    returning *
),
opened as (
    insert into holdfast.open_job (
        seq, due_at_ms, deadline_at_ms, predecessor, route, priority, state, tenant, fair_key, dedupe_key, dedupe_kind
    )
    select seq, due_at_ms, deadline_at_ms, predecessor, route, priority, state, tenant, fair_key, dedupe_key, dedupe_kind
      from stored
     where state <> 'ready' or deadline_at_ms is not null or dedupe_key is not null
    on conflict do nothing
    returning seq
),
ready as (
    insert into holdfast.ready_job (seq, due_at_ms, route, priority, has_open, tenant, fair_key, affinity)
    select seq, due_at_ms, route, priority,
           case when deadline_at_ms is not null or dedupe_key is not null then 1 else 0 end, tenant, fair_key, affinity
      from stored
     where state = 'ready'
)
select (select count(*) from opened)
       + (select count(*) from stored where state = 'ready' and deadline_at_ms is null and dedupe_key is null);

-- name: job_insert_plain
-- Store one plain job if the routing table still has the caller's version, and return its number and the clock. What
-- jobs with the same settings have in common comes first.
select holdfast.job_store(
    %(version)s, %(route)s, %(tenant)s, %(fair_key)s, %(priority)s, %(affinity)s, %(headers)s, %(tags)s,
    %(max_attempts)s, %(backoff)s, %(clock_ms)s, %(id)s, %(payload)s
);

-- name: jobs_insert_alike
-- Store plain jobs that differ only in id and payload if the routing table still has the caller's version; otherwise
-- return no numbers. What the jobs have in common comes first, as in `job_insert_plain`.
select seqs, now_ms from holdfast.jobs_store(
    %(version)s, %(route)s, %(tenant)s, %(fair_key)s, %(priority)s, %(affinity)s, %(headers)s, %(tags)s,
    %(max_attempts)s, %(backoff)s, %(clock_ms)s, %(ids)s, %(payloads)s
);

-- name: job_insert_plain_many
-- Store plain jobs that differ only in number, id and payload.
with opened as (
    insert into holdfast.open_job (seq, due_at_ms, deadline_at_ms, route, priority, state, tenant, fair_key)
    select n.seq, %(due_at_ms)s::bigint, %(deadline_at_ms)s::bigint, %(route)s::integer, %(priority)s::integer,
           %(state)s::text, %(tenant)s::text, %(fair_key)s::text
      from unnest(%(seqs)s::bigint[]) as n (seq)
     where %(state)s::text <> 'ready' or %(deadline_at_ms)s::bigint is not null
),
ready as (
    insert into holdfast.ready_job (seq, due_at_ms, route, priority, has_open, tenant, fair_key, affinity)
    select n.seq, %(due_at_ms)s::bigint, %(route)s::integer, %(priority)s::integer,
           case when %(deadline_at_ms)s::bigint is not null then 1 else 0 end, %(tenant)s::text, %(fair_key)s::text,
           %(affinity)s::text
      from unnest(%(seqs)s::bigint[]) as n (seq)
     where %(state)s::text = 'ready'
)
insert into holdfast.job (
    seq, id, payload, route, state, tenant, fair_key, priority, affinity, headers, tags,
    enqueued_at_ms, due_at_ms, deadline_at_ms, max_attempts, backoff, record_all, event_count
)
select n.seq, n.id, n.payload, %(route)s::integer, %(state)s::text, %(tenant)s::text, %(fair_key)s::text,
       %(priority)s::integer, %(affinity)s::text, %(headers)s::text, %(tags)s::text, %(enqueued_at_ms)s::bigint,
       %(due_at_ms)s::bigint, %(deadline_at_ms)s::bigint, %(max_attempts)s::integer, %(backoff)s::text, 0, 0
  from unnest(%(seqs)s::bigint[], %(ids)s::text[], %(payloads)s::text[]) as n (seq, id, payload);

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
        select seq from holdfast.open_job
         where tenant = m.tenant and dedupe_kind = m.dedupe_kind and dedupe_key = m.dedupe_key
           and dedupe_key is not null and state in ('scheduled', 'dependent', 'parked', 'ready', 'running')
         limit 1
     ) j
 ))
 order by seq
/* lock: for update */;

-- name: kept_key_write
-- Keep dedupe keys for new jobs, unless another job keeps the key; the row count reveals it.
insert into holdfast.kept_key as k (
    tenant, dedupe_kind, dedupe_key, until_ms, seq, id, route, enqueued_at_ms
)
select * from unnest(
    %(c0)s::text[], %(c1)s::text[], %(c2)s::text[], %(c3)s::bigint[], %(c4)s::bigint[], %(c5)s::text[],
    %(c6)s::integer[], %(c7)s::bigint[]
)
on conflict (tenant, dedupe_kind, dedupe_key) do update
   set until_ms = excluded.until_ms, seq = excluded.seq, id = excluded.id, route = excluded.route,
       enqueued_at_ms = excluded.enqueued_at_ms, state = null, deleted_at_ms = null
 where k.until_ms <= excluded.enqueued_at_ms;

-- name: kept_keys
-- Read the first jobs of dedupe keys that are kept, as the keys describe them. The locks let these jobs be deleted only
-- before, and then the keys say so, or after this transaction.
select k.tenant, k.dedupe_kind, k.dedupe_key, k.seq, k.id, k.state, r.kind, r.lane, r.requires, k.enqueued_at_ms,
       k.deleted_at_ms
  from unnest(%(matches_0)s::text[], %(matches_1)s::text[], %(matches_2)s::text[])
       as m (tenant, dedupe_kind, dedupe_key)
  join holdfast.kept_key k on k.tenant = m.tenant and k.dedupe_kind = m.dedupe_kind and k.dedupe_key = m.dedupe_key
   and k.until_ms > %(now)s
  join holdfast.route r on r.route = k.route
 order by k.tenant, k.dedupe_kind, k.dedupe_key
/* lock: for update of k */;

-- name: kept_keys_delete
-- Delete some dedupe keys whose period has passed, earliest first.
delete from holdfast.kept_key
 where (tenant, dedupe_kind, dedupe_key) in (select tenant, dedupe_kind, dedupe_key from holdfast.kept_key
                                              where until_ms <= %(now)s order by until_ms limit %(limit)s
                                              for update skip locked);

-- name: kept_keys_mark_deleted
-- Record the final state and deletion time of jobs that are about to be deleted and whose keys outlive them.
update holdfast.kept_key set state = %(state)s, deleted_at_ms = %(now)s where seq = any (%(seqs)s::bigint[]);

-- name: keys_lock
-- Lock these keys until the transaction ends, waiting for transactions that hold them.
select holdfast.hold_keys(%(keys)s::integer[]);

-- name: keys_of_jobs
-- Read the dedupe keys of jobs, by their ids, without locking them.
select tenant, dedupe_kind, dedupe_key from holdfast.job
 where id = any (%(ids)s::text[]) and dedupe_key is not null;

-- name: tags_delete
-- Delete the tags of jobs that are about to be changed or deleted. The limit keeps the planner from scanning the table.
delete from holdfast.tag
 where ctid = any (array(
    select t.ctid from holdfast.job j
     cross join lateral json_each_text(j.tags::json) o
     cross join lateral (
        select ctid from holdfast.tag where tag = o.key and value = o.value and seq = j.seq limit 1
     ) t
     where j.seq = any (%(seqs)s::bigint[]) and j.tags <> '{}'
 ));

-- name: tags_insert
-- Store the tags of jobs.
insert into holdfast.tag (tag, value, seq)
select o.key, o.value, v.seq
  from unnest(%(c0)s::bigint[], %(c1)s::text[]) as v (seq, tags)
 cross join lateral json_each_text(v.tags::json) o;
