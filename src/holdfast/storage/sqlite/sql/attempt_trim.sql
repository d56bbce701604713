-- Forget attempts of a job older than the newest so many, one job for each row of values.
delete from holdfast_attempt where seq = ? and epoch <= ?
