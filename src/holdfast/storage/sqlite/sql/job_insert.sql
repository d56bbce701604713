-- Store new jobs, one for each row of values.
insert into holdfast_job (
    route, seq, id, state, tenant, turn, priority, affinity, payload, headers, tags,
    enqueued_at_ms, due_at_ms, deadline_at_ms, max_attempts, backoff,
    dedupe_key, dedupe_kind, predecessor, digest, record_all, event_count,
    attempt, epoch, cancel_requested, suspect, deferrals, releases
) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, 0, 0, 0, 0, 0)
