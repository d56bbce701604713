-- Lock those of the chosen jobs that are still ready and that nobody else has in hand, in the order of the choice. The
-- state is hidden from the planner, which would else go through all ready jobs rather than straight to the chosen.
select * from holdfast.job_row
 where seq = any (%(seqs)s::bigint[]) and coalesce(state, '') = 'ready' and priority = %(priority)s
 order by array_position(%(seqs)s::bigint[], seq)
 limit %(limit)s
   for update skip locked
