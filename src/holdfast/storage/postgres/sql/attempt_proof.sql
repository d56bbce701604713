-- Read under which token and with which digest a kept attempt was settled.
select lease_token, settle_digest from holdfast.attempt where seq = %(seq)s and epoch = %(epoch)s
