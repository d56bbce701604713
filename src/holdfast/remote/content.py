"""What the operations on output, artifacts and uploads do over HTTP."""

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.domain import claims, errors, limits, output, results, strict_json, validation
from holdfast.domain.artifacts import Artifact, ArtifactRow, CheckedArtifact, Upload, UploadRow
from holdfast.operations import artifacts as artifact_operations, maintenance, output as output_operations
from holdfast.remote import calls, connection, decode, encode

# --- output --------------------------------------------------------------------------------------------------------


@calls.over_http(output_operations.read)
async def read_output(
    http: connection.Http, job_id: str, after: int, limit: int, tenant: str | None, wait_seconds: float = 0.0
) -> tuple[output.OutputPage, bool]:
    """Return chunks of a job's output; the server waits for one, and fails a late job."""
    wait = min(wait_seconds, connection.WAIT_SECONDS)
    query = {"after": after, "limit": limit, "tenant": tenant, "wait": float(wait) if wait else None}
    reply = await http.get(connection.path("jobs", job_id, "output"), query, wait=wait)
    return output.OutputPage(tuple(decode.output_chunk(one) for one in reply["chunks"]), reply["ended"]), False


# --- artifacts -----------------------------------------------------------------------------------------------------


@calls.over_http(artifact_operations.artifacts)
async def artifacts(http: connection.Http, job_id: str, tenant: str | None) -> list[results.ArtifactInfo]:
    """Return the artifacts of a job."""
    reply = await http.get(connection.path("jobs", job_id, "artifacts"), {"tenant": tenant})
    return [decode.artifact(one) for one in reply["artifacts"]]


@calls.over_http(artifact_operations.find)
async def find(http: connection.Http, job_id: str, name: str, tenant: str | None) -> ArtifactRow:
    """Return one artifact; what identifies its bytes is job, name and digest."""
    for one in await artifacts(http, job_id, tenant):
        if one.name == name:
            about = (one.name, one.media_type, one.size, one.digest, int(one.input), one.epoch)
            identity = strict_json.compact([job_id, name, tenant, one.digest, one.size])
            return ArtifactRow(*about, validation.milliseconds_of(one.created_at), identity)
    raise errors.ArtifactNotFound(job_id, name)


@calls.over_http(artifact_operations.chunk)
async def chunk(http: connection.Http, upload_id: str, number: int) -> bytes | None:
    """Return one chunk of the artifact that `find` returned; None if it was deleted or replaced."""
    job_id, name, tenant, digest, size = strict_json.decode(upload_id)
    first = number * limits.ARTIFACT_CHUNK_BYTES
    last = min(first + limits.ARTIFACT_CHUNK_BYTES, size) - 1
    try:
        response = await http.get_bytes(
            connection.path("jobs", job_id, "artifacts", name), {"tenant": tenant}, first, last
        )
    except errors.Refused:
        # It, or its job, was deleted; or it was replaced by a shorter one, which has no such range.
        return None
    return response.content if response.etag == f'"{digest}"' else None


@calls.over_http(artifact_operations.artifact)
async def artifact(http: connection.Http, job_id: str, name: str, tenant: str | None) -> Artifact:
    """Return one artifact with its bytes."""
    while True:
        found = await find(http, job_id, name, tenant)
        parts = [await chunk(http, found.upload_id, number) for number in range(_chunks(found.size))]
        data = [part for part in parts if part is not None]
        # If it was replaced while it was read, the new one is read.
        if len(data) == len(parts):
            return Artifact(found.name, b"".join(data), found.media_type)


def _chunks(size: int) -> int:
    return -(-size // limits.ARTIFACT_CHUNK_BYTES)


@calls.over_http(artifact_operations.delete)
async def delete_artifacts(http: connection.Http, job_id: str, tenant: str | None) -> None:
    """Delete the artifacts of a finished job."""
    await http.post(connection.path("jobs", job_id, "delete-artifacts"), None, {"tenant": tenant})


@calls.over_http(artifact_operations.attach)
async def attach(http: connection.Http, fence: claims.JobFence, artifacts: Sequence[CheckedArtifact]) -> None:
    """Store artifacts of a running attempt."""
    body = {"epoch": fence.epoch, "lease_token": fence.lease_token, "artifacts": encode.artifacts(artifacts)}
    try:
        await http.post(connection.path("claims", fence.job_id, "artifacts"), body)
    except errors.JobNotFound:
        raise errors.LeaseLost(fence.job_id, fence.epoch, "the job was deleted") from None


# --- uploads -------------------------------------------------------------------------------------------------------


@calls.over_http(artifact_operations.begin_upload)
async def begin_upload(http: connection.Http, upload_id: str, tenant: str, expires_ms: int) -> Upload:
    """Begin an upload; the server chooses its id. One whose answer was lost expires."""
    return _upload(
        await http.post(connection.path("uploads"), {"tenant": tenant, "expires": expires_ms / 1000})
    ).upload


@calls.over_http(artifact_operations.append_upload)
async def append_upload(
    http: connection.Http, upload_id: str, number: int, data: bytes, tenant: str | None
) -> Upload:
    """Store one chunk of an upload."""
    return _upload(
        await http.put_bytes(connection.path("uploads", upload_id, "chunks", number), data, {"tenant": tenant})
    ).upload


@calls.over_http(artifact_operations.live_upload)
async def live_upload(http: connection.Http, upload_id: str, tenant: str | None) -> UploadRow:
    """Return an upload as if it had no chunks: the server itself reads them back."""
    return _upload(await http.get(connection.path("uploads", upload_id), {"tenant": tenant}))._replace(chunks=0)


@calls.over_http(artifact_operations.finish_upload)
async def finish_upload(
    http: connection.Http,
    upload_id: str,
    chunks: int,
    digest: str,
    tenant: str | None,
    expected: artifact_operations.ExpectedUpload,
) -> Upload:
    """Finish an upload, if its bytes are as expected."""
    body = {name: value for name, value in expected._asdict().items() if value is not None}
    return _upload(await http.post(connection.path("uploads", upload_id, "finish"), body, {"tenant": tenant})).upload


@calls.over_http(maintenance.delete_expired)
async def delete_expired(http: connection.Http) -> bool:
    """Do nothing: the server does it by itself."""
    return False


def _upload(one: Mapping[str, Any]) -> UploadRow:
    return UploadRow(**{name: one[name] for name in UploadRow._fields})
