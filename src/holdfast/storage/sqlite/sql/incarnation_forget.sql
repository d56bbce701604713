-- Forget the oldest superseded starts of a worker beyond the newest so many.
delete from holdfast_incarnation
 where worker = :worker and superseded = 1
   and incarnation not in (select incarnation from holdfast_incarnation
                            where worker = :worker
                            order by started_at_ms desc limit :keep)
