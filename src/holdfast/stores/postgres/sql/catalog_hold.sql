-- Keep everybody else from deciding by the catalog until it has been changed.
select pg_advisory_xact_lock('holdfast.meta'::regclass::oid::integer, 1)
