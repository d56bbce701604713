# Generated from client/async_api/content.py by scripts/make-sync; do not edit.
"""The methods of a queue for the content of jobs: output streams, artifacts, and uploads of large ones."""

from __future__ import annotations

import hashlib
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO, Final

from holdfast.client import ids, validate_calls
from holdfast.client.sync_api.namespace import Namespace
from holdfast.domain import errors, limits, output, validation
from holdfast.domain.artifacts import AnyArtifact, Artifact, Upload, check_artifacts, check_chunk, check_digest
from holdfast.domain.claims import Claim, Lease, fence_of
from holdfast.domain.output import OutputChunk, OutputPage, OutputWrite
from holdfast.domain.results import ArtifactInfo
from holdfast.domain.validation import Duration
from holdfast.operations import artifacts as artifact_operations, maintenance, output as output_operations
from holdfast.storage import notifications
from holdfast.storage.runners import SyncRunner

# How often a reader of a stream looks if no notification comes.
_POLL_SECONDS: Final = 1.0
_NUMBER_MAX: Final = (1 << 62) - 1


class ContentWrites(ABC):
    """The methods of a queue and of a transaction that write the content of a running job."""

    _runner: SyncRunner

    # --- running attempts ------------------------------------------------------------------------------------------

    def emit(self, claim: Claim | Lease, text: str, *, part: int | None = None) -> int:
        """Append *text* to the output of a running job, or raise `LeaseLost`; return the number of its chunk.

        *part* is its index among the texts of this attempt, from 0: if the part is stored, the call changes nothing,
        so it may be sent again. Without it, every call appends.
        """
        if not output.check_text(text):
            raise errors.InvalidInput("text", "must not be empty")
        part = None if part is None else validation.integer(part, "part", 0, _NUMBER_MAX)
        held = self._claim_of(claim)
        [end] = self._runner.write(output_operations.append, [(held, OutputWrite(part, [text]))])
        if isinstance(end, errors.HoldfastError):
            raise end
        return end.number if part is None else end.number - (end.part - part)

    def attach(self, claim: Claim | Lease, artifacts: Sequence[AnyArtifact]) -> None:
        """Store artifacts of a running job, or raise `LeaseLost`; replace earlier outputs of the same names.

        Each is an `Artifact`, or of an upload `upload.artifact(name)`. Raises `Conflict` if an input of the job has
        the name.
        """
        checked = check_artifacts(artifacts)
        held = self._claim_of(claim)
        self._runner.write(artifact_operations.attach, fence_of(held), checked)

    @abstractmethod
    def _claim_of(self, held: Claim | Lease) -> Claim:
        """Return the claim of a running job."""


