-- Remember which turn was served last in a round.
insert into holdfast_turn (scope, turn, used_at_ms) values (:scope, :turn, :now)
on conflict (scope) do update set turn = excluded.turn, used_at_ms = excluded.used_at_ms
