-- Store artifacts, one for each row of values; one of the same name is replaced.
insert into holdfast_artifact (seq, name, media_type, size, epoch, created_at_ms, data)
values (?, ?, ?, ?, ?, ?, ?)
on conflict (seq, name) do update
   set media_type = excluded.media_type, size = excluded.size, epoch = excluded.epoch,
       created_at_ms = excluded.created_at_ms, data = excluded.data
