-- Change the priority of a job.
update holdfast.job set priority = %(priority)s, event_count = %(event_count)s where seq = %(seq)s
