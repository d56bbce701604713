-- Tell the number of a session without locking it, for those who lock its batches first.
select number from holdfast_session where tenant = :tenant and name = :name
