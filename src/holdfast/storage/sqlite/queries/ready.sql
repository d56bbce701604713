-- Ready jobs in claim order: levels, fairness, affinity. Nothing here scans.

-- name: ready_affinities
-- For each route: the affinities of ready jobs at one priority, in order, starting after one of them and wrapping
-- around.
with recursive
later (route, affinity, depth) as (
    select r.value, (select affinity from holdfast_job
                      where rare_state = {ready} and affinity is not null and route = r.value
                        and priority = :priority and affinity > :after
                      order by affinity limit 1), 1
      from json_each(:routes) r
    union all
    select l.route, (select affinity from holdfast_job
                      where rare_state = {ready} and affinity is not null and route = l.route
                        and priority = :priority and affinity > l.affinity
                      order by affinity limit 1), l.depth + 1
      from later l where l.affinity is not null and l.depth < :limit
),
earlier (route, affinity, depth) as (
    select r.value, (select affinity from holdfast_job
                      where rare_state = {ready} and affinity is not null and route = r.value
                        and priority = :priority
                      order by affinity limit 1), 1
      from json_each(:routes) r
    union all
    select e.route, (select affinity from holdfast_job
                      where rare_state = {ready} and affinity is not null and route = e.route
                        and priority = :priority and affinity > e.affinity
                      order by affinity limit 1), e.depth + 1
      from earlier e where e.affinity < :after and e.depth < :limit
)
select affinity from later where affinity is not null
union all
select affinity from earlier where affinity < :after;

-- name: ready_fair_keys
-- For each route: the next fair_keys with ready jobs at one priority, starting after the one served last and wrapping
-- around.
with recursive
later (route, fair_key, depth) as (
    select r.value, (select fair_key from holdfast_job
                      where state = {ready} and route = r.value and priority = :priority and fair_key > :last_fair_key
                      order by fair_key limit 1), 1
      from json_each(:routes) r
    union all
    select l.route, (select fair_key from holdfast_job
                      where state = {ready} and route = l.route and priority = :priority and fair_key > l.fair_key
                      order by fair_key limit 1), l.depth + 1
      from later l where l.fair_key is not null and l.depth < :limit
),
earlier (route, fair_key, depth) as (
    select r.value, (select fair_key from holdfast_job
                      where state = {ready} and route = r.value and priority = :priority
                      order by fair_key limit 1), 1
      from json_each(:routes) r
    union all
    select e.route, (select fair_key from holdfast_job
                      where state = {ready} and route = e.route and priority = :priority and fair_key > e.fair_key
                      order by fair_key limit 1), e.depth + 1
      from earlier e where e.fair_key <= :last_fair_key and e.depth < :limit
)
select route, fair_key from later where fair_key is not null
union all
select route, fair_key from earlier where fair_key <= :last_fair_key;

-- name: ready_fair_keys_beside
-- As ready_fair_keys, but only among jobs with one of these affinities.
with recursive
prefix (route, affinity) as materialized (
    select r.value, a.value from json_each(:routes) r join json_each(:affinities) a
),
later (route, affinity, fair_key, depth) as (
    select p.route, p.affinity, (select fair_key from holdfast_job
                                  where rare_state = {ready} and affinity is not null and affinity = p.affinity
                                    and route = p.route and priority = :priority and fair_key > :last_fair_key
                                  order by fair_key limit 1), 1
      from prefix p
    union all
    select l.route, l.affinity, (select fair_key from holdfast_job
                                  where rare_state = {ready} and affinity is not null and affinity = l.affinity
                                    and route = l.route and priority = :priority and fair_key > l.fair_key
                                  order by fair_key limit 1), l.depth + 1
      from later l where l.fair_key is not null and l.depth < :limit
),
earlier (route, affinity, fair_key, depth) as (
    select p.route, p.affinity, (select fair_key from holdfast_job
                                  where rare_state = {ready} and affinity is not null and affinity = p.affinity
                                    and route = p.route and priority = :priority
                                  order by fair_key limit 1), 1
      from prefix p
    union all
    select e.route, e.affinity, (select fair_key from holdfast_job
                                  where rare_state = {ready} and affinity is not null and affinity = e.affinity
                                    and route = e.route and priority = :priority and fair_key > e.fair_key
                                  order by fair_key limit 1), e.depth + 1
      from earlier e where e.fair_key <= :last_fair_key and e.depth < :limit
)
select route, fair_key, affinity from later where fair_key is not null
union all
select route, fair_key, affinity from earlier where fair_key <= :last_fair_key;

