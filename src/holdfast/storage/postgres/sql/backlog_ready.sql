-- Count the ready jobs of each route, up to so many.
select r.lane, r.kind, r.requires, (select count(*) from (select 1 from holdfast.job j
                                               where j.state = 'ready' and j.route = r.route
                                               limit %(most)s) counted)
  from holdfast.route r
