"""Handlers of `/v1/jobs`: create, list, get and wait, cancel, requeue, attempts."""

import re
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final
from urllib.parse import quote

from starlette.responses import Response

from holdfast import json_view
from holdfast.client import ids
from holdfast.client.async_api.enqueued import AsyncEnqueued
from holdfast.domain import access, errors, json_schema, new_job, strict_json
from holdfast.domain.job import Job
from holdfast.service import bodies, new_jobs, problems, schemas
from holdfast.service.call import Call, reply, reply_text, within_scope

BULK_LINES_MAX: Final = 100_000
BULK_LINE_BYTES_MAX: Final = 4 << 20
_CHUNK_LINES: Final = 500
_CHUNK_BYTES: Final = 4 << 20


async def create(call: Call) -> Response:
    """Enqueue one job: 201 if it is new, 200 if it exists already."""
    new = new_jobs.granted_job(call.grants, call.body)
    new_jobs.keyed_jobs(call, [new], single=True)
    try:
        enqueued = await call.service.combined.enqueue(new)
    except errors.Conflict as error:
        raise new_jobs.explain_conflict(error, [new]) from None
    _check_seen(call, [enqueued])
    location = f"/v1/jobs/{quote(enqueued.id, safe='')}"
    return reply_text(json_view.enqueued_text(enqueued), 201 if enqueued.created else 200, {"Location": location})


async def create_many(call: Call) -> Response:
    """Enqueue many jobs, all or none."""
    new = [new_jobs.granted_job(call.grants, one, f"jobs[{index}].") for index, one in enumerate(call.body["jobs"])]
    new_jobs.keyed_jobs(call, new)
    try:
        enqueued = await call.queue.enqueue_many(new)
    except errors.Conflict as error:
        raise new_jobs.explain_conflict(error, new) from None
    _check_seen(call, enqueued)
    created = any(one.created for one in enqueued)
    text = ",".join(map(json_view.enqueued_text, enqueued))
    return reply_text(f'{{"jobs":[{text}]}}', 201 if created else 200)


def _check_seen(call: Call, enqueued: Sequence[AsyncEnqueued[Any]]) -> None:
    """Raise `Conflict` if a job that existed before is not within the caller's scope."""
    for one in enqueued:
        if not one.created and not access.covers(call.grants, one.job.lane, one.job.kind):
            raise errors.Conflict(f"job {one.id!r} exists with different content", job_id=one.id)


# --- NDJSON --------------------------------------------------------------------------------------------------------


class _Line:
    """A line of a bulk request: a job to enqueue, or why it is refused."""

    def __init__(self, number: int, size: int) -> None:
        self.number = number
        self.size = size
        self.new: new_job.NewJob | None = None
        self.result: dict[str, Any] = {}

    def refuse(self, error: Exception) -> None:
        """Store the refusal of this line."""
        self.new = None
        problem = problems.describe(error)
        field = str(problem.extras.get("field", ""))
        problem.extras = {**problem.extras, "field": re.sub(r"^jobs\[\d+\]\.?", "", field) or "body"}
        self.result = {"error": problems.document(problem)}


async def create_bulk(call: Call) -> Response:
    """Enqueue each line of an NDJSON body on its own; return one line for each, in order.

    Lines are stored in chunks while the body arrives. The response follows the whole body, because most clients do
    not read before they have sent everything.
    """
    bodies.check_media_type(call.request, bodies.NDJSON)
    output: list[bytes] = []
    async for chunk in _chunks(call):
        await _store(call, [line for line in chunk if line.new is not None])
        output += [problems.encode({"line": line.number, **line.result}) + b"\n" for line in chunk]
    return Response(b"".join(output), media_type=bodies.NDJSON)


async def _chunks(call: Call) -> AsyncIterator[list[_Line]]:
    chunk: list[_Line] = []
    number = 0
    async for content in bodies.lines(call.request, call.route.body_bytes_max, BULK_LINE_BYTES_MAX):
        number += 1
        if number > BULK_LINES_MAX:
            raise problems.ProblemError(
                413, "body_too_large", f"the body has more than {BULK_LINES_MAX} lines", limit=BULK_LINES_MAX
            )
        if not content.strip():
            continue
        chunk.append(_parsed(call, number, content))
        if len(chunk) >= _CHUNK_LINES or sum(line.size for line in chunk) > _CHUNK_BYTES:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _parsed(call: Call, number: int, content: bytes) -> _Line:
    line = _Line(number, len(content))
    try:
        body = bodies.parse(content)
        json_schema.check(schemas.NEW_JOB, body, "")
        new = new_jobs.granted_job(call.grants, body)
        new_jobs.keyed_jobs(call, [new], number, single=True)
        # Validated here, so that an invalid line does not fail its neighbours.
        new_job.check_job(new, fresh_id=ids.job_id())
    except (problems.ProblemError, errors.HoldfastError) as error:
        if isinstance(error, errors.InvalidInput):
            error = errors.InvalidInput(error.field.removeprefix(".") or "body", error.problem, error.limit)
        line.refuse(error)
    else:
        line.new = new
    return line


