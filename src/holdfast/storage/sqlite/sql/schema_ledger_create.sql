-- Create the list of applied migrations.
create table if not exists holdfast_migration (
    number        integer primary key,
    name          text not null,
    checksum      text not null,
    applied_at_ms integer not null
) strict
