-- Delete the rows of workers that fell silent long ago, the oldest first, a bite of them.
delete from holdfast_worker
 where (worker, incarnation) in (select worker, incarnation from holdfast_worker
                                  where beat_at_ms < :before order by beat_at_ms limit :limit)
