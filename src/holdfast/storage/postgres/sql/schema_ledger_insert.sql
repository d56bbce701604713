-- Note that a migration was applied.
insert into holdfast.migration (number, name, checksum, applied_at_ms)
values (%(number)s, %(name)s, %(checksum)s, holdfast.clock_ms())
