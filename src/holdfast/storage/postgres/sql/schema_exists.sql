-- Tell whether the schema is there.
select 1 from pg_namespace where nspname = %(schema)s
