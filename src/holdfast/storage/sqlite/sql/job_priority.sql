-- Change the priority of a job.
update holdfast_job set priority = :priority, event_count = :event_count where seq = :seq
