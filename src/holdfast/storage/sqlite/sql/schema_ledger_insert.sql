-- Note that a migration was applied.
insert into holdfast_migration (number, name, checksum, applied_at_ms) values (:number, :name, :checksum, :now)
