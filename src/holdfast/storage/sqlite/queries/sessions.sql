-- Sessions: entries in order, heads, claims and owners.

-- name: jobs_unlocked
-- Read jobs by their numbers without a lock, in a transaction that has locked their session.
select * from holdfast_job_row where seq in (select value from json_each(:seqs));

-- name: message_id_insert
-- Store the message ids of new entries.
insert into holdfast_session_message_id (session, message_id, seq, id, route, entry, enqueue_seq, enqueued_at_ms)
values (?, ?, ?, ?, ?, ?, ?, ?);

-- name: message_ids_delete
-- Delete some message ids whose entries were deleted before a time, earliest first.
delete from holdfast_session_message_id
 where (session, message_id) in (select session, message_id from holdfast_session_message_id
                                  where deleted_at_ms is not null and deleted_at_ms < :before
                                  order by deleted_at_ms limit :limit);

-- name: message_ids_mark_deleted
-- Record the final state and deletion time of jobs that are about to be deleted and whose message ids outlive them.
update holdfast_session_message_id set state = :state, deleted_at_ms = :now
 where seq in (select value from json_each(:seqs));

-- name: message_ids_seen
-- Read the records of some message ids of a session, each with the identity of its entry.
select message_id, seq, id, route, entry, enqueue_seq, enqueued_at_ms, state, deleted_at_ms
  from holdfast_session_message_id
 where session = :session and message_id in (select value from json_each(:message_ids));

-- name: session_by_name
-- Read one session by its name, locked in write transactions.
select * from holdfast_session_row where tenant = :tenant and name = :name;

-- name: session_claim_write
-- Write a session's newest claim; while it is held, no head is claimable.
update holdfast_session
   set fence = :fence, claim_id = :claim_id,
       head_route = null, head_entry_type = null, head_fair_key = null, head_seq = null
 where number = :number;

-- name: session_create
-- Store a new session unless it exists.
insert into holdfast_session (tenant, name) values (:tenant, :name) on conflict (tenant, name) do nothing;

-- name: session_due
-- Read some scheduled entries of a session that are due.
select * from holdfast_job_row
 where session_number = :session and rare_state = {scheduled} and due_at_ms <= :now
 order by due_at_ms
 limit :limit;

-- name: session_enqueue_seq_write
-- Write the position of each session's newest entry.
update holdfast_session set enqueue_seq = ? where number = ?;

-- name: session_entries_in_order
-- Read some entries of a session's line in enqueue order, from which a claim selects.
select seq, enqueue_seq, (select name from holdfast_state where number = state), epoch, route,
       extra ->> '$.entry_json'
  from holdfast_job
 where session = :session and session is not null and (rare_state = {ready} or rare_state = {parked} or (rare_state = {scheduled} and epoch > 0)) and enqueue_seq > :after
 order by enqueue_seq
 limit :limit;

-- name: session_entries_ready
-- Read the chosen entries of a session that are still ready.
select * from holdfast_job_row where seq in (select value from json_each(:seqs)) and +state_number = {ready};

-- name: session_entries_waiting
-- Find the next waiting entries of a session by their numbers, for iterating over all of them.
select seq from holdfast_job
 where session = :session and session is not null and seq > :after and state in ({scheduled}, {parked}, {ready})
 order by seq
 limit :limit;

-- name: session_expired
-- Read some running entries of a session whose lease has expired.
select * from holdfast_job_row
 where session_number = :session and rare_state = {running} and lease_until_ms <= :now
 order by lease_until_ms
 limit :limit;

-- name: session_fair_keys
-- For each route and entry type: the next fair_key with a claimable head after the one served last, and the first of
-- all.
select (select head_fair_key from holdfast_session
         where head_seq is not null and head_route = json_extract(p.value, '$[0]')
           and head_entry_type = json_extract(p.value, '$[1]') and head_fair_key > :last_fair_key
         order by head_fair_key limit 1),
       (select head_fair_key from holdfast_session
         where head_seq is not null and head_route = json_extract(p.value, '$[0]')
           and head_entry_type = json_extract(p.value, '$[1]')
         order by head_fair_key limit 1)
  from json_each(:prefixes) p;

