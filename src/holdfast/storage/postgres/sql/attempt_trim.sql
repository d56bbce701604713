-- Forget attempts of jobs older than the newest so many.
delete from holdfast.attempt a
 using unnest(%(c0)s::bigint[], %(c1)s::integer[]) as v (seq, epoch)
 where a.seq = v.seq and a.epoch <= v.epoch
