-- Forget the oldest superseded starts of a worker beyond the newest so many.
delete from holdfast.incarnation
 where worker = %(worker)s and superseded = 1
   and incarnation not in (select incarnation from holdfast.incarnation
                            where worker = %(worker)s
                            order by started_at_ms desc limit %(keep)s)
