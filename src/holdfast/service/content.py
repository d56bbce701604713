"""Handlers for the content of jobs: output as a page or a stream, artifacts, and uploads in chunks."""

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator
from typing import Final
from urllib.parse import quote

from starlette.responses import Response, StreamingResponse

from holdfast import json_view
from holdfast.client import ids
from holdfast.domain import errors, limits, validation
from holdfast.domain.artifacts import Upload
from holdfast.domain.job import Job
from holdfast.domain.output import OutputPage
from holdfast.operations import artifacts as artifact_operations, maintenance, output as output_operations
from holdfast.service import bodies, new_jobs, problems, streams
from holdfast.service.call import Call, reply
from holdfast.storage import notifications

log = logging.getLogger("holdfast.service")

# How often a stream looks if no notification comes, and after an error of the store. Many streams may be idle.
_POLL_SECONDS: Final = 5.0
_RETRY_SECONDS: Final = 1.0
_NUMBER: Final = re.compile(r"[0-9]{1,18}", re.ASCII)
_MEDIA_TYPE: Final = re.compile(r"[\w.+-]+/[\w.+-]+(; ?charset=[\w-]+)?", re.ASCII)
_RANGE: Final = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})", re.ASCII)


# --- output --------------------------------------------------------------------------------------------------------


async def output(call: Call) -> Response:
    """Return chunks of a job's output, or a stream that follows it if the client accepts `text/event-stream`."""
    job = await call.job()
    after = call.query.get("after", 0)
    if (last := call.request.headers.get("last-event-id")) is not None:
        if not _NUMBER.fullmatch(last):
            raise errors.InvalidInput("Last-Event-ID", "must be the number of a chunk")
        after = int(last)
    if not streams.is_wanted(call):
        limit = call.query.get("limit", limits.OUTPUT_PAGE_MAX)
        page = await call.queue.output(job.id, after=after, limit=limit, tenant=job.tenant)
        seconds = min(call.query.get("wait", 0.0), call.service.settings.wait_seconds_max)
        if seconds and not page.chunks and not page.ended:
            page = await call.wait_for(_next_page(call, job, after, limit, seconds), page)
        return reply({"chunks": [json_view.output_chunk(one) for one in page], "ended": page.ended})
    stream = call.service.streams.add(call)
    return streams.StreamResponse(
        call, stream, _follow(call, job, after, stream), lambda: call.service.streams.remove(call, stream)
    )


async def _next_page(call: Call, job: Job, after: int, limit: int, seconds: float) -> OutputPage:
    """Return the next chunks once there are any, the job has ended, or *seconds* have passed."""
    runner, left = call.service.runner, seconds
    with runner.listen(notifications.output_topic(job.id), notifications.job_topic(job.id)) as listener:
        while True:
            page, overdue = await runner.read(output_operations.read, job.id, after, limit, job.tenant)
            if page.chunks or page.ended or left <= 0:
                return page
            if overdue:
                # No worker has failed the job since its deadline passed, so the service does.
                await runner.write(maintenance.fail_late_jobs)
            else:
                left -= await listener.wait(min(_RETRY_SECONDS, left))


