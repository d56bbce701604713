-- Artifacts of jobs and the uploads that have their bytes.

-- name: artifact_of_job
-- Read one artifact of a job, without its bytes.
select name, media_type, size, digest, input, epoch, created_at_ms, upload from holdfast.artifact
 where seq = %(seq)s and name = %(name)s;

-- name: artifact_write
-- Store artifacts; an existing one of the same name is replaced.
insert into holdfast.artifact (seq, name, media_type, size, digest, input, epoch, created_at_ms, upload)
select * from unnest(
    %(c0)s::bigint[], %(c1)s::text[], %(c2)s::text[], %(c3)s::bigint[], %(c4)s::text[], %(c5)s::boolean[],
    %(c6)s::integer[], %(c7)s::bigint[], %(c8)s::text[]
)
on conflict (seq, name) do update
   set media_type = excluded.media_type, size = excluded.size, digest = excluded.digest, input = excluded.input,
       epoch = excluded.epoch, created_at_ms = excluded.created_at_ms, upload = excluded.upload;

-- name: artifacts_of_job
-- Read the artifacts of a job by name, without their bytes.
select name, media_type, size, digest, input, epoch, created_at_ms, upload from holdfast.artifact
 where seq = %(seq)s order by name;

-- name: inputs_delete
-- Delete the input artifacts of a job.
delete from holdfast.artifact where seq = %(seq)s and input = true;

-- name: upload_chunk_insert
-- Store one chunk of an upload, with its bytes unencoded.
insert into holdfast.upload_chunk (upload, number, data)
values (%(c0)s, %(c1)s, %(c2)b);

-- name: upload_chunks
-- Read some chunks of an upload, in order.
select data from holdfast.upload_chunk
 where upload = %(upload)s and number >= %(first)s
 order by number
 limit %(limit)s;

-- name: upload_chunks_delete
-- Delete some chunks of uploads.
delete from holdfast.upload_chunk
 where ctid = any (array(select ctid from holdfast.upload_chunk where upload = any (%(uploads)s::text[])
                          limit %(limit)s));

-- name: upload_insert
-- Store a new upload; one with this id stays as it is.
insert into holdfast.upload (upload, tenant, chunks, size, digest, expires_at_ms)
values (%(upload)s, %(tenant)s, %(chunks)s, %(size)s, %(digest)s, %(expires_at_ms)s)
on conflict (upload) do nothing;

-- name: upload_write
-- Write the size and digest of an upload.
update holdfast.upload set chunks = %(chunks)s, size = %(size)s, digest = %(digest)s where upload = %(upload)s;

-- name: uploads_by_id
-- Read and lock uploads, in order.
select upload, tenant, chunks, size, digest, expires_at_ms from holdfast.upload
 where upload = any (%(uploads)s::text[])
 order by upload
/* lock: for update */;

-- name: uploads_delete
-- Delete uploads.
delete from holdfast.upload where upload = any (%(uploads)s::text[]);

-- name: uploads_expire
-- Let uploads expire at a time, or not at all.
update holdfast.upload set expires_at_ms = %(expires_at_ms)s::bigint where upload = any (%(uploads)s::text[]);

-- name: uploads_expired
-- Find and lock some expired uploads, those that expired first.
select upload, size from holdfast.upload
 where expires_at_ms is not null and expires_at_ms <= %(now)s
 order by expires_at_ms
 limit %(limit)s
/* lock: for update skip locked */;

-- name: uploads_of_jobs_expire
-- Let the uploads of the artifacts of jobs expire at a time.
update holdfast.upload set expires_at_ms = %(now)s
 where upload in (select a.upload from holdfast.artifact a where a.seq = any (%(seqs)s::bigint[]));
