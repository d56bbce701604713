"""The part of the storage contract for the content of jobs besides their rows: output, artifacts and uploads."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from holdfast.domain import clock, job, output
from holdfast.domain.artifacts import ArtifactRow, UploadRow


class OutputJob(NamedTuple):
    """What a reader of a job's output needs of the job."""

    seq: int
    tenant: str
    state: job.State
    deadline_at_ms: int | None


class ContentTransaction(ABC):
    """The methods of a transaction for output, artifacts and uploads."""

    __slots__ = ()

    # --- output -----------------------------------------------------------------------------------------------------

    @abstractmethod
    async def output_job(self, job_id: str) -> OutputJob | None:
        """Return the job whose output is read, without locking it."""

    @abstractmethod
    async def output_after(self, seq: int, after: int, limit: int) -> list[output.OutputChunk]:
        """Return chunks of a job's output after a number, in order."""

    @abstractmethod
    async def output_ends(self, seqs: Sequence[int]) -> dict[int, output.StreamEnd]:
        """Return the last chunk of each job that has output, by the number of the job. The jobs must be locked."""

    @abstractmethod
    async def append_output(self, chunks: Sequence[tuple[job.JobRow, output.NewChunk]], now: clock.Now) -> None:
        """Store chunks, each written by the newest attempt of its job."""

    # --- artifacts --------------------------------------------------------------------------------------------------

    @abstractmethod
    async def artifacts(self, seq: int) -> list[ArtifactRow]:
        """Return the artifacts of a job, by name."""

    @abstractmethod
    async def artifact(self, seq: int, name: str) -> ArtifactRow | None:
        """Return one artifact of a job."""

    @abstractmethod
    async def write_artifacts(self, seq: int, artifacts: Sequence[ArtifactRow]) -> None:
        """Store artifacts of a job; an existing artifact of the same name is replaced, its upload is not."""

    @abstractmethod
    async def delete_artifacts(self, seq: int) -> None:
        """Delete the artifacts of a job, but not their uploads."""

    @abstractmethod
    async def delete_inputs(self, seq: int) -> None:
        """Delete the input artifacts of a job, but not their uploads."""

    # --- uploads ----------------------------------------------------------------------------------------------------

    @abstractmethod
    async def insert_upload(self, upload: UploadRow) -> None:
        """Store a new upload, unless one has its id."""

    @abstractmethod
    async def insert_bytes(self, tenant: str, data: bytes, digest: str) -> UploadRow:
        """Store *data* as a new, finished and linked upload."""

    @abstractmethod
    async def uploads(self, upload_ids: Sequence[str]) -> dict[str, UploadRow]:
        """Return the uploads with these ids."""

    @abstractmethod
    async def update_upload(self, upload: UploadRow) -> None:
        """Write the number of chunks, the size and the digest of an upload."""

    @abstractmethod
    async def insert_chunk(self, upload_id: str, number: int, data: bytes) -> None:
        """Store one chunk of an upload."""

    @abstractmethod
    async def upload_chunks(self, upload_id: str, first: int, limit: int) -> list[bytes]:
        """Return the bytes of chunks of an upload, from the chunk with the number *first*, in order."""

    @abstractmethod
    async def expire_uploads(self, upload_ids: Sequence[str], at_ms: int | None) -> None:
        """Let uploads expire at a time; None if they do not expire."""

    @abstractmethod
    async def expired_uploads(self, now: clock.Now, limit: int) -> list[tuple[str, int]]:
        """Return the ids and sizes of uploads that have expired."""

    @abstractmethod
    async def delete_chunks(self, upload_ids: Sequence[str], limit: int) -> int:
        """Delete chunks of uploads; return how many."""

    @abstractmethod
    async def delete_uploads(self, upload_ids: Sequence[str]) -> None:
        """Delete uploads that have no chunks left."""
