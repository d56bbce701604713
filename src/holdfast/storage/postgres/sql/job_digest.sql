-- Write what tells whether a settlement sent again says the same, where the result alone does not tell it.
update holdfast.job j
   set settle_digest = d.digest
  from unnest(%(digests_0)s::bigint[], %(digests_1)s::text[]) as d (seq, digest)
 where j.seq = d.seq
