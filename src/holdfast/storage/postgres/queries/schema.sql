-- The schema: its ledger, its identity, its health.

-- name: health_oldest_transaction
-- Return for how many seconds the oldest transaction of the server has been open: it delays events and vacuum.
select coalesce(max(extract(epoch from clock_timestamp() - xact_start)), 0)::bigint from pg_stat_activity
 where backend_xid is not null or backend_xmin is not null;

-- name: health_schema
-- Return the newest migration applied.
select max(name) from holdfast.migration;

-- name: health_settings
-- Return the settings on which durability and vacuum depend.
select current_setting('fsync'), current_setting('full_page_writes'), current_setting('synchronous_commit'),
       current_setting('autovacuum'), current_setting('track_counts');

-- name: health_version
-- Return the version of the server.
select current_setting('server_version'), current_setting('server_version_num')::integer;

-- name: schema_code_version_min
-- Read the lowest code version that may use this schema.
select value from holdfast.meta where name = 'code_version_min';

-- name: schema_create
-- Create the schema that contains all tables and functions.
create schema holdfast;

-- name: schema_exists
-- Return whether the schema exists.
select 1 from pg_namespace where nspname = %(schema)s;

-- name: schema_identity
-- Read the identity of this store.
select value from holdfast.meta where name = 'identity';

-- name: schema_ledger
-- Read which migrations were applied, with their checksums.
select number, checksum from holdfast.migration;

-- name: schema_ledger_create
-- Create the list of applied migrations.
create table if not exists holdfast.migration (
    number        integer primary key,
    name          text not null,
    checksum      text not null,
    applied_at_ms bigint not null
);

-- name: schema_ledger_exists
-- Return whether this schema has a list of applied migrations. It reads the catalog, because the cache of a function
-- such as to_regclass may be older than the lock that was waited for.
select 1 from pg_class c
  join pg_namespace n on n.oid = c.relnamespace
 where n.nspname = %(schema)s and c.relname = 'migration';

-- name: schema_ledger_insert
-- Record that a migration was applied.
insert into holdfast.migration (number, name, checksum, applied_at_ms)
values (%(number)s, %(name)s, %(checksum)s, holdfast.clock_ms());

-- name: schema_lock
-- Let only one process migrate at a time; the lock is released at the end of the transaction.
select pg_advisory_xact_lock(hashtext(%(schema)s), 2);
