-- Keep attempts that ended while their job goes on, one for each row of values, unless they are kept already.
insert into holdfast_attempt (
    seq, lease_token, settle_digest, epoch, number, worker, incarnation, started_at_ms, ended_at_ms, outcome,
    failure_class, failure_reason, failure_message, failure_traceback
) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
on conflict (seq, epoch) do nothing
