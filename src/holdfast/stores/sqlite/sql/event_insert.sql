-- Append to the event log, one event for each row of values.
insert into holdfast_event (name, at_ms, job_id, number, kind, lane, tenant, tags, details)
values (?, ?, ?, ?, ?, ?, ?, ?, ?)
