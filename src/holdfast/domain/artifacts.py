"""Artifacts: named bytes of a job, given directly or uploaded before, and their validated form for the store."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, NamedTuple, TypeAlias

from holdfast.domain import errors, limits, validation
from holdfast.domain.clock import Now
from holdfast.domain.results import ArtifactInfo

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Artifact:
    """Named, typed bytes that belong to a job. The name is a label, never a path."""

    name: str
    """Its name, unique within the job."""
    data: bytes = field(repr=False)
    """The bytes."""
    media_type: str = "application/octet-stream"
    """Its media type."""


@dataclass(frozen=True, slots=True)
class UploadedArtifact:
    """An artifact whose bytes were uploaded before; `Upload.artifact` creates it."""

    name: str
    """Its name, unique within the job."""
    upload_id: str
    """The id of the upload."""
    digest: str
    """The SHA-256 of the bytes, as 64 hexadecimal digits."""
    media_type: str = "application/octet-stream"
    """Its media type."""


AnyArtifact: TypeAlias = Artifact | UploadedArtifact
"""An artifact given as bytes, or uploaded before."""


@dataclass(frozen=True, slots=True)
class Upload:
    """Bytes that are uploaded in chunks, until an enqueue or settlement links them as an artifact."""

    id: str
    """Its id."""
    tenant: str
    """The tenant it belongs to."""
    chunks: int
    """How many chunks are stored; the next one has this number."""
    size: int
    """The number of bytes stored so far."""
    digest: str | None
    """The SHA-256 of the bytes, as 64 hexadecimal digits; None until the upload is finished."""
    expires_at: datetime | None
    """When it is deleted unless it is linked; None if it is."""

    def artifact(self, name: str, media_type: str = "application/octet-stream") -> UploadedArtifact:
        """Return the artifact with these bytes, to pass to `enqueue`, `attach` or `Done`."""
        if self.digest is None:
            raise errors.InvalidInput("upload", "is not finished; call uploads.finish first")
        return UploadedArtifact(name, self.id, self.digest, media_type)


class UploadRow(NamedTuple):
    """An upload in stored form."""

    id: str
    tenant: str
    chunks: int
    size: int
    digest: str | None
    expires_at_ms: int | None

    @property
    def upload(self) -> Upload:
        """The upload."""
        expires_at = None if self.expires_at_ms is None else validation.datetime_of(self.expires_at_ms)
        return Upload(self.id, self.tenant, self.chunks, self.size, self.digest, expires_at)


class ArtifactRow(NamedTuple):
    """An artifact of a job in stored form."""

    name: str
    media_type: str
    size: int
    digest: str
    input: int
    epoch: int
    created_at_ms: int
    upload_id: str

    @property
    def info(self) -> ArtifactInfo:
        """The artifact without its bytes."""
        created_at = validation.datetime_of(self.created_at_ms)
        return ArtifactInfo(
            self.name, self.media_type, self.size, self.digest, bool(self.input), self.epoch, created_at
        )


class CheckedArtifact(NamedTuple):
    """A validated artifact: its bytes, or the upload that has them."""

    name: str
    media_type: str
    digest: str
    data: bytes | None
    upload_id: str | None

    @property
    def content(self) -> tuple[str, str, str]:
        """What identifies the artifact: name, type and digest."""
        return (self.name, self.media_type, self.digest)


def check_artifacts(artifacts: Sequence[AnyArtifact]) -> tuple[CheckedArtifact, ...]:
    """Return *artifacts* if each has a valid name, type and size and no two share a name."""
    check_list(artifacts, "artifacts")
    if len(artifacts) > limits.ARTIFACTS_MAX:
        raise errors.InvalidInput(
            "artifacts", f"has {len(artifacts)} entries; the limit is {limits.ARTIFACTS_MAX}", limits.ARTIFACTS_MAX
        )
    seen: set[str] = set()
    size = 0
    for index, artifact in enumerate(artifacts):
        path = f"artifacts[{index}]"
        size += check_artifact(artifact, path)
        check_direct_size(size, f"{path}.data")
        if artifact.name in seen:
            raise errors.InvalidInput(f"{path}.name", f"{artifact.name!r} is given twice")
        seen.add(artifact.name)
    return tuple(map(_checked, artifacts))


def check_list(values: object, field: str) -> None:
    """Raise `InvalidInput` unless *values* is a list."""
    if isinstance(values, str | bytes) or not isinstance(values, Sequence):
        raise errors.InvalidInput(field, f"must be a list, not {type(values).__name__}")


def check_artifact(artifact: AnyArtifact, path: str) -> int:
    """Validate one artifact and return the number of bytes that it contains itself."""
    if not isinstance(artifact, Artifact | UploadedArtifact):
        raise errors.InvalidInput(path, f"must be an Artifact or UploadedArtifact, not {type(artifact).__name__}")
    name = validation.name(artifact.name, f"{path}.name")
    if "/" in name or "\\" in name or name in {".", ".."}:
        raise errors.InvalidInput(f"{path}.name", "is a label, not a path: it must not contain '/' or '\\'")
    validation.name(artifact.media_type, f"{path}.media_type")
    if isinstance(artifact, UploadedArtifact):
        validation.name(artifact.upload_id, f"{path}.upload_id")
        check_digest(artifact.digest, f"{path}.digest")
        return 0
    if not isinstance(artifact.data, bytes):
        raise errors.InvalidInput(f"{path}.data", f"must be bytes, not {type(artifact.data).__name__}")
    return len(artifact.data)


def check_direct_size(size: int, field: str) -> None:
    """Raise `InvalidInput` if the artifacts that one job or outcome contains as bytes are too large together."""
    if size > limits.ARTIFACTS_DIRECT_BYTES_MAX:
        raise errors.InvalidInput(
            field,
            f"makes the artifacts given as bytes {size} bytes; the limit is {limits.ARTIFACTS_DIRECT_BYTES_MAX};"
            " upload larger ones first",
            limits.ARTIFACTS_DIRECT_BYTES_MAX,
        )


def direct_size(artifacts: Sequence[CheckedArtifact]) -> int:
    """Return the number of bytes that *artifacts* contain themselves."""
    return sum(len(artifact.data) for artifact in artifacts if artifact.data is not None)


def contents(artifacts: Sequence[CheckedArtifact]) -> list[tuple[str, str, str]]:
    """Return what identifies *artifacts*, in order of their names."""
    return sorted(artifact.content for artifact in artifacts)


def check_digest(digest: object, field: str = "digest") -> str:
    """Return *digest* if it is a SHA-256 as hexadecimal digits."""
    if not isinstance(digest, str) or _DIGEST.fullmatch(digest) is None:
        raise errors.InvalidInput(field, "must be a SHA-256 as 64 hexadecimal digits in lower case")
    return digest


def _checked(artifact: AnyArtifact) -> CheckedArtifact:
    if isinstance(artifact, UploadedArtifact):
        return CheckedArtifact(artifact.name, artifact.media_type, artifact.digest, None, artifact.upload_id)
    digest = hashlib.sha256(artifact.data).hexdigest()
    return CheckedArtifact(artifact.name, artifact.media_type, digest, artifact.data, None)


# --- uploads --------------------------------------------------------------------------------------------------------


def check_live(upload: UploadRow | None, upload_id: str, tenant: str | None, now: Now) -> UploadRow:
    """Return *upload* if *tenant* may use it and it has not expired, else raise `UploadNotFound`."""
    expired = upload is not None and upload.expires_at_ms is not None and upload.expires_at_ms <= now.wall_ms
    if upload is None or expired or tenant not in {None, upload.tenant}:
        raise errors.UploadNotFound(upload_id)
    return upload


def check_chunk(data: object) -> bytes:
    """Return *data* if it can be one chunk of an upload."""
    if not isinstance(data, bytes):
        raise errors.InvalidInput("data", f"must be bytes, not {type(data).__name__}")
    if not 0 < len(data) <= limits.ARTIFACT_CHUNK_BYTES:
        raise errors.InvalidInput("data", f"is {len(data)} bytes; a chunk has 1 to {limits.ARTIFACT_CHUNK_BYTES}")
    return data


def append_chunk(upload: UploadRow, number: int, data: bytes) -> UploadRow:
    """Return *upload* with one more chunk; raise if the chunk does not follow or is too large."""
    if number != upload.chunks:
        raise errors.Conflict(f"chunk {number} does not follow: upload {upload.id!r} has {upload.chunks} chunks")
    if upload.digest is not None:
        raise errors.Conflict(f"upload {upload.id!r} is finished")
    if upload.size != upload.chunks * limits.ARTIFACT_CHUNK_BYTES:
        raise errors.InvalidInput(
            "data", f"cannot follow: all chunks but the last must have {limits.ARTIFACT_CHUNK_BYTES} bytes"
        )
    size = upload.size + len(data)
    if size > limits.ARTIFACT_BYTES_MAX:
        raise errors.InvalidInput(
            "data",
            f"makes the upload {size} bytes; the limit is {limits.ARTIFACT_BYTES_MAX}",
            limits.ARTIFACT_BYTES_MAX,
        )
    return upload._replace(chunks=number + 1, size=size)


def check_linkable(upload: UploadRow, artifact: CheckedArtifact, path: str) -> None:
    """Raise unless *upload* is finished, has the bytes of *artifact* and belongs to no other artifact."""
    if upload.expires_at_ms is None:
        raise errors.Conflict(f"upload {upload.id!r} is already linked as an artifact; upload the bytes again")
    if upload.digest is None:
        raise errors.Conflict(f"upload {upload.id!r} is not finished; call uploads.finish first")
    if upload.digest != artifact.digest:
        raise errors.InvalidInput(f"{path}.digest", f"is not that of upload {upload.id!r}, which is {upload.digest}")
