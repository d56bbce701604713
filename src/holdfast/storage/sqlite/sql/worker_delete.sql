-- Delete the row of a start that has ended in good order.
delete from holdfast_worker where worker = :worker and incarnation = :incarnation
