-- As ready_tops, for one route.
select :value, priority,
       (select turn from holdfast_job
         where state = 'ready' and route = :value and priority = top.priority
         order by turn limit 1),
       (select turn from holdfast_job
         where state = 'ready' and route = :value and priority = top.priority
         order by turn desc limit 1)
  from (select priority from holdfast_job
         where state = 'ready' and route = :value
         order by priority desc limit 1) top
