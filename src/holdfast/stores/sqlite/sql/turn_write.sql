-- Remember which turn a subscription served last.
insert into holdfast_turn (subscription, turn) values (:subscription, :turn)
on conflict (subscription) do update set turn = excluded.turn
