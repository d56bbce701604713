-- Read some running jobs of one start of a worker whose lease has lapsed; what is locked elsewhere is left out.
select * from holdfast.job_row
 where state = 'running' and worker = %(worker)s and incarnation = %(incarnation)s and lease_until_ms <= %(now)s
 limit %(limit)s
/* lock: for update skip locked */
