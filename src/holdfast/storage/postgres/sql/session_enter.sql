-- Write the place of each session's newest batch.
update holdfast.session s set enqueue_seq = v.enqueue_seq
  from unnest(%(c0)s::bigint[], %(c1)s::bigint[]) as v (enqueue_seq, number)
 where s.number = v.number
