"""`/jobs` at the gateway's address: asynchronous requests, positions, and streams that are attached to again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, quote, unquote

from starlette.requests import Request
from starlette.types import Send

from holdfast import json_view
from holdfast.domain import access, errors
from holdfast.domain.job import Job
from holdfast.gateway import attempts, callers, dialects
from holdfast.gateway.answers import JOB_HEADER, AnswerChannel, ExchangeAnswer, GatewayRefusal, place_headers
from holdfast.gateway.gateway import LANES, JobAdmission
from holdfast.service import bodies, problems

if TYPE_CHECKING:
    from holdfast.gateway.app import GatewayApp

_OPTIONS: Final = ("path", "request", "webhook_url", "priority", "tenant")
_FINAL_WAIT_SECONDS: Final = 60.0


class JobRoutes:
    """Handles `/jobs`; what the service can do as it is, it does."""

    def __init__(self, app: GatewayApp) -> None:
        self._app = app

    async def handle(self, request: Request, channel: AnswerChannel, send: Send) -> None:
        """Handle one request; errors are problem documents, as those of the service."""
        parts = request.scope["path"].split("/")[2:]
        match request.method, parts:
            case "POST", []:
                await self._create(request, channel)
            case "GET", [job_id]:
                await self._get(request, channel, unquote(job_id))
            case "GET", [job_id, "stream"]:
                await self._stream(request, channel, unquote(job_id))
            case _:
                path = f"/v1{request.scope['path']}"
                await self._app.call_service(request.scope, request.receive, send, path)

    # --- create ----------------------------------------------------------------------------------------------------

    async def _create(self, request: Request, channel: AnswerChannel) -> None:
        caller = await self._app.caller(request, "produce")
        bodies.check_media_type(request, bodies.JSON)
        body = _object(await bodies.read(request, callers.BODY_BYTES_MAX))
        path = body.get("path")
        if not isinstance(path, str) or not (path in dialects.GENERATING or path in dialects.EMBEDDING):
            known = ", ".join([*dialects.GENERATING, *dialects.EMBEDDING])
            raise errors.InvalidInput("path", f"must be one of {known}")
        if not isinstance(body.get("request"), dict):
            raise errors.InvalidInput("request", "must be the JSON object that the path takes")
        parsed = self._app.parse(path, json.dumps(body["request"]).encode())
        model = await self._app.find_model(parsed)
        if model is None:
            raise errors.InvalidInput("request.model", f"the model server has no model {parsed.model!r}")
        priority = body.get("priority")
        admission = JobAdmission(
            tenant=callers.tenant_of(caller, body.get("tenant")),
            priority=callers.priority_of(caller, None if priority is None else str(priority)),
            caller_kind="kept",
            headers={"content-type": "application/json"},
            webhook_url=body.get("webhook_url"),
        )
        try:
            exchange = await self._app.admit(parsed, model, admission)
        except GatewayRefusal as refusal:
            headers = dict(refusal.headers)
            raise problems.ProblemError(refusal.status, "overloaded", refusal.message, headers=headers) from None
        await self._app.accept(exchange, channel)

    # --- read ------------------------------------------------------------------------------------------------------

    async def _job(self, request: Request, job_id: str) -> Job:
        caller = await self._app.caller(request, "read", "produce")
        try:
            job = await self._app.gateway.queue.get(job_id, tenant=caller.grants.tenant)
        except errors.InvalidInput:
            raise errors.JobNotFound(job_id) from None
        if job.lane not in LANES.values() or not access.covers(caller.grants, job.lane, job.kind):
            raise errors.JobNotFound(job_id)
        return job

    async def _get(self, request: Request, channel: AnswerChannel, job_id: str) -> None:
        job = await self._job(request, job_id)
        wait = _number(dict(parse_qsl(request.url.query)).get("wait", "0"), "wait")
        if wait > 0 and not job.finished:
            waiter = self._app.service.waiter
            job = await waiter.wait(job.id, min(wait, _FINAL_WAIT_SECONDS)) or await self._job(request, job_id)
        exchange = self._app.gateway.exchanges.get(job.id)
        places = [] if exchange is None else place_headers(self._app.gateway, exchange)
        headers = [("content-type", "application/json"), (JOB_HEADER, job.id), *places]
        await channel.whole(200, headers, problems.encode(await self.document(job)))

    async def document(self, job: Job) -> dict[str, Any]:
        """Return a job as the service shows it, with its model, its position and its estimate."""
        exchange = self._app.gateway.exchanges.get(job.id)
        place = None if exchange is None or job.finished else self._app.gateway.place(exchange)
        return {
            **json_view.job(job),
            "model": job.tags.get("model"),
            "position": None if place is None else place.position,
            "estimate_seconds": None if place is None else round(place.seconds, 1),
            "stream_url": f"/jobs/{quote(job.id, safe='')}/stream",
        }

    # --- streams ---------------------------------------------------------------------------------------------------

    async def _stream(self, request: Request, channel: AnswerChannel, job_id: str) -> None:
        """Send the frames after a number: from memory while the job runs, from its artifact afterwards."""
        job = await self._job(request, job_id)
        query = dict(parse_qsl(request.url.query))
        after = int(_number(query.get("after", "0"), "after"))
        gateway = self._app.gateway
        exchange = gateway.exchanges.get(job.id)
        if exchange is None:
            if not job.finished:
                raise problems.ProblemError(409, "not_running", "the job is not held by this gateway")
            payload: Any = job.payload
            exchange = attempts.recovered(gateway.exchanges, payload["request"], job.tenant)
            exchange.job_id = job.id
            await attempts.stored_answer(gateway.queue, exchange, job)
        attempt = query.get("attempt")
        if after and ((attempt is None and job.attempt > 1) or attempt not in {None, str(exchange.epoch)}):
            raise errors.Conflict(
                f"the frames of job {job.id!r} are those of attempt {exchange.epoch}; read from the first, or give"
                " the attempt that the header Holdfast-Attempt named",
                job_id=job.id,
            )
        with gateway.exchanges.reading(exchange, position=after, caller=False) as reader:
            await ExchangeAnswer(gateway, exchange, channel).send(reader)


def _object(content: bytes) -> dict[str, Any]:
    # The request itself may contain what strict JSON refuses, such as half of a surrogate pair.
    try:
        body = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise problems.ProblemError(400, "invalid_json", f"the body is not JSON: {error}", field="body") from None
    if not isinstance(body, dict):
        raise errors.InvalidInput("body", "must be an object")
    if unknown := body.keys() - set(_OPTIONS):
        raise errors.InvalidInput(min(unknown), f"unknown field; valid fields are {', '.join(_OPTIONS)}")
    for name in ("webhook_url", "tenant"):
        if not isinstance(body.get(name), str | None):
            raise errors.InvalidInput(name, "must be a string")
    return body


def _number(text: str, name: str) -> float:
    if not text.replace(".", "", 1).isdigit() or not text.isascii():
        raise errors.InvalidInput(name, "must be a number")
    return min(float(text), 1e15)
