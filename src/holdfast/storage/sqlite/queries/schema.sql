-- The schema: its ledger, its identity, its health.

-- name: clock_latest_lease
-- Read the latest end of any lease that is still held.
select max(coalesce((select max(ends_at_ms) from holdfast_job where state = {running}), 0),
           coalesce((select max(lease_until_ms) from holdfast_session where lease_until_ms is not null), 0));

-- name: clock_read
-- Read the offset of the boot-time clock, and the boot it belongs to.
select value from holdfast_meta where name = 'lease_clock';

-- name: clock_write
-- Store the offset of the boot-time clock for this boot.
insert into holdfast_meta (name, value) values ('lease_clock', :value)
on conflict (name) do update set value = excluded.value;

-- name: health_integrity
-- Check the integrity of the file, up to the first error.
pragma quick_check(1);

-- name: health_journal_mode
-- Return the journal mode.
pragma journal_mode;

-- name: health_schema
-- Return the newest migration applied.
select max(name) from holdfast_migration;

-- name: health_synchronous
-- Return how writes are flushed to disk.
pragma synchronous;

-- name: health_version
-- Return the version of the SQLite library.
select sqlite_version();

-- name: schema_code_version_min
-- Read the lowest code version that may use this schema.
select value from holdfast_meta where name = 'code_version_min';

-- name: schema_ledger
-- Read which migrations were applied, with their checksums.
select number, checksum from holdfast_migration;

-- name: schema_ledger_create
-- Create the list of applied migrations.
create table if not exists holdfast_migration (
    number        integer primary key,
    name          text not null,
    checksum      text not null,
    applied_at_ms integer not null
) strict;

-- name: schema_ledger_exists
-- Return whether this database has a list of applied migrations.
select 1 from sqlite_master where type = 'table' and name = 'holdfast_migration';

-- name: schema_ledger_insert
-- Record that a migration was applied.
insert into holdfast_migration (number, name, checksum, applied_at_ms) values (:number, :name, :checksum, :now);
