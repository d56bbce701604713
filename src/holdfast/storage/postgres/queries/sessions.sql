-- Sessions: entries in order, heads, claims and owners.

-- name: jobs_unlocked
-- Read jobs by their numbers without a lock, in a transaction that has locked their session.
select * from holdfast.job_row where seq = any (%(seqs)s::bigint[]);

-- name: message_id_insert
-- Store the message ids of new entries.
insert into holdfast.session_message_id (session, message_id, seq, id, route, entry, enqueue_seq, enqueued_at_ms)
select * from unnest(
    %(c0)s::bigint[], %(c1)s::text[], %(c2)s::bigint[], %(c3)s::text[], %(c4)s::integer[], %(c5)s::text[],
    %(c6)s::bigint[], %(c7)s::bigint[]
);

-- name: message_ids_delete
-- Delete some message ids whose entries were deleted before a time, earliest first.
delete from holdfast.session_message_id
 where (session, message_id) in (select session, message_id from holdfast.session_message_id
                                  where deleted_at_ms is not null and deleted_at_ms < %(before)s
                                  order by deleted_at_ms limit %(limit)s);

-- name: message_ids_mark_deleted
-- Record the final state and deletion time of jobs that are about to be deleted and whose message ids outlive them.
update holdfast.session_message_id set state = %(state)s, deleted_at_ms = %(now)s where seq = any (%(seqs)s::bigint[]);

-- name: message_ids_seen
-- Read the records of some message ids of a session, each with the identity of its entry.
select message_id, seq, id, route, entry, enqueue_seq, enqueued_at_ms, state, deleted_at_ms
  from holdfast.session_message_id
 where session = %(session)s and message_id = any (%(message_ids)s::text[]);

-- name: plain_session_claim
-- Lease the next entries of the session that is next among ready ones. The first row describes the claim.
select /* stored columns */
  from holdfast.session_claim_1(
    %(clock_ms)s, %(lease_clock_ms)s, %(routes)s, %(limits)s, %(entry_types)s, %(scope)s, %(worker)s,
    %(incarnation)s, %(lease_token)s, %(lease_ms)s, %(acknowledged)s
  ) j;

-- name: plain_session_head
-- Write the head of a session after a turn has ended; return the lane of the head.
select * from holdfast.session_head_1(%(session)s);

-- name: plain_session_look
-- Return whether a session has a claimable head on one of these routes, or an owner whose lease has expired.
select exists (
    select 1 from unnest(%(routes)s::integer[]) as r (route)
     cross join lateral (select 1 from holdfast.session s
                          where s.head_seq is not null and s.head_route = r.route limit 1) head
), exists (
    select 1 from holdfast.session s
     where s.lease_until_ms is not null
       and s.lease_until_ms <= coalesce(%(lease_clock_ms)s::bigint, holdfast.clock_ms())
);

-- name: session_by_name
-- Read one session by its name, locked in write transactions.
select * from holdfast.session_row where tenant = %(tenant)s and name = %(name)s /* lock: for update */;

-- name: session_claim_write
-- Write a session's newest claim; while it is held, no head is claimable.
update holdfast.session
   set fence = %(fence)s, claim_id = %(claim_id)s,
       head_route = null, head_entry_type = null, head_fair_key = null, head_seq = null
 where number = %(number)s;

-- name: session_create
-- Store a new session unless it exists.
insert into holdfast.session (tenant, name) values (%(tenant)s, %(name)s) on conflict (tenant, name) do nothing;

-- name: session_due
-- Read some scheduled entries of a session that are due, skipping locked ones.
select j.* from holdfast.open_job o
  join holdfast.job_row j on j.seq = o.seq
 where o.session = %(session)s and o.session is not null and o.state = 'scheduled' and o.due_at_ms <= %(now)s
   and j.state = 'scheduled' and j.due_at_ms <= %(now)s
 order by o.due_at_ms
 limit %(limit)s
/* lock: for update of j skip locked */;

-- name: session_enqueue_seq_write
-- Write the position of each session's newest entry.
update holdfast.session s set enqueue_seq = v.enqueue_seq
  from unnest(%(c0)s::bigint[], %(c1)s::bigint[]) as v (enqueue_seq, number)
 where s.number = v.number;

-- name: session_entries_in_order
-- Read some entries of a session's line in enqueue order, from which a claim selects.
select o.seq, o.enqueue_seq, o.state, o.epoch, o.route, j.entry from holdfast.open_job o
  join holdfast.job j on j.seq = o.seq
 where o.session = %(session)s and o.session is not null and (o.state = 'ready' or o.state = 'parked' or (o.state = 'scheduled' and o.epoch > 0))
   and o.enqueue_seq > %(after)s
 order by o.enqueue_seq
 limit %(limit)s;

