-- Limits by key and their gates.

-- name: gate_close
-- Close a gate until a time, unless it is closed for longer; make it if it is missing.
insert into holdfast_gate (flow_limit, key, closed_until_ms) values (:number, :key, :until_ms)
on conflict (flow_limit, key) do update set closed_until_ms = max(closed_until_ms, excluded.closed_until_ms);

-- name: gate_offered
-- Count the ready jobs of a route that were offered by a gate, up to a maximum.
select count(*) from (
    select 1 from holdfast_job where gate = :gate and rare_state = {ready} and route = :route limit :limit
);

-- name: gate_offered_jobs
-- Read some ready jobs of a route that were offered by a gate.
select seq from holdfast_job where gate = :gate and rare_state = {ready} and route = :route limit :limit;

-- name: gate_parked
-- Count the jobs that are parked at a gate, up to a maximum.
select count(*) from (select 1 from holdfast_job where gate = :gate and rare_state = {parked} limit :limit);

-- name: gate_routes
-- Read the routes of jobs that are parked at a gate.
with recursive found (route) as (
    select (select min(route) from holdfast_job where gate = :gate and rare_state = {parked})
    union all
    select (select min(j.route) from holdfast_job j where j.gate = :gate and j.rare_state = {parked} and j.route > f.route)
      from found f where f.route is not null
)
select route from found where route is not null;

-- name: gate_turns
-- Read the first jobs that are parked at a gate, of one route and of its highest priority below another: some of each of the
-- next fair_keys, starting with the first from this one on and wrapping around.
with recursive
top (priority) as materialized (
    select priority from holdfast_job
     where gate = :gate and rare_state = {parked} and route = :route and priority < :below
     order by priority desc limit 1
),
later (fair_key, depth) as (
    select (select min(j.fair_key) from holdfast_job j
             where j.gate = :gate and j.rare_state = {parked} and j.route = :route and j.priority = (select priority from top)
               and j.fair_key >= :first_fair_key), 1
    union all
    select (select min(j.fair_key) from holdfast_job j
             where j.gate = :gate and j.rare_state = {parked} and j.route = :route and j.priority = (select priority from top)
               and j.fair_key > l.fair_key), l.depth + 1
      from later l where l.fair_key is not null and l.depth < :limit
),
earlier (fair_key, depth) as (
    select (select min(j.fair_key) from holdfast_job j
             where j.gate = :gate and j.rare_state = {parked} and j.route = :route and j.priority = (select priority from top)), 1
    union all
    select (select min(j.fair_key) from holdfast_job j
             where j.gate = :gate and j.rare_state = {parked} and j.route = :route and j.priority = (select priority from top)
               and j.fair_key > e.fair_key), e.depth + 1
      from earlier e where e.fair_key < :first_fair_key and e.depth < :limit
),
keys (fair_key) as materialized (
    select fair_key from later where fair_key is not null
    union all
    select fair_key from earlier where fair_key < :first_fair_key
)
select j.seq, j.priority, j.fair_key, j.due_at_ms
  from keys k cross join holdfast_job j
 where j.seq in (select o.seq from holdfast_job o
                  where o.gate = :gate and o.rare_state = {parked} and o.route = :route and o.priority = (select priority from top)
                    and o.fair_key = k.fair_key
                  order by o.due_at_ms, o.seq
                  limit :limit / (select count(*) from keys) + 1);

-- name: gate_usage_add
-- Record how much more than their weight jobs have used: for each the number of its limit, its key and the amount; return the gates.
insert into holdfast_gate_usage (gate, amount)
select g.gate, p.value ->> 2 from json_each(:used) p
 cross join holdfast_gate g on g.flow_limit = p.value ->> 0 and g.key = p.value ->> 1
returning gate;

-- name: gate_usage_take
-- Delete what was recorded for gates and return it.
delete from holdfast_gate_usage where gate in (select value from json_each(:gates)) returning gate, amount;

-- name: gate_write
-- Write what a gate keeps in mind.
update holdfast_gate
   set until_us = :until_us, closed_until_ms = :closed_until_ms, wake_at_ms = :wake_at_ms, turns = :turns
 where gate = :gate;

-- name: gates_delete
-- Delete gates.
delete from holdfast_gate where gate in (select value from json_each(:gates));

-- name: gates_existing
-- Find those of these gates that exist.
select gate from holdfast_gate where gate in (select value from json_each(:gates));

-- name: gates_find
-- Read the numbers of gates by limit and key.
select g.gate, g.flow_limit, g.key from json_each(:pairs) p
 cross join holdfast_gate g on g.flow_limit = p.value ->> 0 and g.key = p.value ->> 1;