-- name: ready_heads
-- For each pair of route and fair_key: its first ready jobs at one priority.
select j.seq, j.route, j.affinity, j.fair_key, j.due_at_ms
  from json_each(:prefixes) p
 cross join holdfast_job j
 where j.seq in (select seq from holdfast_job
                  where state = {ready} and route = json_extract(p.value, '$[0]') and priority = :priority
                    and fair_key = json_extract(p.value, '$[1]')
                  order by due_at_ms, seq limit :limit);

-- name: ready_heads_beside
-- For each triple of route, fair_key and affinity: its first ready jobs at one priority.
select j.seq, j.route, j.affinity, j.fair_key, j.due_at_ms
  from json_each(:prefixes) p
 cross join holdfast_job j
 where j.seq in (select seq from holdfast_job
                  where rare_state = {ready} and affinity is not null and affinity = json_extract(p.value, '$[2]')
                    and route = json_extract(p.value, '$[0]') and priority = :priority
                    and fair_key = json_extract(p.value, '$[1]')
                  order by due_at_ms, seq limit :limit);

-- name: ready_heads_of_tenant
-- For each strict route: the first ready jobs of one tenant at one priority.
select j.seq, j.route, j.affinity, j.fair_key, j.due_at_ms
  from json_each(:prefixes) p
 cross join holdfast_job j
 where j.seq in (select seq from holdfast_job
                  where rare_state = {ready} and fair_key = '' and tenant = :tenant
                    and route = json_extract(p.value, '$[0]') and priority = :priority
                  order by due_at_ms, seq limit :limit);

-- name: ready_heads_of_tenant_beside
-- For each strict route and each affinity: the first ready jobs of one tenant at one priority.
select j.seq, j.route, j.affinity, j.fair_key, j.due_at_ms
  from json_each(:prefixes) p
 cross join holdfast_job j
 where j.seq in (select seq from holdfast_job
                  where rare_state = {ready} and fair_key = '' and affinity is not null
                    and affinity = json_extract(p.value, '$[2]') and tenant = :tenant
                    and route = json_extract(p.value, '$[0]') and priority = :priority
                  order by due_at_ms, seq limit :limit);

-- name: ready_plain_next
-- Read the next ready job of one route, with the fair_key served last and the number of the holder, if the routing is
-- current, nothing is due and the claim repeats no other. `top` is the first job of the highest priority.
select last.fair_key, {ready_columns}, {holder}
  from (select seq, priority from holdfast_job
         where state = {ready} and route = :route
         order by priority desc, fair_key, due_at_ms, seq limit 1) top
  left join holdfast_fair_key last on last.scope = :scope || top.priority
 cross join holdfast_job j
 where j.seq = coalesce(
    (select seq from holdfast_job
      where state = {ready} and route = :route and priority = top.priority and fair_key > last.fair_key
      order by fair_key, due_at_ms, seq limit 1),
    top.seq)
   and {nothing_precedes};

-- name: ready_plain_routes
-- As ready_plain_next, for several routes.
with top (route, priority) as materialized (
    select r.value, (select priority from holdfast_job
                      where state = {ready} and route = r.value
                      order by priority desc limit 1)
      from json_each(:routes) r
),
best (priority) as materialized (select max(priority) from top),
last (fair_key) as materialized (
    select fair_key from holdfast_fair_key where scope = :scope || (select priority from best)
),
head (seq) as materialized (
    select coalesce(
        (select seq from holdfast_job
          where state = {ready} and route = top.route and priority = top.priority
            and fair_key > (select fair_key from last)
          order by fair_key, due_at_ms, seq limit 1),
        (select seq from holdfast_job
          where state = {ready} and route = top.route and priority = top.priority
          order by fair_key, due_at_ms, seq limit 1))
      from top where priority = (select priority from best)
)
select (select fair_key from last), {ready_columns}, {holder}
  from holdfast_job j
 where j.seq = (select h.seq from head h cross join holdfast_job c
                 where c.seq = h.seq
                 order by c.fair_key <= (select fair_key from last), c.fair_key, c.due_at_ms, c.seq
                 limit 1)
   and {nothing_precedes};