-- name: session_first_entries
-- For each session with a non-empty line: whether an entry is running, and the first entry in its line.
select s.value, exists (select 1 from holdfast_job r where r.session = s.value and r.rare_state = {running}),
       j.seq, j.enqueue_seq, (select name from holdfast_state where number = j.state), j.epoch, j.route,
       j.extra ->> '$.entry_json'
  from json_each(:sessions) s
 cross join holdfast_job j
 where j.seq = (select f.seq from holdfast_job f
                 where f.session = s.value and f.session is not null
                   and (f.rare_state = {ready} or f.rare_state = {parked} or (f.rare_state = {scheduled} and f.epoch > 0))
                 order by f.enqueue_seq limit 1);

-- name: session_first_ready
-- Read the first of some sessions, in the given order, that still has a claimable head. The cross join keeps that
-- order.
select s.* from json_each(:numbers) n
 cross join holdfast_session_row s
 where s.number = n.value and s.head_seq is not null
 limit 1;

-- name: session_heads
-- For each route, entry type and fair_key: the sessions with the oldest claimable heads.
select s.head_seq, s.number
  from json_each(:prefixes) p
 cross join holdfast_session s
 where s.number in (select h.number from holdfast_session h
                     where h.head_seq is not null and h.head_route = json_extract(p.value, '$[0]')
                       and h.head_entry_type = json_extract(p.value, '$[1]')
                       and h.head_fair_key = json_extract(p.value, '$[2]')
                     order by h.head_seq limit :limit);

-- name: session_heads_of_tenant
-- For each route and entry type: one tenant's sessions with the oldest claimable heads in strict lanes, which have no
-- fair_keys.
select s.head_seq, s.number
  from json_each(:prefixes) p
 cross join holdfast_session s
 where s.number in (select h.number from holdfast_session h
                     where h.head_seq is not null and h.head_fair_key = '' and h.tenant = :tenant
                       and h.head_route = json_extract(p.value, '$[0]')
                       and h.head_entry_type = json_extract(p.value, '$[1]')
                     order by h.head_seq limit :limit);

-- name: session_heads_write
-- Write the claimable head of each session.
update holdfast_session set head_route = ?, head_entry_type = ?, head_fair_key = ?, head_seq = ? where number = ?;

-- name: session_lease_write
-- Write the holder and expiry of a session lease.
update holdfast_session
   set generation = :generation, lease_token = :lease_token, lease_worker = :lease_worker,
       lease_incarnation = :lease_incarnation, lease_until_ms = :lease_until_ms
 where number = :number;

-- name: session_next_time
-- Read when the next session lease expires.
select (select lease_until_ms from holdfast_session where lease_until_ms is not null order by lease_until_ms limit 1);

-- name: session_number
-- Read the number of a session without locking it, for transactions that lock its entries first.
select number from holdfast_session where tenant = :tenant and name = :name;

-- name: session_running
-- Read the running entries of a session.
select * from holdfast_job_row where session_number = :session and rare_state = {running};

-- name: session_running_entries
-- Read the numbers of the running entries of a session, and their leases.
select seq, lease_token from holdfast_job where session = :session and session is not null and rare_state = {running};

-- name: sessions_by_name
-- Read sessions by their names.
select s.* from json_each(:names) n
  join holdfast_session_row s on s.tenant = json_extract(n.value, '$[0]') and s.name = json_extract(n.value, '$[1]');

-- name: sessions_by_number
-- Read sessions by their numbers.
select * from holdfast_session_row where number in (select value from json_each(:numbers)) order by number;

-- name: sessions_expired
-- Read some sessions whose lease has expired, earliest first.
select * from holdfast_session_row
 where lease_until_ms is not null and lease_until_ms <= :now
 order by lease_until_ms
 limit :limit;

-- name: sessions_page
-- Read some sessions of all tenants after one, by tenant and name.
select * from holdfast_session_row
 where (tenant, name) > (:tenant, :name)
 order by tenant, name
 limit :limit;

-- name: sessions_page_of_tenant
-- Read some sessions of one tenant after one, by name.
select * from holdfast_session_row
 where tenant = :tenant and name > :name
 order by name
 limit :limit;

-- name: sessions_unlocked
-- Return the unlocked ones of some sessions: all of them, because there is no other writer.
select number from holdfast_session where number in (select value from json_each(:numbers));