class _Waker:
    """Wakes a stream when a notification arrives, in any thread."""

    def __init__(self, stream: streams.EventStream) -> None:
        self._loop = asyncio.get_running_loop()
        self._stream = stream

    def wake(self) -> None:
        """Let the stream look for chunks."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stream.wake)


async def _follow(call: Call, job: Job, after: int, stream: streams.EventStream) -> AsyncIterator[bytes]:
    """Yield the chunks after a number as server-sent events until the job has finished or the stream ends."""
    notifier, waker, topics = (
        call.service.store.notifier,
        _Waker(stream),
        (notifications.output_topic(job.id), notifications.job_topic(job.id)),
    )
    for topic in topics:
        notifier.add(topic, waker)
    try:
        yield streams.RETRY_LINE
        async for text in _chunks(call, job, after, stream):
            yield text
        if stream.ended is not None:
            yield streams.comment_text(stream.ended)
    finally:
        for topic in topics:
            notifier.remove(topic, waker)


async def _chunks(call: Call, job: Job, after: int, stream: streams.EventStream) -> AsyncIterator[bytes]:
    runner, ping_seconds, limit = call.service.runner, call.service.settings.ping_seconds, limits.OUTPUT_PAGE_MAX
    sent_at = time.monotonic()
    while stream.ended is None:
        pause = min(_POLL_SECONDS, ping_seconds)
        try:
            page, overdue = await runner.read(output_operations.read, job.id, after, limit, job.tenant)
            if overdue:
                # No worker has failed the job since its deadline passed, so the service does.
                await runner.write(maintenance.fail_late_jobs)
                continue
        except errors.JobNotFound:
            yield streams.named_event("deleted", {"number": after})
            return
        except errors.HoldfastError as error:
            log.warning("the output of job %s could not be read: %s", job.id, error)
            pause = _RETRY_SECONDS
        else:
            if page.chunks:
                after, sent_at = page.chunks[-1].number, time.monotonic()
                yield b"".join(
                    b"id: %d\ndata: %s\n\n" % (one.number, problems.encode(json_view.output_chunk(one)))
                    for one in page
                )
            if page.ended:
                yield streams.named_event("end", {"number": after})
                return
            if len(page) == limit:
                continue
        if not await stream.wait(pause) and time.monotonic() - sent_at >= ping_seconds:
            sent_at = time.monotonic()
            yield streams.comment_text("ping")


# --- artifacts -----------------------------------------------------------------------------------------------------


async def artifacts(call: Call) -> Response:
    """Return the artifacts of a job, without their bytes."""
    job = await call.job()
    return reply({"artifacts": [json_view.artifact(one) for one in await call.queue.artifacts(job.id)]})


async def delete_artifacts(call: Call) -> Response:
    """Delete the artifacts of a finished job."""
    job = await call.job()
    await call.queue.delete_artifacts(job.id)
    return reply({"artifacts": []})


async def artifact(call: Call) -> Response:
    """Return the bytes of an artifact, or a range of them, as a download that browsers never run."""
    job = await call.job()
    name = call.path["name"]
    found = next((one for one in await call.queue.artifacts(job.id) if one.name == name), None)
    if found is None:
        raise errors.ArtifactNotFound(job.id, name)
    etag = f'"{found.digest}"'
    wanted = call.request.headers.get("range")
    if call.request.headers.get("if-range", etag) != etag:
        wanted = None
    offset, size = range_of(wanted, found.size) or (0, found.size)
    headers = {
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}",
        "X-Content-Type-Options": "nosniff",
        "Content-Security-Policy": "default-src 'none'; sandbox",
        "Content-Type": found.media_type if _MEDIA_TYPE.fullmatch(found.media_type) else bodies.BYTES,
        "Content-Length": str(size),
        "Accept-Ranges": "bytes",
        "ETag": etag,
    }
    partial = size < found.size
    if partial:
        headers["Content-Range"] = f"bytes {offset}-{offset + size - 1}/{found.size}"
    parts = call.queue.artifact_chunks(job.id, name, offset=offset, size=size)
    return StreamingResponse(parts, 206 if partial else 200, headers)


def range_of(header: str | None, size: int) -> tuple[int, int] | None:
    """Return offset and length of the range that a header `Range` asks for, or None for everything.

    Raise if it is empty. Other units and several ranges are ignored, as HTTP permits.
    """
    found = _RANGE.fullmatch(header or "")
    if found is None or not (found[1] or found[2]):
        return None
    if not found[1]:
        length = min(int(found[2]), size)
        first, last = size - length, size - 1
    else:
        first, last = int(found[1]), min(int(found[2] or size), size - 1)
        if found[2] and int(found[2]) < first:
            return None
    if first > last:
        raise problems.ProblemError(
            416,
            "range_not_satisfiable",
            f"the artifact has {size} bytes",
            headers={"Content-Range": f"bytes */{size}"},
            limit=size,
            field="Range",
        )
    return first, last - first + 1


# --- uploads -------------------------------------------------------------------------------------------------------


async def begin_upload(call: Call) -> Response:
    """Begin an upload, and delete some that have expired: the store may have no worker of its own."""
    await call.service.runner.write(artifact_operations.delete_expired_uploads)
    tenant, key = call.tenant_of_body, call.idempotency_key
    expires_ms = validation.duration_ms(
        call.body.get("expires", limits.UPLOAD_MS_DEFAULT / 1000), "expires", 1, limits.UPLOAD_MS_MAX
    )
    upload_id = ids.upload_id() if key is None else new_jobs.keyed_id(call, key, tenant, "")
    upload = await call.service.runner.write(artifact_operations.begin_upload, upload_id, tenant, expires_ms)
    return _uploaded(upload, 201, {"Location": f"/v1/uploads/{upload.id}"})


async def get_upload(call: Call) -> Response:
    """Return an upload: `chunks` is the number of the chunk that it expects next."""
    row = await call.service.runner.read(artifact_operations.live_upload, _upload_id(call), call.tenant)
    return _uploaded(row.upload)


async def upload_chunk(call: Call) -> Response:
    """Store one chunk of an upload."""
    bodies.check_media_type(call.request, bodies.BYTES)
    if not _NUMBER.fullmatch(call.path["number"]):
        raise errors.InvalidInput("number", "must be the number of a chunk, from 0")
    upload_id, number = _upload_id(call), int(call.path["number"])
    data = await bodies.read(call.request, call.route.body_bytes_max)
    return _uploaded(await call.queue.uploads.append(upload_id, number, data, tenant=call.tenant))


async def upload_content(call: Call) -> Response:
    """Store the whole body as the chunks of an upload, each in a commit of its own, and finish it."""
    bodies.check_media_type(call.request, bodies.BYTES)
    upload_id, tenant, size = _upload_id(call), call.tenant, limits.ARTIFACT_CHUNK_BYTES
    # Refused before the body is read.
    await call.service.runner.read(artifact_operations.live_upload, upload_id, tenant)
    rest, number = bytearray(), 0
    async for part in bodies.chunks(call.request, call.route.body_bytes_max):
        rest += part
        while len(rest) >= size:
            await call.queue.uploads.append(upload_id, number, bytes(rest[:size]), tenant=tenant)
            number += 1
            del rest[:size]
    total = number * size + len(rest)
    if rest:
        # The short chunk is the last one, so it is stored once the body is known to be complete.
        await call.queue.uploads.append(upload_id, number, bytes(rest), tenant=tenant)
    return _uploaded(await call.queue.uploads.finish(upload_id, size=total, tenant=tenant))


async def finish_upload(call: Call) -> Response:
    """Finish an upload, if its bytes have the given size and digest."""
    given = {name: call.body[name] for name in ("size", "digest") if name in call.body}
    return _uploaded(await call.queue.uploads.finish(_upload_id(call), tenant=call.tenant, **given))


def _upload_id(call: Call) -> str:
    """Return the upload of the path; one with an impossible id is not found."""
    upload_id = call.path["upload_id"]
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,100}", upload_id, re.ASCII):
        raise errors.UploadNotFound(upload_id)
    return upload_id


def _uploaded(upload: Upload, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return reply(json_view.upload(upload), status, headers)
