-- Extend leases and write whether they are acknowledged, one for each row of values, but only of the claim they were
-- asked for.
update holdfast_job set lease_until_ms = ?, unacknowledged = ? where seq = ? and epoch = ?
