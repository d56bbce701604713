-- Count the ready jobs of each route, up to so many.
select r.lane, r.kind, r.requires, (select count(*) from (select 1 from holdfast_job
                                               where state = 'ready' and route = r.route limit :most))
  from holdfast_route r
