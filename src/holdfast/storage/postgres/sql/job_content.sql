-- Give a job another payload.
update holdfast.job
   set payload = %(payload)s, headers = %(headers)s, tags = %(tags)s, event_count = %(event_count)s
 where seq = %(seq)s
