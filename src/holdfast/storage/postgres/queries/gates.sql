-- Limits by key and their gates.

-- name: gate_close
-- Close a gate until a time, unless it is closed for longer; make it if it is missing.
insert into holdfast.gate as g (flow_limit, key, closed_until_ms) values (%(number)s, %(key)s, %(until_ms)s)
on conflict (flow_limit, key) do update set closed_until_ms = greatest(g.closed_until_ms, excluded.closed_until_ms);

-- name: gate_offered
-- Count the ready jobs of a route that were offered by a gate, up to a maximum.
select count(*) from (
    select 1 from holdfast.open_job where gate = %(gate)s and state = 'ready' and route = %(route)s limit %(limit)s
) found;

-- name: gate_offered_jobs
-- Read some ready jobs of a route that were offered by a gate.
select seq from holdfast.open_job where gate = %(gate)s and state = 'ready' and route = %(route)s limit %(limit)s;

-- name: gate_parked
-- Count the jobs that are parked at a gate, up to a maximum.
select count(*) from (select 1 from holdfast.open_job where gate = %(gate)s and state = 'parked' limit %(limit)s) found;

-- name: gate_routes
-- Read the routes of jobs that are parked at a gate.
with recursive found (route) as (
    select (select j.route from holdfast.open_job j where j.gate = %(gate)s and j.state = 'parked' order by j.route limit 1)
    union all
    select (select j.route from holdfast.open_job j
             where j.gate = %(gate)s and j.state = 'parked' and j.route > f.route order by j.route limit 1)
      from found f where f.route is not null
)
select route from found where route is not null;

-- name: gate_turns
-- Read the first jobs that are parked at a gate, of one route and of its highest priority below another: some of each of the
-- next fair_keys, starting with the first from this one on and wrapping around.
with recursive
top (priority) as materialized (
    select priority from holdfast.open_job
     where gate = %(gate)s and state = 'parked' and route = %(route)s and priority < %(below)s
     order by priority desc limit 1
),
later (fair_key, depth) as (
    select (select j.fair_key from holdfast.open_job j
             where j.gate = %(gate)s and j.state = 'parked' and j.route = %(route)s and j.priority = (select priority from top)
               and j.fair_key >= %(first_fair_key)s
             order by j.fair_key limit 1), 1
    union all
    select (select j.fair_key from holdfast.open_job j
             where j.gate = %(gate)s and j.state = 'parked' and j.route = %(route)s and j.priority = (select priority from top)
               and j.fair_key > l.fair_key
             order by j.fair_key limit 1), l.depth + 1
      from later l where l.fair_key is not null and l.depth < %(limit)s
),
earlier (fair_key, depth) as (
    select (select j.fair_key from holdfast.open_job j
             where j.gate = %(gate)s and j.state = 'parked' and j.route = %(route)s and j.priority = (select priority from top)
             order by j.fair_key limit 1), 1
    union all
    select (select j.fair_key from holdfast.open_job j
             where j.gate = %(gate)s and j.state = 'parked' and j.route = %(route)s and j.priority = (select priority from top)
               and j.fair_key > e.fair_key
             order by j.fair_key limit 1), e.depth + 1
      from earlier e where e.fair_key < %(first_fair_key)s and e.depth < %(limit)s
),
keys (fair_key) as materialized (
    select fair_key from later where fair_key is not null
    union all
    select fair_key from earlier where fair_key < %(first_fair_key)s
)
select h.seq, h.priority, h.fair_key, h.due_at_ms
  from keys k
 cross join lateral (
    select j.seq, j.priority, j.fair_key, j.due_at_ms from holdfast.open_job j
     where j.gate = %(gate)s and j.state = 'parked' and j.route = %(route)s and j.priority = (select priority from top)
       and j.fair_key = k.fair_key
     order by j.due_at_ms, j.seq
     limit %(limit)s / (select count(*) from keys) + 1
 ) h;

-- name: gate_usage_add
-- Record how much more than their weight jobs have used: for each the number of its limit, its key and the amount; return the gates.
insert into holdfast.gate_usage (gate, amount)
select g.gate, p.amount from unnest(%(used_0)s::bigint[], %(used_1)s::text[], %(used_2)s::bigint[]) as p (flow_limit, key, amount)
  join holdfast.gate g on g.flow_limit = p.flow_limit and g.key = p.key
returning gate;

-- name: gate_usage_take
-- Delete what was recorded for gates and return it.
delete from holdfast.gate_usage where gate = any (%(gates)s::bigint[]) returning gate, amount;

-- name: gate_write
-- Write what a gate keeps in mind.
update holdfast.gate
   set until_us = %(until_us)s, closed_until_ms = %(closed_until_ms)s, wake_at_ms = %(wake_at_ms)s, turns = %(turns)s
 where gate = %(gate)s;

-- name: gates_delete
-- Delete gates.
delete from holdfast.gate where gate = any (%(gates)s::bigint[]);

