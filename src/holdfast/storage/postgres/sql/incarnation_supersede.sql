-- Mark every start of an exclusive worker as superseded.
update holdfast.incarnation set superseded = 1 where worker = %(worker)s and superseded = 0
