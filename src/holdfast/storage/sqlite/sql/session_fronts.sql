-- For each session: whether anything of it runs, and the first batch in its line. One with an empty line is left out.
select s.value, exists (select 1 from holdfast_job r where r.session = s.value and r.state = 'running'),
       j.seq, j.enqueue_seq, j.state, j.epoch, j.route, j.batch
  from json_each(:sessions) s
 cross join holdfast_job j
 where j.seq = (select f.seq from holdfast_job f
                 where f.session = s.value and f.session is not null
                   and (f.state = 'ready' or (f.state = 'scheduled' and f.epoch > 0))
                 order by f.enqueue_seq limit 1)
