-- Store many new jobs that nobody else can know: fresh ids, no dedupe keys.
copy holdfast.job (
    route, seq, id, state, tenant, turn, priority, affinity, payload, headers, tags,
    enqueued_at_ms, due_at_ms, deadline_at_ms, max_attempts, backoff,
    dedupe_key, dedupe_kind, predecessor, digest, record_all, event_count
) from stdin
