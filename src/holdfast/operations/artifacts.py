"""Artifacts of jobs, and the uploads that bring large ones in short commits."""

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.domain import artifacts as artifact_rules, claims, clock, errors, limits, results, transitions
from holdfast.domain.artifacts import Artifact, ArtifactRow, CheckedArtifact, Upload, UploadRow
from holdfast.domain.job import FINISHED, JobRow
from holdfast.operations import lease
from holdfast.operations.jobs import get_row
from holdfast.storage.contract import StoreTransaction

# How many chunks one statement reads.
_CHUNKS_READ = 16


# --- write ---------------------------------------------------------------------------------------------------------


async def attach(tx: StoreTransaction, fence: claims.JobFence, artifacts: Sequence[CheckedArtifact]) -> None:
    """Store artifacts of a running attempt."""
    jobs = await lease.lock_held(tx, [fence])
    now = await tx.now()
    job = lease.held_job(jobs, fence)
    transitions.check_fence(job, fence, now)
    await write_outputs(tx, job, artifacts, now)


async def write_outputs(
    tx: StoreTransaction, job: JobRow, artifacts: Sequence[CheckedArtifact], now: clock.Now
) -> None:
    """Store artifacts of an attempt of *job*; replace earlier outputs of the same names.

    Raise `Conflict` if an input has the name, `InvalidInput` if the job would have too many artifacts; nothing is
    written then.
    """
    if not artifacts:
        return
    stored = {one.name: one for one in await tx.artifacts(job.seq)}
    # Those that an earlier send of this call has stored are left out: their uploads cannot be linked again.
    artifacts = [one for one in artifacts if not _is_stored(stored.get(one.name), one, job.epoch)]
    if not artifacts:
        return
    names = stored.keys() | {artifact.name for artifact in artifacts}
    if len(names) > limits.ARTIFACTS_MAX:
        raise errors.InvalidInput(
            "artifacts",
            f"would be {len(names)} for this job; the limit is {limits.ARTIFACTS_MAX}",
            limits.ARTIFACTS_MAX,
        )
    replaced = [stored[artifact.name] for artifact in artifacts if artifact.name in stored]
    for one in replaced:
        if one.input:
            raise errors.Conflict(f"artifact {one.name!r} is an input of job {job.id!r}; choose another name")
    await _write(tx, job, artifacts, now, epoch=job.epoch, is_input=False)
    if replaced:
        await tx.expire_uploads([one.upload_id for one in replaced], now.wall_ms)


def _is_stored(stored: ArtifactRow | None, artifact: CheckedArtifact, epoch: int) -> bool:
    """Return whether the attempt with *epoch* has stored this artifact."""
    if stored is None or stored.input or stored.epoch != epoch:
        return False
    return (stored.name, stored.media_type, stored.digest) == artifact.content


async def write_inputs(
    tx: StoreTransaction, job: JobRow, artifacts: Sequence[CheckedArtifact], now: clock.Now
) -> None:
    """Store the input artifacts of a new job."""
    await _write(tx, job, artifacts, now, epoch=0, is_input=True)


async def replace_inputs(
    tx: StoreTransaction, job: JobRow, artifacts: Sequence[CheckedArtifact], now: clock.Now
) -> bool:
    """Replace the input artifacts of a job that was not claimed yet; return whether they differ."""
    stored = [one for one in await tx.artifacts(job.seq) if one.input]
    if [(one.name, one.media_type, one.digest) for one in stored] == artifact_rules.contents(artifacts):
        return False
    if stored:
        await tx.delete_inputs(job.seq)
        await tx.expire_uploads([one.upload_id for one in stored], now.wall_ms)
    await write_inputs(tx, job, artifacts, now)
    return True


async def _write(
    tx: StoreTransaction,
    job: JobRow,
    artifacts: Sequence[CheckedArtifact],
    now: clock.Now,
    *,
    epoch: int,
    is_input: bool,
) -> None:
    linked = await _link(tx, job.tenant, artifacts, now)
    stored = []
    for artifact in artifacts:
        upload = linked.get(artifact.upload_id or "")
        if upload is None:
            upload = await tx.insert_bytes(job.tenant, artifact.data or b"", artifact.digest)
        about = (artifact.name, artifact.media_type, upload.size, artifact.digest)
        stored.append(ArtifactRow(*about, int(is_input), epoch, now.wall_ms, upload.id))
    await tx.write_artifacts(job.seq, stored)


async def _link(
    tx: StoreTransaction, tenant: str, artifacts: Sequence[CheckedArtifact], now: clock.Now
) -> dict[str, UploadRow]:
    """Link the uploads of *artifacts*: they no longer expire. Return them by id."""
    ids = [artifact.upload_id for artifact in artifacts if artifact.upload_id is not None]
    if not ids:
        return {}
    if len(set(ids)) < len(ids):
        raise errors.Conflict("one upload cannot be linked as two artifacts; upload the bytes twice")
    found = await tx.uploads(ids)
    for index, artifact in enumerate(artifacts):
        if artifact.upload_id is not None:
            upload = artifact_rules.check_live(found.get(artifact.upload_id), artifact.upload_id, tenant, now)
            artifact_rules.check_linkable(upload, artifact, f"artifacts[{index}]")
    await tx.expire_uploads(ids, None)
    return found


