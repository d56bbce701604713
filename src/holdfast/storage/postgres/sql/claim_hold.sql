-- Wait for the same claim sent before, if it is still on its way, until that has ended.
select pg_advisory_xact_lock('holdfast.job'::regclass::oid::integer,
                             hashtext(concat_ws(chr(10), %(worker)s::text, %(token)s::text)))