-- name: ready_plain_lone
-- As ready_plain_stream, but without a row if ready jobs of the highest priority have different fair_keys. Most claims
-- have one, for which it takes a third of the time: it needs no temporary table.
with top (priority) as not materialized (
    select priority from holdfast_job where state = {ready} and route = :route order by priority desc limit 1
)
select (select fair_key from holdfast_fair_key where scope = :scope || (select priority from top)), {ready_columns},
       {holder}, 1
  from holdfast_job j
 where j.state = {ready} and j.route = :route and j.priority = (select priority from top)
   and (select fair_key from holdfast_job
         where state = {ready} and route = :route and priority = (select priority from top)
         order by fair_key limit 1)
     = (select fair_key from holdfast_job
         where state = {ready} and route = :route and priority = (select priority from top)
         order by fair_key desc limit 1)
   and {nothing_precedes}
 order by j.fair_key, j.due_at_ms, j.seq
 limit :limit;

-- name: ready_plain_stream
-- As ready_plain_next, for several jobs: the first ones of each of the next fair_keys, as many of each as the limit
-- needs if they take turns. The last columns are the holder and the place of the fair_key among them.
with recursive
top (priority) as materialized (
    select priority from holdfast_job where state = {ready} and route = :route order by priority desc limit 1
),
last (fair_key) as materialized (
    select fair_key from holdfast_fair_key where scope = :scope || (select priority from top)
),
least (fair_key) as materialized (
    select fair_key from holdfast_job
     where state = {ready} and route = :route and priority = (select priority from top)
     order by fair_key limit 1
),
next (place, fair_key, first) as materialized (
    select 1, first, first
      from (select coalesce((select fair_key from holdfast_job
                              where state = {ready} and route = :route and priority = (select priority from top)
                                and fair_key > (select fair_key from last)
                              order by fair_key limit 1), (select fair_key from least)) as first)
    union all
    select place + 1,
           nullif(coalesce((select fair_key from holdfast_job
                             where state = {ready} and route = :route and priority = (select priority from top)
                               and fair_key > next.fair_key
                             order by fair_key limit 1), (select fair_key from least)), first),
           first
      from next where fair_key is not null and place < :limit
),
share (jobs) as materialized (select (:limit + count(fair_key) - 1) / count(fair_key) from next)
select (select fair_key from last), {ready_columns}, {holder}, n.place
  from next n
 cross join holdfast_job j
 where n.fair_key is not null
   and j.seq in (select seq from holdfast_job
                  where state = {ready} and route = :route and priority = (select priority from top)
                    and fair_key = n.fair_key
                  order by due_at_ms, seq limit (select jobs from share))
   and {nothing_precedes};

