-- Note the newest start of an exclusive worker.
insert into holdfast_incarnation (worker, incarnation, started_at_ms) values (:worker, :incarnation, :now)
