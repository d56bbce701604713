-- Delete the rows of workers that fell silent long ago, a bite of them, past what another worker deletes.
delete from holdfast.worker
 where (worker, incarnation) in (select worker, incarnation from holdfast.worker
                                  where beat_at_ms < %(before)s
                                  order by beat_at_ms
                                  limit %(limit)s
                                    for update skip locked)