async def delete(tx: StoreTransaction, job_id: str, tenant: str | None) -> None:
    """Delete the artifacts of a finished job. Their uploads have expired from now on."""
    job = await get_row(tx, job_id, tenant)
    if job.state not in FINISHED:
        raise errors.Conflict(
            f"job {job_id!r} is {job.state}, and its attempts may need its artifacts; cancel it first", job_id=job_id
        )
    stored = await tx.artifacts(job.seq)
    if stored:
        now = await tx.now()
        await tx.delete_artifacts(job.seq)
        await tx.expire_uploads([one.upload_id for one in stored], now.wall_ms)


# --- read ----------------------------------------------------------------------------------------------------------


async def artifacts(tx: StoreTransaction, job_id: str, tenant: str | None) -> list[results.ArtifactInfo]:
    """Return the artifacts of the job, without their bytes."""
    job = await get_row(tx, job_id, tenant)
    return [one.info for one in await tx.artifacts(job.seq)]


async def find(tx: StoreTransaction, job_id: str, name: str, tenant: str | None) -> ArtifactRow:
    """Return one artifact of the job, without its bytes."""
    job = await get_row(tx, job_id, tenant)
    found = await tx.artifact(job.seq, name)
    if found is None:
        raise errors.ArtifactNotFound(job_id, name)
    return found


async def artifact(tx: StoreTransaction, job_id: str, name: str, tenant: str | None) -> Artifact:
    """Return one artifact of the job with its bytes."""
    found = await find(tx, job_id, name, tenant)
    chunks: list[bytes] = []
    while more := await tx.upload_chunks(found.upload_id, len(chunks), _CHUNKS_READ):
        chunks += more
    return Artifact(found.name, b"".join(chunks), found.media_type)


async def chunk(tx: StoreTransaction, upload_id: str, number: int) -> bytes | None:
    """Return one chunk of an upload, or None if it was deleted."""
    found = await tx.upload_chunks(upload_id, number, 1)
    return found[0] if found else None


# --- uploads -------------------------------------------------------------------------------------------------------


async def begin_upload(tx: StoreTransaction, upload_id: str, tenant: str, expires_ms: int) -> Upload:
    """Store an empty upload. A call that is sent again, with the same id, returns the upload."""
    now = await tx.now()
    await tx.insert_upload(UploadRow(upload_id, tenant, 0, 0, None, now.wall_ms + expires_ms))
    return (await live_upload(tx, upload_id, tenant)).upload


async def append_upload(tx: StoreTransaction, upload_id: str, number: int, data: bytes, tenant: str | None) -> Upload:
    """Store one chunk of an upload; a chunk that is already stored must have the same bytes."""
    upload = await live_upload(tx, upload_id, tenant)
    if number < upload.chunks:
        if await chunk(tx, upload_id, number) != data:
            raise errors.Conflict(f"chunk {number} of upload {upload_id!r} is stored with other bytes")
        return upload.upload
    upload = artifact_rules.append_chunk(upload, number, data)
    await tx.insert_chunk(upload_id, number, data)
    await tx.update_upload(upload)
    return upload.upload


async def live_upload(tx: StoreTransaction, upload_id: str, tenant: str | None) -> UploadRow:
    """Return an upload that has not expired, or raise `UploadNotFound`."""
    found = await tx.uploads([upload_id])
    return artifact_rules.check_live(found.get(upload_id), upload_id, tenant, await tx.now())


async def upload_chunks(tx: StoreTransaction, upload_id: str, first: int) -> list[bytes]:
    """Return some chunks of an upload."""
    return await tx.upload_chunks(upload_id, first, _CHUNKS_READ)


class ExpectedUpload(NamedTuple):
    """What the caller expects of an upload; None if it does not say."""

    size: int | None
    digest: str | None


async def finish_upload(
    tx: StoreTransaction, upload_id: str, chunks: int, digest: str, tenant: str | None, expected: ExpectedUpload
) -> Upload:
    """Store the digest of an upload, which was computed from this number of chunks, if it is as *expected*."""
    upload = await live_upload(tx, upload_id, tenant)
    if expected.size is not None and expected.size != upload.size:
        raise errors.InvalidInput("size", f"is {expected.size}, but {upload.size} bytes were uploaded")
    if expected.digest is not None and expected.digest != digest:
        raise errors.InvalidInput("digest", f"is not that of the uploaded bytes, {digest}")
    if upload.chunks != chunks:
        raise errors.Conflict(f"a chunk was appended to upload {upload_id!r} while it was being finished")
    finished = upload._replace(digest=digest)
    if upload.digest is None:
        await tx.update_upload(finished)
    return finished.upload


async def delete_expired_uploads(tx: StoreTransaction) -> bool:
    """Delete some expired uploads, or a part of a large one; return whether there were any."""
    found = await tx.expired_uploads(await tx.now(), limits.CHUNK)
    if not found:
        return False
    ids: list[str] = []
    total = 0
    for upload_id, size in found:
        total += size
        if total > limits.UPLOAD_BYTES_DELETED:
            break
        ids.append(upload_id)
    if ids:
        await tx.delete_chunks(ids, limits.UPLOAD_BYTES_DELETED)
    else:
        ids = [found[0][0]]
        chunks = limits.UPLOAD_BYTES_DELETED // limits.ARTIFACT_CHUNK_BYTES
        if await tx.delete_chunks(ids, chunks) == chunks:
            return True
    await tx.delete_uploads(ids)
    return True
