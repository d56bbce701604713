-- Store one plain job under the catalog that the caller knows; no number if that has changed.
select seq, now_ms from holdfast.job_store(
    %(version)s, %(now)s, %(route)s, %(id)s, %(tenant)s, %(turn)s, %(priority)s, %(affinity)s,
    %(payload)s, %(headers)s, %(tags)s, %(max_attempts)s, %(backoff)s
)
