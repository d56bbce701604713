-- Lock those of the chosen batches that are still ready and that nobody else has in hand: a claim, which has locked the
-- session, waits for no one who may be waiting for that.
select * from holdfast.job_row
 where seq = any (%(seqs)s::bigint[]) and coalesce(state, '') = 'ready'
 order by seq
   for update skip locked
