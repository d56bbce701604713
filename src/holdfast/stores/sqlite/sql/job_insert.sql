-- Store new jobs, one for each row of values.
insert into holdfast_job (
    route, seq, id, state, tenant, turn, priority, affinity, payload, headers, tags,
    enqueued_at_ms, due_at_ms, deadline_at_ms, finished_at_ms, attempt, max_attempts, backoff, epoch,
    cancel_requested, suspect, deferrals, releases, dedupe_key, dedupe_kind, predecessor, digest,
    record_all, event_count
) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