class ContentReads:
    """The methods of a queue that read the content of jobs."""

    _runner: SyncRunner

    # --- output ----------------------------------------------------------------------------------------------------

    def output(self, job_id: str, *, after: int = 0, limit: int = 100, tenant: str | None = None) -> OutputPage:
        """Return chunks of a job's output after the chunk with the number *after*, in order, without waiting.

        A page has up to *limit* chunks. Raises `JobNotFound` if there is no such job; with *tenant*, jobs of other
        tenants are not found.
        """
        after = validation.integer(after, "after", 0, _NUMBER_MAX)
        limit = validation.integer(limit, "limit", 1, limits.OUTPUT_PAGE_MAX)
        job_id, tenant = validate_calls.job_id(job_id), validate_calls.tenant(tenant)
        page, _ = self._runner.read(output_operations.read, job_id, after, limit, tenant)
        return page

    def stream(
        self,
        job_id: str,
        *,
        after: int = 0,
        timeout: Duration | None = None,
        tenant: str | None = None,
    ) -> Iterator[OutputChunk]:
        """Iterate over a job's output after the chunk with the number *after*, and follow it until the job finishes.

        To continue after an interruption, pass the number of the last chunk. Raises `JobNotFound`, also if the job is
        deleted, and `WaitTimeout` after it has waited for *timeout* seconds in total, by default never. With
        *tenant*, jobs of other tenants are not found.
        """
        after = validation.integer(after, "after", 0, _NUMBER_MAX)
        job_id, tenant = validate_calls.job_id(job_id), validate_calls.tenant(tenant)
        allowed_ms = None if timeout is None else validation.duration_ms(timeout, "timeout", 0, limits.WAIT_MS_MAX)
        left = allowed = float("inf") if allowed_ms is None else allowed_ms / 1000
        limit, read = limits.OUTPUT_PAGE_MAX, output_operations.read
        with self._runner.listen(notifications.output_topic(job_id), notifications.job_topic(job_id)) as listener:
            while True:
                began = time.monotonic()
                page, overdue = self._runner.read(read, job_id, after, limit, tenant, max(left, 0.0))
                left -= time.monotonic() - began
                for chunk in page:
                    after = chunk.number
                    yield chunk
                if page.ended:
                    return
                if overdue:
                    # No worker has failed the job since its deadline passed, so the reader does.
                    self._runner.write(maintenance.fail_late_jobs)
                elif len(page) < limit:
                    if left <= 0:
                        raise errors.WaitTimeout(job_id, allowed)
                    left -= listener.wait(min(_POLL_SECONDS, left))

    # --- artifacts -------------------------------------------------------------------------------------------------

    def artifacts(self, job_id: str, *, tenant: str | None = None) -> list[ArtifactInfo]:
        """Return the artifacts of a job, inputs and outputs, sorted by name, without their bytes.

        Raises `JobNotFound` if there is no such job; with *tenant*, jobs of other tenants are not found.
        """
        job_id, tenant = validate_calls.job_id(job_id), validate_calls.tenant(tenant)
        return self._runner.read(artifact_operations.artifacts, job_id, tenant)

    def artifact(self, job_id: str, name: str, *, tenant: str | None = None) -> Artifact:
        """Return one artifact with its bytes, or raise `JobNotFound` or `ArtifactNotFound`.

        Use `artifact_chunks` for large ones. With *tenant*, jobs of other tenants are not found.
        """
        job_id, name = validate_calls.job_id(job_id), validation.name(name, "name")
        tenant = validate_calls.tenant(tenant)
        return self._runner.read(artifact_operations.artifact, job_id, name, tenant)

    def delete_artifacts(self, job_id: str, *, tenant: str | None = None) -> None:
        """Delete the artifacts of a finished job, inputs and outputs.

        The job itself stays. Their bytes are deleted by the next maintenance of a worker, about a minute later, or by
        `admin.prune`. Raises `JobNotFound`, and `Conflict` if the job has not finished. With *tenant*, jobs of other
        tenants are not found.
        """
        job_id, tenant = validate_calls.job_id(job_id), validate_calls.tenant(tenant)
        self._runner.write(artifact_operations.delete, job_id, tenant)

    def artifact_chunks(
        self, job_id: str, name: str, *, offset: int = 0, size: int | None = None, tenant: str | None = None
    ) -> Iterator[bytes]:
        """Iterate over the bytes of an artifact, at most 256 KiB at a time, each read in its own short transaction.

        *offset* and *size* select a range, in bytes; a range beyond the end is cut off. Raises `JobNotFound`, and
        `ArtifactNotFound`, also if the artifact is deleted while it is read. With *tenant*, jobs of other tenants are
        not found.
        """
        job_id, name = validate_calls.job_id(job_id), validation.name(name, "name")
        tenant = validate_calls.tenant(tenant)
        offset = validation.integer(offset, "offset", 0, _NUMBER_MAX)
        size = _NUMBER_MAX if size is None else validation.integer(size, "size", 0, _NUMBER_MAX)
        found = self._runner.read(artifact_operations.find, job_id, name, tenant)
        step, end = limits.ARTIFACT_CHUNK_BYTES, min(offset + size, found.size)
        while offset < end:
            number, start = divmod(offset, step)
            chunk = self._runner.read(artifact_operations.chunk, found.upload_id, number)
            if chunk is None:
                raise errors.ArtifactNotFound(job_id, name)
            part = chunk[start : end - number * step]
            offset += len(part)
            yield part


