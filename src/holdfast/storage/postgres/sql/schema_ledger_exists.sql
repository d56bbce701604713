-- Tell whether this schema has a list of applied migrations. Its rows are read, because what a function such as
-- to_regclass remembers may be older than the lock that was waited for.
select 1 from pg_class c
  join pg_namespace n on n.oid = c.relnamespace
 where n.nspname = %(schema)s and c.relname = 'migration'
