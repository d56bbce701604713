-- Changes by operators: priority, kinds.

-- name: job_priority
-- Change the priority of a job.
update holdfast_job set priority = :priority, event_count = :event_count where seq = :seq;

-- name: jobs_waiting_on_routes
-- Find the next waiting jobs of some routes in enqueue order, for iterating over all of them in read transactions.
select seq from holdfast_job
 where seq > :after and state < {running}
   and route in (select value from json_each(:routes))
 order by seq
 limit :limit;
