-- Write a session's newest claim; while it is held, no head is on offer.
update holdfast.session
   set fence = %(fence)s, claim_id = %(claim_id)s, claim_worker = %(worker)s, claim_nonce = %(nonce)s,
       claim_token = %(lease_token)s, head_route = null, head_class = null, head_turn = null, head_seq = null
 where number = %(number)s
