-- Write what tells whether a settlement sent again says the same, where the result alone does not tell it.
update holdfast_job
   set settle_digest = d.value
  from json_each(:digests) d
 where seq = cast(d.key as integer)
