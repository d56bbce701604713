-- Put jobs into the turn their lane's order wants.
update holdfast.job j set turn = v.turn
  from unnest(%(c0)s::text[], %(c1)s::bigint[]) as v (turn, seq)
 where j.seq = v.seq
