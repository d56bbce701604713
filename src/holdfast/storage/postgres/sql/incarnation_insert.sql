-- Note the newest start of an exclusive worker; of two at the same moment one is turned away and looks again.
insert into holdfast.incarnation (worker, incarnation, started_at_ms)
values (%(worker)s, %(incarnation)s, %(now)s)
