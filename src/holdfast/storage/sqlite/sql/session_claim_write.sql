-- Write a session's newest claim; while it is held, no head is on offer.
update holdfast_session
   set fence = :fence, claim_id = :claim_id, claim_worker = :worker, claim_nonce = :nonce, claim_token = :lease_token,
       head_route = null, head_class = null, head_turn = null, head_seq = null
 where number = :number
