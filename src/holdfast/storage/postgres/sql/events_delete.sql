-- Delete the log up to one event of one transaction.
delete from holdfast.event where (xid, event) <= (%(transaction)s::xid8, %(event)s)
