-- For each route: its highest priority with ready jobs, and the first and last turn there. A route may come with a mark:
-- at its priority, what stands before the turn, moment and number it names is known to be gone and not looked at.
with found as materialized (
    select r.*, coalesce(
             (select j.priority from holdfast.job j
               where j.state = 'ready' and j.route = r.route and j.priority > r.mark_priority
                 and j.seq <> all (%(taken)s::bigint[])
               order by j.priority desc limit 1),
             (select j.priority from holdfast.job j
               where j.state = 'ready' and j.route = r.route and j.priority = r.mark_priority
                 and (j.turn, j.due_at_ms, j.seq) >= (r.mark_turn, r.mark_due, r.mark_seq)
                 and j.seq <> all (%(taken)s::bigint[])
               order by j.turn, j.due_at_ms, j.seq limit 1),
             (select j.priority from holdfast.job j
               where j.state = 'ready' and j.route = r.route and j.priority < coalesce(r.mark_priority, 2147483647)
                 and j.seq <> all (%(taken)s::bigint[])
               order by j.priority desc limit 1)
           ) as priority
      from unnest(
        %(routes)s::integer[], %(mark_priorities)s::integer[], %(mark_turns)s::text[], %(mark_dues)s::bigint[],
        %(mark_seqs)s::bigint[]
      ) as r (route, mark_priority, mark_turn, mark_due, mark_seq)
),
top (route, priority, turn_low, due_low, seq_low) as materialized (
    select f.route, f.priority,
           case when f.priority = f.mark_priority then f.mark_turn else '' end,
           case when f.priority = f.mark_priority then f.mark_due else -1 end,
           case when f.priority = f.mark_priority then f.mark_seq else -1 end
      from found f
)
select top.route, top.priority,
       (select j.turn from holdfast.job j
         where j.state = 'ready' and j.route = top.route and j.priority = top.priority
           and (j.turn, j.due_at_ms, j.seq) >= (top.turn_low, top.due_low, top.seq_low)
           and j.seq <> all (%(taken)s::bigint[])
         order by j.turn, j.due_at_ms, j.seq limit 1),
       (select j.turn from holdfast.job j
         where j.state = 'ready' and j.route = top.route and j.priority = top.priority
           and j.seq <> all (%(taken)s::bigint[])
         order by j.turn desc limit 1)
  from top
 where top.priority is not null
