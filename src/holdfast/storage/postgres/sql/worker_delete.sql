-- Delete the row of a start that has ended in good order.
delete from holdfast.worker where worker = %(worker)s and incarnation = %(incarnation)s
