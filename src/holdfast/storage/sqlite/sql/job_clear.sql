-- Write jobs that are suspect no more, one for each row of values, but only onto the epoch each was decided for.
update holdfast_job set suspect = ?, failure_reason = ?, failure_message = ? where seq = ? and epoch = ?
