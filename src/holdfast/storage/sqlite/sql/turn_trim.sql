-- Forget the rounds unused for longest beyond so many; a round that is forgotten starts anew.
delete from holdfast_turn
 where scope in (select scope from holdfast_turn order by used_at_ms desc limit -1 offset :keep)
