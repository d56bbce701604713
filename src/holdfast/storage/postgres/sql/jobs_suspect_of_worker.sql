-- Read some waiting suspect jobs that one start of a worker held last; what is locked elsewhere is left out.
select * from holdfast.job_row
 where suspect = 1 and state in ('ready', 'scheduled', 'blocked') and worker = %(worker)s
   and incarnation = %(incarnation)s
 limit %(limit)s
/* lock: for update skip locked */
