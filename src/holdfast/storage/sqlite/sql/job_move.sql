-- Write what a transition changed, one job for each row of values, but only onto the epoch it was decided for.
update holdfast_job
   set state = ?, turn = ?, due_at_ms = ?, deadline_at_ms = ?, finished_at_ms = ?, attempt = ?, epoch = ?,
       worker = ?, incarnation = ?, lease_token = ?, lease_until_ms = ?, claim_place = ?, started_at_ms = ?, outcome = ?,
       settle_digest = ?, phase = ?, percent = ?, cancel_requested = ?, suspect = ?, deferrals = ?,
       deferred_since_ms = ?, releases = ?, failure_class = ?, failure_reason = ?, failure_message = ?,
       failure_traceback = ?, predecessor = ?, event_count = ?, result = ?, unacknowledged = ?
 where seq = ? and epoch = ?
