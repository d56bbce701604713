-- Artifacts of jobs and the uploads that have their bytes.

-- name: artifact_of_job
-- Read one artifact of a job, without its bytes.
select name, media_type, size, digest, input, epoch, created_at_ms, upload from holdfast_artifact
 where seq = :seq and name = :name;

-- name: artifact_write
-- Store artifacts, one for each row of values; an existing one of the same name is replaced.
insert into holdfast_artifact (seq, name, media_type, size, digest, input, epoch, created_at_ms, upload)
values (?, ?, ?, ?, ?, ?, ?, ?, ?)
on conflict (seq, name) do update
   set media_type = excluded.media_type, size = excluded.size, digest = excluded.digest, input = excluded.input,
       epoch = excluded.epoch, created_at_ms = excluded.created_at_ms, upload = excluded.upload;

-- name: artifacts_of_job
-- Read the artifacts of a job by name, without their bytes.
select name, media_type, size, digest, input, epoch, created_at_ms, upload from holdfast_artifact
 where seq = :seq order by name;

-- name: inputs_delete
-- Delete the input artifacts of a job.
delete from holdfast_artifact where seq = :seq and input = 1;

-- name: upload_chunk_insert
-- Store chunks of uploads, one for each row of values.
insert into holdfast_upload_chunk (upload, number, data)
values (?, ?, ?);

-- name: upload_chunks
-- Read some chunks of an upload, in order.
select data from holdfast_upload_chunk
 where upload = :upload and number >= :first
 order by number
 limit :limit;

-- name: upload_chunks_delete
-- Delete some chunks of uploads.
delete from holdfast_upload_chunk
 where rowid in (select c.rowid from json_each(:uploads) u join holdfast_upload_chunk c on c.upload = u.value
                  limit :limit);

-- name: upload_insert
-- Store a new upload; one with this id stays as it is.
insert into holdfast_upload (upload, tenant, chunks, size, digest, expires_at_ms)
values (:upload, :tenant, :chunks, :size, :digest, :expires_at_ms)
on conflict (upload) do nothing;

-- name: upload_write
-- Write the size and digest of an upload.
update holdfast_upload set chunks = :chunks, size = :size, digest = :digest where upload = :upload;

-- name: uploads_by_id
-- Read uploads.
select upload, tenant, chunks, size, digest, expires_at_ms from holdfast_upload
 where upload in (select value from json_each(:uploads));

-- name: uploads_delete
-- Delete uploads.
delete from holdfast_upload where upload in (select value from json_each(:uploads));

-- name: uploads_expire
-- Let uploads expire at a time, or not at all.
update holdfast_upload set expires_at_ms = :expires_at_ms where upload in (select value from json_each(:uploads));

-- name: uploads_expired
-- Find some expired uploads, those that expired first.
select upload, size from holdfast_upload
 where expires_at_ms is not null and expires_at_ms <= :now
 order by expires_at_ms
 limit :limit;

-- name: uploads_of_jobs_expire
-- Let the uploads of the artifacts of jobs expire at a time.
update holdfast_upload set expires_at_ms = :now
 where upload in (select a.upload from holdfast_artifact a where a.seq in (select value from json_each(:seqs)));
