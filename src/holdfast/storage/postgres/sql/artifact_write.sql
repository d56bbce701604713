-- Store one artifact; one of the same name is replaced. Its bytes go as they are, so that each goes by itself.
insert into holdfast.artifact (seq, name, media_type, size, epoch, created_at_ms, data)
values (%(c0)s, %(c1)s, %(c2)s, %(c3)s, %(c4)s, %(c5)s, %(c6)b)
on conflict (seq, name) do update
   set media_type = excluded.media_type, size = excluded.size, epoch = excluded.epoch,
       created_at_ms = excluded.created_at_ms, data = excluded.data
