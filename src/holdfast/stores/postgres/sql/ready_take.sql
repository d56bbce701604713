-- Lock those of the chosen jobs that are still ready and that nobody else has in hand, in the order of the choice.
select w.* from unnest(%(seqs)s::bigint[]) with ordinality as p (seq, place)
  join holdfast.job_row w on w.seq = p.seq
 where w.state = 'ready' and w.priority = %(priority)s
 order by p.place
 limit %(limit)s
   for update of w skip locked