-- name: session_entries_ready
-- Lock the chosen entries that are still ready and not locked: a claim that has locked the session must not wait for
-- a transaction that may wait for the session.
select * from holdfast.job_row
 where seq = any (%(seqs)s::bigint[]) and state = 'ready'
 order by seq
   for update skip locked;

-- name: session_entries_waiting
-- Find the next waiting entries of a session by their numbers, for iterating over all of them.
select seq from holdfast.open_job
 where session = %(session)s and session is not null and seq > %(after)s and state in ('scheduled', 'parked', 'ready')
 order by seq
 limit %(limit)s;

-- name: session_entry_insert
-- Store new session entries. Entries whose id another transaction has taken are skipped; the row count reveals it.
with stored as (
    insert into holdfast.job (
        session, enqueue_seq, entry, route, seq, id, state, tenant, fair_key, priority, affinity, payload, headers, tags,
        enqueued_at_ms, due_at_ms, deadline_at_ms, max_attempts, backoff,
        dedupe_key, dedupe_kind, predecessor, digest, parent, root, record_all, event_count
    )
    select * from unnest(
        %(c0)s::bigint[], %(c1)s::bigint[], %(c2)s::text[],
        %(c3)s::integer[], %(c4)s::bigint[], %(c5)s::text[], %(c6)s::text[], %(c7)s::text[], %(c8)s::text[],
        %(c9)s::integer[], %(c10)s::text[], %(c11)s::text[], %(c12)s::text[], %(c13)s::text[], %(c14)s::bigint[],
        %(c15)s::bigint[], %(c16)s::bigint[], %(c17)s::integer[], %(c18)s::text[], %(c19)s::text[], %(c20)s::text[],
        %(c21)s::bigint[], %(c22)s::text[], %(c23)s::text[], %(c24)s::text[], %(c25)s::smallint[], %(c26)s::integer[]
    )
    on conflict do nothing
    returning *
),
ready as (
    insert into holdfast.ready_job (seq, due_at_ms, route, priority, has_open, tenant, fair_key, affinity)
    select seq, due_at_ms, route, priority, 1, tenant, fair_key, affinity from stored where state = 'ready'
)
insert into holdfast.open_job (
    seq, due_at_ms, deadline_at_ms, predecessor, session, enqueue_seq, route, priority, state, tenant, fair_key, dedupe_key,
    dedupe_kind
)
select seq, due_at_ms, deadline_at_ms, predecessor, session, enqueue_seq, route, priority, state, tenant, fair_key, dedupe_key,
       dedupe_kind
  from stored
on conflict do nothing;

-- name: session_expired
-- Read some running entries of a session whose lease has expired, skipping locked ones.
select j.* from holdfast.open_job o
  join holdfast.job_row j on j.seq = o.seq
 where o.session = %(session)s and o.session is not null and o.state = 'running'
   and j.state = 'running' and j.lease_until_ms <= %(now)s
 order by j.lease_until_ms
 limit %(limit)s
/* lock: for update of j skip locked */;

-- name: session_fair_keys
-- For each route and entry type: the next fair_key with a claimable head after the one served last, and the first of
-- all.
select (select s.head_fair_key from holdfast.session s
         where s.head_seq is not null and s.head_route = p.route and s.head_entry_type = p.entry_type
           and s.head_fair_key > %(last_fair_key)s::text
         order by s.head_fair_key limit 1),
       (select s.head_fair_key from holdfast.session s
         where s.head_seq is not null and s.head_route = p.route and s.head_entry_type = p.entry_type
         order by s.head_fair_key limit 1)
  from unnest(%(prefixes_0)s::integer[], %(prefixes_1)s::text[]) as p (route, entry_type);

-- name: session_first_entries
-- For each session with a non-empty line: whether an entry is running, and the first entry in its line.
select s.number, exists (select 1 from holdfast.open_job r
                          where r.session = s.number and r.session is not null and r.state = 'running'),
       f.seq, f.enqueue_seq, f.state, f.epoch, f.route, f.entry
  from unnest(%(sessions)s::bigint[]) as s (number)
 cross join lateral (
    select o.seq, o.enqueue_seq, o.state, o.epoch, o.route, j.entry from holdfast.open_job o
      join holdfast.job j on j.seq = o.seq
     where o.session = s.number and o.session is not null and (o.state = 'ready' or o.state = 'parked' or (o.state = 'scheduled' and o.epoch > 0))
     order by o.enqueue_seq limit 1
 ) f;

