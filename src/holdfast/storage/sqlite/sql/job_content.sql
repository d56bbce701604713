-- Give a job another payload.
update holdfast_job set payload = :payload, headers = :headers, tags = :tags, event_count = :event_count
 where seq = :seq