async def _store(call: Call, lines: Sequence[_Line]) -> None:
    """Enqueue lines in one commit; if one of them is refused, each in its own."""
    try:
        enqueued = await call.queue.enqueue_many([line.new for line in lines if line.new is not None])
    except errors.HoldfastError as error:
        if len(lines) == 1:
            new = [lines[0].new] if lines[0].new is not None else []
            lines[0].refuse(new_jobs.explain_conflict(error, new) if isinstance(error, errors.Conflict) else error)
            return
        for line in lines:
            await _store(call, [line])
    else:
        for line, one in zip(lines, enqueued, strict=True):
            line.result = {"id": one.id, "created": one.created}


# --- read ----------------------------------------------------------------------------------------------------------


async def list_jobs(call: Call) -> Response:
    """Return a page of jobs, newest first."""
    query = {name: value for name, value in call.query.items() if name not in {"tenant", "tag"}}
    page = await call.queue.jobs(tenant=call.tenant, tags=_tags(call.query.get("tag", ())), **query)
    text = ",".join(map(json_view.job_text, within_scope(call.grants, page.jobs)))
    return reply_text(f'{{"jobs":[{text}],"cursor":{strict_json.compact(page.cursor)}}}')


def _tags(pairs: Sequence[str]) -> dict[str, str]:
    tags: dict[str, str] = {}
    for pair in pairs:
        tag, separator, value = pair.partition("=")
        if not separator or tag in tags:
            raise errors.InvalidInput("tag", f"names {tag!r} twice" if separator else "must be key=value")
        tags[tag] = value
    return tags


async def get(call: Call) -> Response:
    """Return one job; with `wait`, once it has finished or after that many seconds."""
    job = await call.job()
    seconds = min(call.query.get("wait", 0.0), call.service.settings.wait_seconds_max)
    if seconds > 0 and not job.finished:
        ended: Job | None = await call.wait_for(call.service.waiter.wait(job.id, seconds), None)
        job = await call.job() if ended is None else ended
    return reply_text(json_view.job_text(job))


async def parents(call: Call) -> Response:
    """Return the jobs on which a job depends."""
    job = await call.job()
    return reply({"jobs": [json_view.job(one) for one in await call.queue.parents(job.id)]})


async def why(call: Call) -> Response:
    """Return why a job is in its state."""
    job = await call.job()
    return reply(json_view.why(await call.queue.why(job.id, tenant=job.tenant)))


async def attempts(call: Call) -> Response:
    """Return the attempts of a job."""
    job = await call.job()
    return reply({"attempts": [json_view.attempt(one) for one in await call.queue.attempts(job.id)]})


# --- change --------------------------------------------------------------------------------------------------------


async def cancel(call: Call) -> Response:
    """Cancel a waiting job, or request a running one to stop."""
    job = await call.job()
    force = call.body.get("force", False)
    if force:
        access.check_role(call.grants, ())
    await call.audit("jobs.cancel", job.id, force=force)
    return reply_text(json_view.job_text(await call.queue.cancel(job.id, force=force, tenant=job.tenant)))


async def cancel_tree(call: Call) -> Response:
    """Cancel the unfinished jobs of a tree."""
    job = await call.job()
    force = call.body.get("force", False)
    if force:
        access.check_role(call.grants, ())
    await call.audit("jobs.cancel", job.id, force=force, tree=True)
    return reply(json_view.cancel_report(await call.queue.cancel(root=job.id, force=force, tenant=call.tenant)))


async def requeue(call: Call) -> Response:
    """Make a failed or cancelled job ready again."""
    job = await call.job()
    with_children = call.body.get("with_children", False)
    if with_children:
        # They may be in other lanes and of other kinds.
        access.check_any_job(call.grants)
    await call.audit("jobs.requeue", job.id, with_children=with_children)
    requeued = await call.queue.requeue(job.id, with_children=with_children, tenant=job.tenant)
    return reply_text(json_view.job_text(requeued))