-- name: ready_plain_streams
-- As ready_plain_stream, for several routes, in claim order. A fair_key may have more jobs than its share, but not all
-- of these were read.
with recursive
top (route, priority) as materialized (
    select r.value, (select priority from holdfast_job
                      where state = {ready} and route = r.value
                      order by priority desc limit 1)
      from json_each(:routes) r
),
best (priority) as materialized (select max(priority) from top),
served (route) as materialized (select route from top where priority = (select priority from best)),
last (fair_key) as materialized (
    select fair_key from holdfast_fair_key where scope = :scope || (select priority from best)
),
least (fair_key) as materialized (
    select min((select fair_key from holdfast_job
                 where state = {ready} and route = served.route and priority = (select priority from best)
                 order by fair_key limit 1))
      from served
),
next (place, fair_key, first) as materialized (
    select 1, first, first
      from (select coalesce((select min((select fair_key from holdfast_job
                                          where state = {ready} and route = served.route
                                            and priority = (select priority from best)
                                            and fair_key > (select fair_key from last)
                                          order by fair_key limit 1)) from served),
                            (select fair_key from least)) as first)
    union all
    select place + 1,
           nullif(coalesce((select min((select fair_key from holdfast_job
                                         where state = {ready} and route = served.route
                                           and priority = (select priority from best)
                                           and fair_key > next.fair_key
                                         order by fair_key limit 1)) from served),
                           (select fair_key from least)), first),
           first
      from next where fair_key is not null and place < :limit
),
share (jobs) as materialized (select (:limit + count(fair_key) - 1) / count(fair_key) from next),
head (seq, place, round) as materialized (
    select j.seq, n.place, row_number() over (partition by n.place order by j.due_at_ms, j.seq)
      from next n
     cross join served s
     cross join holdfast_job j
     where n.fair_key is not null
       and j.seq in (select seq from holdfast_job
                      where state = {ready} and route = s.route and priority = (select priority from best)
                        and fair_key = n.fair_key
                      order by due_at_ms, seq limit (select jobs from share))
)
select (select fair_key from last), {ready_columns}, {holder}, h.place
  from (select seq, place, round from head where round <= (select jobs from share)
         order by round, place limit :limit) h
 cross join holdfast_job j
 where j.seq = h.seq
   and {nothing_precedes}
 order by h.round, h.place;

-- name: ready_stream
-- Read the first ready jobs of one route, priority and fair_key. The plus before the value hides it from the planner,
-- which would otherwise compare it with the `fair_key = ''` of another partial index, and replan at every call.
select * from holdfast_job_row
 where seq in (select seq from holdfast_job
                where state = {ready} and route = :route and priority = :priority and fair_key = +:fair_key
                order by due_at_ms, seq limit :limit);

-- name: ready_tops
-- For each route: its highest priority with ready jobs, and the first and last fair_key there.
with top (route, priority) as materialized (
    select r.value, (select priority from holdfast_job
                      where state = {ready} and route = r.value
                      order by priority desc limit 1)
      from json_each(:routes) r
)
select route, priority,
       (select fair_key from holdfast_job
         where state = {ready} and route = top.route and priority = top.priority
         order by fair_key limit 1),
       (select fair_key from holdfast_job
         where state = {ready} and route = top.route and priority = top.priority
         order by fair_key desc limit 1)
  from top
 where priority is not null;

-- name: ready_tops_of_tenant
-- For each fair route: the highest priority at which one tenant has ready jobs, stepping down from the top. The plus
-- before the value matters: see ready_stream.
with recursive step (route, priority, found) as (
    select r.value, t.priority, exists (select 1 from holdfast_job
                                         where state = {ready} and route = r.value
                                           and priority = t.priority and fair_key = +:tenant)
      from json_each(:routes) r
      join holdfast_job t on t.seq = (select seq from holdfast_job
                                       where state = {ready} and route = r.value
                                       order by priority desc limit 1)
    union all
    select s.route, t.priority, exists (select 1 from holdfast_job
                                         where state = {ready} and route = s.route
                                           and priority = t.priority and fair_key = +:tenant)
      from step s
      join holdfast_job t on t.seq = (select seq from holdfast_job
                                       where state = {ready} and route = s.route and priority < s.priority
                                       order by priority desc limit 1)
     where not s.found
)
select route, priority, :tenant, :tenant from step where found;

-- name: ready_tops_of_tenant_strict
-- For each strict route: the highest priority at which one tenant has ready jobs.
with top (route, priority) as materialized (
    select r.value, (select priority from holdfast_job
                      where rare_state = {ready} and fair_key = '' and tenant = :tenant and route = r.value
                      order by priority desc limit 1)
      from json_each(:routes) r
)
select route, priority, '', '' from top where priority is not null;

-- name: ready_tops_one
-- As ready_tops, for one route.
select :value, priority,
       (select fair_key from holdfast_job
         where state = {ready} and route = :value and priority = top.priority
         order by fair_key limit 1),
       (select fair_key from holdfast_job
         where state = {ready} and route = :value and priority = top.priority
         order by fair_key desc limit 1)
  from (select priority from holdfast_job
         where state = {ready} and route = :value
         order by priority desc limit 1) top;
