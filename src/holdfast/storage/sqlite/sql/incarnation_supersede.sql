-- Mark every start of an exclusive worker as superseded.
update holdfast_incarnation set superseded = 1 where worker = :worker and superseded = 0
