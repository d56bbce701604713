-- Write what a running job says of itself.
update holdfast_job set phase = :phase, percent = :percent where seq = :seq and epoch = :epoch
