-- Read the session that a worker claimed with a nonce of its choice, for a claim that is sent again.
select * from holdfast.session_row
 where claim_nonce is not null and claim_worker = %(worker)s and claim_nonce = %(nonce)s
/* lock: for update */
