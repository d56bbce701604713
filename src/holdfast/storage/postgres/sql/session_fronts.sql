-- For each session: whether anything of it runs, and the first batch in its line. One with an empty line is left out.
select s.number, exists (select 1 from holdfast.job r where r.session = s.number and r.state = 'running'),
       f.seq, f.enqueue_seq, f.state, f.epoch, f.route, f.batch
  from unnest(%(sessions)s::bigint[]) as s (number)
 cross join lateral (
    select j.seq, j.enqueue_seq, j.state, j.epoch, j.route, j.batch from holdfast.job j
     where j.session = s.number and j.session is not null and (j.state = 'ready' or (j.state = 'scheduled' and j.epoch > 0))
     order by j.enqueue_seq limit 1
 ) f