-- name: gates_ending
-- Return those of these gates, each with the number of running jobs that was counted, of which jobs may be ending.
select holdfast.gates_ending_1(%(counted_0)s::bigint[], %(counted_1)s::bigint[]);

-- name: gates_existing
-- Find those of these gates that exist.
select gate from holdfast.gate where gate = any (%(gates)s::bigint[]);

-- name: gates_find
-- Read the numbers of gates by limit and key.
select g.gate, g.flow_limit, g.key from unnest(%(pairs_0)s::bigint[], %(pairs_1)s::text[]) as p (flow_limit, key)
  join holdfast.gate g on g.flow_limit = p.flow_limit and g.key = p.key;

-- name: gates_idle
-- Read some gates that no job names and that keep nothing in mind, skipping locked ones.
select gate from holdfast.gate g
 where until_us <= %(now)s::bigint * 1000 and closed_until_ms <= %(now)s
   and not exists (select 1 from holdfast.open_job j where j.gate = g.gate and j.state in ('parked', 'ready'))
   and not exists (select 1 from holdfast.permit p where p.block = g.gate >> 3 and g.gate = any (p.gates))
   and not exists (select 1 from holdfast.wake w where w.target = 'gate' and w.number = g.gate)
 limit %(limit)s
/* lock: for update skip locked */;

-- name: gates_insert
-- Make gates, one for each row of values, unless they exist.
insert into holdfast.gate (flow_limit, key)
select * from unnest(%(c0)s::bigint[], %(c1)s::text[])
on conflict (flow_limit, key) do nothing;

-- name: gates_lock
-- Lock gates, waiting a little for those that others have locked, and read them.
select gate, flow_limit, key, until_us, closed_until_ms, turns, wake_at_ms
  from holdfast.lock_gates_1(%(gates)s::bigint[], %(wait_ms)s::integer);

-- name: gates_of_key
-- Read the gates of a key.
select g.gate, g.flow_limit, g.key, g.until_us, g.closed_until_ms, g.turns, g.wake_at_ms from holdfast.flow_limit l
  join holdfast.gate g on g.flow_limit = l.number and g.key = %(key)s
 order by l.name;

-- name: gates_rescale
-- Write how far starts have used up the rate of a limit, after the rate has changed.
update holdfast.gate
   set until_us = %(now_us)s::bigint
                  + least((until_us - %(now_us)s::bigint) * %(factor)s::float8, %(longest_us)s::float8)::bigint
 where flow_limit = %(number)s and until_us > %(now_us)s::bigint;

-- name: gates_shift
-- Move the times up to which gates of a limit are used up back, where they are late.
update holdfast.gate set until_us = until_us - %(by_us)s
 where gate = any (array(select gate from holdfast.gate
                          where flow_limit = %(number)s and until_us > %(above_us)s
                          order by gate
                            for update));

-- name: gates_stalled
-- Find some gates where jobs are parked although none holds a permit and no wake row looks at the gate: a defect.
select gate from holdfast.gate g
 where exists (select 1 from holdfast.open_job j where j.gate = g.gate and j.state = 'parked')
   and not exists (select 1 from holdfast.open_job j where j.gate = g.gate and j.state = 'ready')
   and holdfast.gate_running_1(g.gate) = 0
   and not exists (select 1 from holdfast.wake w where w.target = 'gate' and w.number = g.gate)
 limit %(limit)s;

-- name: gates_use
-- For each gate: the number of jobs that hold a permit, and whether any is parked at it.
select g.gate,
       holdfast.gate_running_1(g.gate),
       exists (select 1 from holdfast.open_job j where j.gate = g.gate and j.state = 'parked')
  from unnest(%(gates)s::bigint[]) as g (gate);

-- name: gates_waiting
-- List the newest gates that are closed or at which jobs are parked; count these, and find the one that was due first.
with g as (select gate, flow_limit, key, closed_until_ms from holdfast.gate order by gate desc limit %(gates)s),
     p as (select w.gate, count(*) as parked, min(w.due_at_ms) as due_at_ms
             from (select j.gate, j.due_at_ms
                   from g cross join lateral (select j.gate, j.due_at_ms from holdfast.open_job j
                                     where j.gate = g.gate and j.state = 'parked' limit %(maximum)s) j
                 limit %(maximum)s) w
            group by w.gate)
select g.flow_limit, g.key, g.closed_until_ms, coalesce(p.parked, 0), p.due_at_ms
  from g left join p on p.gate = g.gate
 where p.gate is not null or g.closed_until_ms > %(now)s;

-- name: job_claim_gated
-- As job_claim, for each job its number, index and gate.
with taken as materialized (
    select holdfast.take_1(%(worker)s, %(lease_token)s, %(lease_until_ms)s, %(claimed_0)s::bigint[], %(claimed_2)s::bigint[])
)
update holdfast.job j
   set state = 'running', epoch = j.epoch + 1, attempt = j.attempt + 1, claim_index = p.claim_index, gate = p.gate,
       worker = %(worker)s, incarnation = %(incarnation)s,
       lease_token = %(lease_token)s, lease_until_ms = %(lease_until_ms)s, started_at_ms = %(started_at_ms)s,
       outcome = null, settle_digest = null, phase = null, percent = null,
       unacknowledged = case when p.claim_index < %(acknowledged)s::integer then 0 else j.unacknowledged + 1 end
  from taken,
       unnest(%(claimed_0)s::bigint[], %(claimed_1)s::integer[], %(claimed_2)s::bigint[]) as p (seq, claim_index, gate)
 where j.seq = p.seq and j.state = 'ready';