-- name: session_first_ready
-- Lock the first of some sessions, in the given order, that still has a claimable head and is not locked.
select * from holdfast.session_row
 where number = any (%(numbers)s::bigint[]) and coalesce(head_seq, -1) >= 0
 order by array_position(%(numbers)s::bigint[], number)
 limit 1
   for update skip locked;

-- name: session_heads
-- For each route, entry type and fair_key: the sessions with the oldest claimable heads.
select h.head_seq, h.number
  from unnest(%(prefixes_0)s::integer[], %(prefixes_1)s::text[], %(prefixes_2)s::text[])
       as p (route, entry_type, fair_key)
 cross join lateral (
    select s.head_seq, s.number from holdfast.session s
     where s.head_seq is not null and s.head_route = p.route and s.head_entry_type = p.entry_type
       and s.head_fair_key = p.fair_key
     order by s.head_seq limit %(limit)s
 ) h;

-- name: session_heads_of_tenant
-- For each route and entry type: one tenant's sessions with the oldest claimable heads in strict lanes, which have no
-- fair_keys.
select h.head_seq, h.number
  from unnest(%(prefixes_0)s::integer[], %(prefixes_1)s::text[]) as p (route, entry_type)
 cross join lateral (
    select s.head_seq, s.number from holdfast.session s
     where s.head_seq is not null and s.head_fair_key = '' and s.tenant = %(tenant)s
       and s.head_route = p.route and s.head_entry_type = p.entry_type
     order by s.head_seq limit %(limit)s
 ) h;

-- name: session_heads_write
-- Write the claimable head of each session.
update holdfast.session s
   set head_route = v.head_route, head_entry_type = v.head_entry_type, head_fair_key = v.head_fair_key,
       head_seq = v.head_seq
  from unnest(%(c0)s::integer[], %(c1)s::text[], %(c2)s::text[], %(c3)s::bigint[], %(c4)s::bigint[])
       as v (head_route, head_entry_type, head_fair_key, head_seq, number)
 where s.number = v.number;

-- name: session_lease_write
-- Write the holder and expiry of a session lease.
update holdfast.session
   set generation = %(generation)s, lease_token = %(lease_token)s, lease_worker = %(lease_worker)s,
       lease_incarnation = %(lease_incarnation)s, lease_until_ms = %(lease_until_ms)s
 where number = %(number)s;

-- name: session_next_time
-- Read when the next session lease expires.
select (select lease_until_ms from holdfast.session where lease_until_ms is not null order by lease_until_ms limit 1);

-- name: session_number
-- Read the number of a session without locking it, for transactions that lock its entries first.
select number from holdfast.session where tenant = %(tenant)s and name = %(name)s;

-- name: session_running
-- Read the running entries of a session, locked in order in write transactions.
select * from holdfast.job_row
 where seq = any (array(select o.seq from holdfast.open_job o
                         where o.session = %(session)s and o.session is not null and o.state = 'running'))
   and state = 'running'
 order by seq
/* lock: for update */;

-- name: session_running_entries
-- Read the numbers of the running entries of a session, and their leases.
select j.seq, j.lease_token from holdfast.open_job o
  join holdfast.job j on j.seq = o.seq
 where o.session = %(session)s and o.session is not null and o.state = 'running' and j.state = 'running';

-- name: sessions_by_name
-- Read sessions by their names, locked in order of their numbers in write transactions.
select * from holdfast.session_row
 where (tenant, name) in (select * from unnest(%(names_0)s::text[], %(names_1)s::text[]))
 order by number
/* lock: for update */;

-- name: sessions_by_number
-- Read sessions by their numbers, locked in order in write transactions.
select * from holdfast.session_row where number = any (%(numbers)s::bigint[]) order by number /* lock: for update */;

-- name: sessions_expired
-- Read some sessions whose lease has expired, earliest first, skipping locked ones.
select * from holdfast.session_row
 where lease_until_ms is not null and lease_until_ms <= %(now)s
 order by lease_until_ms
 limit %(limit)s
/* lock: for update skip locked */;

-- name: sessions_page
-- Read some sessions of all tenants after one, by tenant and name.
select * from holdfast.session_row
 where (tenant, name) > (%(tenant)s, %(name)s)
 order by tenant, name
 limit %(limit)s;

-- name: sessions_page_of_tenant
-- Read some sessions of one tenant after one, by name.
select * from holdfast.session_row
 where tenant = %(tenant)s and name > %(name)s
 order by name
 limit %(limit)s;

-- name: sessions_unlocked
-- Lock, in order, the unlocked ones of some sessions, and return their numbers; maintenance never waits for a lock.
select number from holdfast.session where number = any (%(numbers)s::bigint[]) order by number for update skip locked;
