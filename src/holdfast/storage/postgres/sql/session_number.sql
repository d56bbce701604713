-- Tell the number of a session without locking it, for those who lock its batches first.
select number from holdfast.session where tenant = %(tenant)s and name = %(name)s