-- name: jobs_at_gates
-- Read the gates of jobs, and the keys and weights that they were given.
select j.seq, j.gate, k.key, k.weight from holdfast.job j
  left join holdfast.limit_key k on k.seq = j.seq
 where j.seq = any (%(seqs)s::bigint[]);

-- name: jobs_parked
-- Read parked jobs, skipping locked ones.
select * from holdfast.job_row
 where seq = any (%(seqs)s::bigint[]) and state = 'parked'
 order by seq
/* lock: for update skip locked */;

-- name: jobs_running_on_routes
-- Lock and read some running jobs on routes, after a number, waiting a little for those that others have locked.
select * from holdfast.job_row
 where seq = any (array(select unnest(holdfast.lock_running_1(%(routes)s::integer[], %(after)s, %(limit)s::integer, %(wait_ms)s::integer))))
   and state = 'running'
 order by seq
/* lock: for update skip locked */;

-- name: jobs_uncounted
-- Read some running jobs on routes that no gate counts, skipping locked ones: jobs without a key, or a defect.
select * from holdfast.job_row
 where seq = any (array(select j.seq from holdfast.lease l
                         cross join lateral unnest(l.seqs) as u (seq)
                          join holdfast.job j on j.seq = u.seq
                         where j.seq > %(after)s and j.state = 'running' and j.route = any (%(routes)s::integer[])
                           and not exists (select 1 from holdfast.permit p
                                            cross join lateral unnest(p.gates, p.seqs) as c (gate, seq)
                                            where p.block = j.gate >> 3 and p.worker = j.worker and p.token = j.lease_token
                                              and c.gate = j.gate and c.seq = j.seq)
                         order by j.seq limit %(limit)s))
   and state = 'running'
 order by seq
/* lock: for update skip locked */;

-- name: jobs_set_gates
-- Write the gates of jobs, one for each row of values.
with changed as (
    update holdfast.job j set gate = v.gate
      from unnest(%(c0)s::bigint[], %(c1)s::bigint[]) as v (gate, seq)
     where j.seq = v.seq
 returning j.seq, j.state, j.gate, j.lease_token, j.worker
),
counted as (
    insert into holdfast.permit (block, token, worker, gates, seqs)
    select c.gate >> 3, c.lease_token, c.worker, array_agg(c.gate), array_agg(c.seq) from changed c
     where c.state = 'running' and c.gate is not null
     group by c.gate >> 3, c.lease_token, c.worker
)
select holdfast.place_1(array(select seq from changed));

-- name: limit_delete
-- Delete a limit.
delete from holdfast.flow_limit where number = %(number)s;

-- name: limit_insert
-- Store a limit.
insert into holdfast.flow_limit (name, kinds, lanes, key_source, concurrency, rate, period_ms, burst, weight)
values (%(name)s, %(kinds)s, %(lanes)s, %(key_source)s, %(concurrency)s, %(rate)s, %(period_ms)s, %(burst)s, %(weight)s)
returning number;

-- name: limit_keys_delete
-- Delete the keys that jobs were given.
delete from holdfast.limit_key where seq = any (%(seqs)s::bigint[]);

-- name: limit_keys_insert
-- Store the keys and weights that jobs were given, one for each row of values.
insert into holdfast.limit_key (seq, key, weight) select * from unnest(%(c0)s::bigint[], %(c1)s::text[], %(c2)s::integer[]);

-- name: limit_write
-- Store the numbers of a changed limit.
update holdfast.flow_limit
   set concurrency = %(concurrency)s, rate = %(rate)s, period_ms = %(period_ms)s, burst = %(burst)s,
       weight = %(weight)s
 where number = %(number)s;

-- name: limits_all
-- Read all limits.
select number, name, kinds, lanes, key_source, concurrency, rate, period_ms, burst, weight from holdfast.flow_limit order by name;

-- name: limits_use
-- Record that the store has limits.
update holdfast.meta set value = '1' where name = 'limits';

-- name: limits_used
-- Read whether the store has limits.
select value from holdfast.meta where name = 'limits';

-- name: wake_gates
-- Append wake rows of the gates of jobs.
insert into holdfast.wake (at_ms, target, number)
select distinct 0, 'gate', gate from holdfast.job
 where seq = any (%(seqs)s::bigint[]) and gate is not null;

-- name: wake_gates_of_limit
-- Append wake rows of all gates of a limit.
insert into holdfast.wake (at_ms, target, number)
select 0, 'gate', gate from holdfast.gate where flow_limit = %(number)s;