-- name: gates_idle
-- Read some gates that no job names and that keep nothing in mind.
select gate from holdfast_gate g
 where until_us <= :now * 1000 and closed_until_ms <= :now
   and not exists (select 1 from holdfast_job j where j.gate = g.gate and j.rare_state = {parked})
   and not exists (select 1 from holdfast_job j where j.gate = g.gate and j.rare_state = {ready})
   and not exists (select 1 from holdfast_job j where j.gate = g.gate and j.rare_state = {running})
   and not exists (select 1 from holdfast_wake w where w.target = 'gate' and w.number = g.gate)
 limit :limit;

-- name: gates_insert
-- Make gates, one for each row of values, unless they exist.
insert into holdfast_gate (flow_limit, key) values (?, ?)
on conflict (flow_limit, key) do nothing;

-- name: gates_lock
-- Read gates.
select gate, flow_limit, key, until_us, closed_until_ms, turns, wake_at_ms from holdfast_gate
 where gate in (select value from json_each(:gates)) and :wait_ms >= 0
 order by gate;

-- name: gates_of_key
-- Read the gates of a key.
select g.gate, g.flow_limit, g.key, g.until_us, g.closed_until_ms, g.turns, g.wake_at_ms from holdfast_flow_limit l
  join holdfast_gate g on g.flow_limit = l.number and g.key = :key
 order by l.name;

-- name: gates_read
-- Read the gates of one limit by their keys, each with the number of jobs that hold a permit if it matters. The cross join
-- keeps the planner from going through the keys for each gate.
select g.key, g.gate, g.until_us, g.closed_until_ms,
       case when :counts then (select count(*) from holdfast_job where gate = g.gate and rare_state = {running}) else 0 end
  from json_each(:keys) p
 cross join holdfast_gate g on g.flow_limit = :number and g.key = p.value;

-- name: gates_rescale
-- Write how far starts have used up the rate of a limit, after the rate has changed.
update holdfast_gate set until_us = :now_us + cast(min((until_us - :now_us) * :factor, :longest_us) as integer)
 where flow_limit = :number and until_us > :now_us;

-- name: gates_shift
-- Move the times up to which gates of a limit are used up back, where they are late.
update holdfast_gate set until_us = until_us - :by_us
 where flow_limit = :number and until_us > :above_us;

-- name: gates_stalled
-- Find some gates where jobs are parked although none holds a permit and no wake row looks at the gate: a defect.
select gate from holdfast_gate g
 where exists (select 1 from holdfast_job j where j.gate = g.gate and j.rare_state = {parked})
   and not exists (select 1 from holdfast_job j where j.gate = g.gate and j.rare_state = {ready})
   and not exists (select 1 from holdfast_job j where j.gate = g.gate and j.rare_state = {running})
   and not exists (select 1 from holdfast_wake w where w.target = 'gate' and w.number = g.gate)
 limit :limit;

-- name: gates_start
-- Write how far starts have used up rates, of gates with equally many starts.
update holdfast_gate set until_us = max(until_us, :now_us) + :cost_us where gate in (select value from json_each(:gates));

-- name: gates_use
-- For each gate: the number of jobs that hold a permit, and whether any is parked at it.
select value,
       (select count(*) from holdfast_job where gate = value and rare_state = {running}),
       exists (select 1 from holdfast_job where gate = value and rare_state = {parked})
  from json_each(:gates);

-- name: gates_waiting
-- List the newest gates that are closed or at which jobs are parked; count these, and find the one that was due first.
with g as (select gate, flow_limit, key, closed_until_ms from holdfast_gate order by gate desc limit :gates),
     p as (select w.gate, count(*) as parked, min(w.due_at_ms) as due_at_ms
             from (select j.gate, j.due_at_ms
                   from g cross join holdfast_job j on j.gate = g.gate and j.rare_state = {parked}
                 limit :maximum) w
            group by w.gate)
select g.flow_limit, g.key, g.closed_until_ms, coalesce(p.parked, 0), p.due_at_ms
  from g left join p on p.gate = g.gate
 where p.gate is not null or g.closed_until_ms > :now;

