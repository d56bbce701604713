-- Read some running jobs that other starts of a worker hold, locked in order for taking them back.
select * from holdfast.job_row
 where state = 'running' and worker = %(worker)s and incarnation <> %(incarnation)s
 order by seq
 limit %(limit)s
/* lock: for update */