class Uploads(Namespace):
    """Uploads bytes of large artifacts in short commits, before a call links them: `queue.uploads`."""

    def send(
        self,
        source: bytes | BinaryIO | Iterable[bytes],
        *,
        tenant: str = "default",
        expires: Duration = 86_400.0,
    ) -> Upload:
        """Upload bytes, a binary file or an iterable of bytes, up to 64 MiB, and return the finished upload.

        Use `Upload.artifact` to link it, to a job of *tenant*. It is deleted after *expires* seconds, by default a
        day, unless linked.
        """
        pieces = validate_calls.pieces(source)
        upload = self.begin(tenant=tenant, expires=expires)
        digest = hashlib.sha256()
        for chunk in pieces:
            digest.update(chunk)
            upload = self.append(upload.id, upload.chunks, chunk, tenant=tenant)
        return self.finish(upload.id, size=upload.size, digest=digest.hexdigest(), tenant=tenant)

    def begin(self, *, tenant: str = "default", expires: Duration = 86_400.0) -> Upload:
        """Begin an upload of up to 64 MiB in chunks; it is deleted after *expires* seconds unless linked.

        It belongs to *tenant*, and so must the job that links it. The default of *expires* is a day.
        """
        tenant = validation.name(tenant, "tenant")
        expires_ms = validation.duration_ms(expires, "expires", 1, limits.UPLOAD_MS_MAX)
        return self._runner.write(artifact_operations.begin_upload, ids.upload_id(), tenant, expires_ms)

    def append(self, upload_id: str, number: int, data: bytes, *, tenant: str | None = None) -> Upload:
        """Store the chunk with this *number*, from 0. All chunks but the last have 256 KiB.

        The call may be sent again. Raises `UploadNotFound`, and `Conflict` if the chunk does not follow, is stored
        with other bytes, or the upload is finished. With *tenant*, uploads of other tenants are not found.
        """
        upload_id, tenant = validation.name(upload_id, "upload_id"), validate_calls.tenant(tenant)
        number = validation.integer(number, "number", 0, _NUMBER_MAX)
        checked = check_chunk(data)
        return self._runner.write(artifact_operations.append_upload, upload_id, number, checked, tenant)

    def finish(
        self, upload_id: str, *, size: int | None = None, digest: str | None = None, tenant: str | None = None
    ) -> Upload:
        """Read the bytes of an upload back, and finish it if they have this *size* and SHA-256 *digest*, if given.

        *size* is in bytes, *digest* has 64 hexadecimal digits. The call may be sent again. The upload can then be
        linked as an artifact, once. Raises `UploadNotFound`; with *tenant*, uploads of other tenants are not found.
        """
        upload_id, tenant = validation.name(upload_id, "upload_id"), validate_calls.tenant(tenant)
        size = None if size is None else validation.integer(size, "size", 0, limits.ARTIFACT_BYTES_MAX)
        digest = None if digest is None else check_digest(digest)
        upload = self._runner.read(artifact_operations.live_upload, upload_id, tenant)
        computed = hashlib.sha256()
        number = 0
        while number < upload.chunks:
            chunks = self._runner.read(artifact_operations.upload_chunks, upload_id, number)
            if not chunks:
                raise errors.UploadNotFound(upload_id)
            for chunk in chunks[: upload.chunks - number]:
                computed.update(chunk)
                number += 1
        expected = artifact_operations.ExpectedUpload(size, digest)
        return self._runner.write(
            artifact_operations.finish_upload, upload_id, upload.chunks, computed.hexdigest(), tenant, expected
        )
