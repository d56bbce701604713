-- Read which migrations were applied, with their checksums.
select number, checksum from holdfast_migration
