-- Why a job waits: its place among others.

-- name: why_durations
-- Read how long some of the jobs of a route have run that finished last.
select finished_at_ms - started_at_ms
  from (select route, started_at_ms, finished_at_ms from holdfast_job
         where ends_at_ms is not null and state = {done}
         order by ends_at_ms desc
         limit 500)
 where route = :route and started_at_ms is not null
 limit :limit;

-- name: why_entries
-- Count the unfinished entries of a session before one of them, up to a maximum.
select count(*) from (select 1 from holdfast_job
                       where session = :session and enqueue_seq < :enqueue_seq and state < {done} limit :maximum);

-- name: why_ready
-- Count the ready jobs of some routes that come before a job: those of higher priority, and earlier ones with its fair_key.
select (select count(*) from (select 1 from json_each(:routes) r cross join holdfast_job j
                               where j.route = r.value and j.state = {ready} and j.priority > :priority limit :maximum)),
       (select count(*) from (select 1 from json_each(:routes) r cross join holdfast_job j
                               where j.route = r.value and j.state = {ready} and j.priority = :priority
                                 and j.fair_key = :fair_key and (j.due_at_ms, j.seq) < (:due_at_ms, :seq)
                               limit :maximum));

-- name: why_tenants
-- Count the fair_keys with ready jobs of a route at one priority, up to a maximum.
with recursive turn (fair_key, depth) as (
    select (select fair_key from holdfast_job
             where state = {ready} and route = :route and priority = :priority
             order by fair_key limit 1), 1
    union all
    select (select j.fair_key from holdfast_job j
             where j.state = {ready} and j.route = :route and j.priority = :priority and j.fair_key > t.fair_key
             order by j.fair_key limit 1), t.depth + 1
      from turn t where t.fair_key is not null and t.depth < :maximum
)
select count(fair_key) from turn;
