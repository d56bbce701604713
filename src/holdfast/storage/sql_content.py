"""Output streams, artifacts and uploads by named queries."""

import secrets
from collections.abc import Sequence

from holdfast.domain import clock, limits, output, validation
from holdfast.domain.artifacts import ArtifactRow, UploadRow
from holdfast.domain.job import JobRow
from holdfast.storage.content import OutputJob
from holdfast.storage.sql_queries import SqlQueries


class SqlContent(SqlQueries):
    """Output streams, artifacts and uploads."""

    __slots__ = ()

    async def output_job(self, job_id: str) -> OutputJob | None:
        """Return the job whose output is read."""
        rows = await self.query("output_job", {"id": job_id})
        return OutputJob._make(rows[0]) if rows else None

    async def output_after(self, seq: int, after: int, limit: int) -> list[output.OutputChunk]:
        """Return chunks of a job's output after a number."""
        rows = await self.query("output_after", {"seq": seq, "after": after, "limit": limit})
        return [
            output.OutputChunk(number, attempt, epoch, validation.datetime_of(at_ms), text)
            for number, attempt, epoch, at_ms, text in rows
        ]

    async def output_ends(self, seqs: Sequence[int]) -> dict[int, output.StreamEnd]:
        """Return the last chunk of each job that has output."""
        return {seq: output.StreamEnd(*end) for seq, *end in await self.query("output_ends", {"seqs": list(seqs)})}

    async def append_output(self, chunks: Sequence[tuple[JobRow, output.NewChunk]], now: clock.Now) -> None:
        """Store chunks."""
        rows = [
            (job.seq, chunk.number, job.epoch, job.attempt, chunk.part, chunk.size, now.wall_ms, chunk.text)
            for job, chunk in chunks
        ]
        await self._change_rows("output_append", rows)

    # --- artifacts --------------------------------------------------------------------------------------------------

    async def artifacts(self, seq: int) -> list[ArtifactRow]:
        """Return the artifacts of a job."""
        return [ArtifactRow(*row) for row in await self.query("artifacts_of_job", {"seq": seq})]

    async def artifact(self, seq: int, name: str) -> ArtifactRow | None:
        """Return one artifact of a job."""
        rows = await self.query("artifact_of_job", {"seq": seq, "name": name})
        return ArtifactRow(*rows[0]) if rows else None

    async def write_artifacts(self, seq: int, artifacts: Sequence[ArtifactRow]) -> None:
        """Store artifacts of a job."""
        await self._change_rows("artifact_write", [(seq, *artifact) for artifact in artifacts])

    async def delete_artifacts(self, seq: int) -> None:
        """Delete the artifacts of a job."""
        await self.send("artifacts_delete", {"seqs": [seq]})

    async def delete_inputs(self, seq: int) -> None:
        """Delete the input artifacts of a job."""
        await self.send("inputs_delete", {"seq": seq})

    # --- uploads ----------------------------------------------------------------------------------------------------

    async def insert_upload(self, upload: UploadRow) -> None:
        """Store a new upload, unless one has its id."""
        values = {
            "upload": upload.id,
            "tenant": upload.tenant,
            "chunks": upload.chunks,
            "size": upload.size,
            "digest": upload.digest,
            "expires_at_ms": upload.expires_at_ms,
        }
        await self.send("upload_insert", values)

    async def insert_bytes(self, tenant: str, data: bytes, digest: str) -> UploadRow:
        """Store *data* as a linked upload."""
        step = limits.ARTIFACT_CHUNK_BYTES
        chunks = [data[start : start + step] for start in range(0, len(data), step)]
        upload = UploadRow(secrets.token_hex(16), tenant, len(chunks), len(data), digest, None)
        await self.insert_upload(upload)
        await self._change_rows(
            "upload_chunk_insert", [(upload.id, number, chunk) for number, chunk in enumerate(chunks)]
        )
        return upload

    async def uploads(self, upload_ids: Sequence[str]) -> dict[str, UploadRow]:
        """Return the uploads with these ids."""
        rows = await self.query("uploads_by_id", {"uploads": list(upload_ids)})
        return {row[0]: UploadRow(*row) for row in rows}

    async def update_upload(self, upload: UploadRow) -> None:
        """Write the progress of an upload."""
        values = {"upload": upload.id, "chunks": upload.chunks, "size": upload.size, "digest": upload.digest}
        await self._change("upload_write", values, 1)

    async def insert_chunk(self, upload_id: str, number: int, data: bytes) -> None:
        """Store one chunk of an upload."""
        await self._change_rows("upload_chunk_insert", [(upload_id, number, data)])

    async def upload_chunks(self, upload_id: str, first: int, limit: int) -> list[bytes]:
        """Return chunks of an upload."""
        rows = await self.query("upload_chunks", {"upload": upload_id, "first": first, "limit": limit})
        return [bytes(data) for (data,) in rows]

    async def expire_uploads(self, upload_ids: Sequence[str], at_ms: int | None) -> None:
        """Let uploads expire at a time."""
        await self._change("uploads_expire", {"uploads": list(upload_ids), "expires_at_ms": at_ms}, len(upload_ids))

    async def expired_uploads(self, now: clock.Now, limit: int) -> list[tuple[str, int]]:
        """Return uploads that have expired."""
        rows = await self.query("uploads_expired", {"now": now.wall_ms, "limit": limit})
        return [(upload_id, size) for upload_id, size in rows]

    async def delete_chunks(self, upload_ids: Sequence[str], limit: int) -> int:
        """Delete chunks of uploads."""
        [[deleted]] = await self.query("upload_chunks_delete", {"uploads": list(upload_ids), "limit": limit})
        return int(deleted)

    async def delete_uploads(self, upload_ids: Sequence[str]) -> None:
        """Delete uploads."""
        await self.send("uploads_delete", {"uploads": list(upload_ids)})
