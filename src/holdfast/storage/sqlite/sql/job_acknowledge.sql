-- Acknowledge claims, one for each row of values, where they are still held.
update holdfast_job set unacknowledged = 0
 where seq = ? and epoch = ? and lease_token = ? and state = 'running' and lease_until_ms > ?