-- name: job_claim_gated
-- As job_claim, for each job its index and gate: 1,024 times the gate plus the index.
update holdfast_job
   set state = {running}, epoch = epoch + 1, attempt = attempt + 1, claim_index = p.value & 1023,
       gate = nullif(p.value >> 10, 0),
       rare_state = case when rare_state is not null or p.value > 1023 then {running} end,
       holder = (select holder from holdfast_holder where worker = :worker and incarnation = :incarnation),
       lease_token = :lease_token, lease_until_ms = :lease_until_ms, started_at_ms = :started_at_ms, phase = null,
       percent = null, extra = nullif(json_remove(extra, '$.outcome', '$.settle_digest'), '{}'),
       unacknowledged = case when p.value & 1023 < :acknowledged then 0 else unacknowledged + 1 end
  from json_each(:claimed) p
 where seq = cast(p.key as integer) and +state = {ready}
   and exists (select 1 from holdfast_holder where worker = :worker and incarnation = :incarnation
                  and used_at_ms > :started_at_ms - 3600000);

-- name: jobs_at_gates
-- Read the gates of jobs, and the keys and weights that they were given.
select j.seq, j.gate, k.key, k.weight from holdfast_job j
  left join holdfast_limit_key k on k.seq = j.seq
 where j.seq in (select value from json_each(:seqs));

-- name: jobs_parked
-- Read parked jobs.
select * from holdfast_job_row
 where seq in (select value from json_each(:seqs)) and state_number = {parked}
 order by seq;

-- name: jobs_running_on_routes
-- Read some running jobs on routes, after a number.
select * from holdfast_job_row
 where state_number = {running} and ends_at_ms > 0 and seq > :after
   and seq in (select seq from holdfast_job j where j.state = {running} and j.route in (select value from json_each(:routes)))
 order by seq
 limit :limit;

-- name: jobs_uncounted
-- Read some running jobs on routes that no gate counts: jobs without a key, or a defect.
select * from holdfast_job_row
 where state_number = {running} and ends_at_ms > 0 and seq > :after
   and seq in (select seq from holdfast_job j where j.state = {running} and j.route in (select value from json_each(:routes))
                  and not exists (select 1 from holdfast_gate g where g.gate = j.gate))
 order by seq
 limit :limit;

-- name: jobs_set_gates
-- Write the gates of jobs, one for each row of values.
update holdfast_job
   set gate = ?1, rare_state = case when coalesce(rare_state, ?1) is not null then state end
 where seq = ?2;

-- name: limit_delete
-- Delete a limit.
delete from holdfast_flow_limit where number = :number;

-- name: limit_insert
-- Store a limit.
insert into holdfast_flow_limit (name, kinds, lanes, key_source, concurrency, rate, period_ms, burst, weight)
values (:name, :kinds, :lanes, :key_source, :concurrency, :rate, :period_ms, :burst, :weight)
returning number;

-- name: limit_keys_delete
-- Delete the keys that jobs were given.
delete from holdfast_limit_key where seq in (select value from json_each(:seqs));

-- name: limit_keys_insert
-- Store the keys and weights that jobs were given, one for each row of values.
insert into holdfast_limit_key (seq, key, weight) values (?, ?, ?);

-- name: limit_write
-- Store the numbers of a changed limit.
update holdfast_flow_limit
   set concurrency = :concurrency, rate = :rate, period_ms = :period_ms, burst = :burst,
       weight = :weight
 where number = :number;

-- name: limits_all
-- Read all limits.
select number, name, kinds, lanes, key_source, concurrency, rate, period_ms, burst, weight from holdfast_flow_limit order by name;

-- name: limits_use
-- Record that the store has limits.
update holdfast_meta set value = '1' where name = 'limits';

-- name: limits_used
-- Read whether the store has limits.
select value from holdfast_meta where name = 'limits';

-- name: wake_gates
-- Append wake rows of the gates of jobs, if a job is parked there, or the gate was closed. There is one writer: whatever is
-- parked later sees that these jobs have left the gate. The cross joins look first whether any gate has either.
insert into holdfast_wake (at_ms, target, number)
select distinct 0, 'gate', g.gate
  from (select 1 where exists (select 1 from holdfast_job where gate is not null and rare_state = {parked})
                    or exists (select 1 from holdfast_gate where closed_until_ms > 0)) waiting
 cross join json_each(:seqs) s
 cross join holdfast_job e on e.seq = s.value
 cross join holdfast_gate g on g.gate = e.gate
 where g.closed_until_ms > 0
    or exists (select 1 from holdfast_job j where j.gate = g.gate and j.rare_state = {parked});

-- name: wake_gates_of_limit
-- Append wake rows of all gates of a limit.
insert into holdfast_wake (at_ms, target, number)
select 0, 'gate', gate from holdfast_gate where flow_limit = :number;
