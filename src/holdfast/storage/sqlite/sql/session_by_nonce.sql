-- Read the session that a worker claimed with a nonce of its choice, for a claim that is sent again.
select * from holdfast_session_row
 where claim_nonce is not null and claim_worker = :worker and claim_nonce = :nonce
