-- Extend leases, one for each row of values, but only of the claim they were asked for.
update holdfast_job set lease_until_ms = ? where seq = ? and epoch = ?
