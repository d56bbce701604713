-- Forget the rounds unused for longest beyond so many; a round that is forgotten starts anew.
delete from holdfast.turn
 where scope in (select scope from holdfast.turn
                  order by used_at_ms desc offset %(keep)s
                    for update skip locked)
