-- Let only one process migrate at a time; released at the end of the transaction.
select pg_advisory_xact_lock(hashtext(%(schema)s), 2)
