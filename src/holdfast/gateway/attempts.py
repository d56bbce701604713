"""Attempts: one request sent to the model server, its answer stored, and the end reported to the callers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any, Final, TypeAlias

from holdfast.client.async_api.queue import AsyncQueue
from holdfast.client.middleware import EndedAttempt, Middleware
from holdfast.domain import limits
from holdfast.domain.artifacts import Artifact, UploadedArtifact
from holdfast.domain.claims import Lease
from holdfast.domain.job import Job
from holdfast.gateway import dialects, model_requests
from holdfast.gateway.exchanges import Exchange, Exchanges
from holdfast.gateway.http_client import HOP_BY_HOP, AnswerHead, Upstream, UpstreamAnswer, UpstreamFailedError
from holdfast.gateway.model_requests import ModelRequest
from holdfast.tasks.context import Context
from holdfast.tasks.control_flow import Defer, Fail, Retry

log = logging.getLogger("holdfast.gateway")

REQUEST, RESPONSE, PARTIAL, HEAD = "request", "response", "partial", "head"
"""The artifacts: the exact bytes of request and response, what arrived of a broken stream, and the status and headers
of a response that is an error."""
# How often an attempt looks whether the caller of a job of an earlier process is back.
_LOOK_SECONDS: Final = 1.0
_RETRIED: Final = frozenset((429, 503))
_RETRY_AFTER_MAX: Final = 120.0
# Response headers that are not passed on, besides those that concern the connection.
_OWN_HEADERS: Final = HOP_BY_HOP | {"content-length", "date", "server", "set-cookie", "holdfast-job"}
# Larger content is uploaded in chunks before the call that links it.
_DIRECT_BYTES_MAX: Final = limits.ARTIFACTS_DIRECT_BYTES_MAX // 2
_HEADERS_KEPT_MAX: Final = 100


Targets: TypeAlias = Callable[[str], AsyncIterator[Upstream]]
"""Yields the model servers that have a model, in the order in which they are tried; at least one."""


class Closures:
    """Model servers that have said when to come back: until then they get no request for the model.

    Then one request is sent alone; its answer opens the model for the others, or closes it again.
    """

    def __init__(self) -> None:
        self._closed: dict[tuple[str, str], _Closure] = {}
        """By the URL of the server and the model."""

    def is_closed(self, target: Upstream, model: str) -> bool:
        """Return whether a request would have to wait."""
        closed = self._closed.get((target.url, model))
        return closed is not None and (closed.trying or closed.until > time.monotonic())

    @contextlib.asynccontextmanager
    async def passing(self, target: Upstream, model: str) -> AsyncIterator[Callable[[AnswerHead], None]]:
        """Wait until a request may be sent, and send it in the block; it calls what it gets with the head."""
        key = (target.url, model)
        tried = await self._wait_open(key)

        def answered(head: AnswerHead) -> None:
            nonlocal tried
            seconds = _retry_after(head) if _is_retried(head) else None
            if seconds is not None:
                self._close(key, time.monotonic() + seconds)
            elif tried is not None and self._closed.get(key) is tried:
                del self._closed[key]
            if tried is not None:
                tried.changed.set()
                tried = None

        try:
            yield answered
        finally:
            if tried is not None:
                # Without an answer: the next one tries.
                if self._closed.get(key) is tried:
                    self._closed[key] = _Closure(tried.until)
                tried.changed.set()

    def _close(self, key: tuple[str, str], until: float) -> None:
        closed = self._closed.get(key)
        self._closed[key] = _Closure(until if closed is None else max(until, closed.until))
        if closed is not None:
            closed.changed.set()

    async def _wait_open(self, key: tuple[str, str]) -> _Closure | None:
        """Wait until the model is open, or until this request is the one to try; return what it tries to open."""
        while (closed := self._closed.get(key)) is not None:
            left = closed.until - time.monotonic()
            if left <= 0 and not closed.trying:
                closed.trying = True
                return closed
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left if left > 0 else None):
                    await closed.changed.wait()
        return None


class _Closure:
    """Until when a model is closed, by the monotonic clock, and whether a request tries to open it."""

    def __init__(self, until: float) -> None:
        self.until = until
        self.trying = False
        self.changed = asyncio.Event()


class Attempts:
    """Runs the jobs of a gateway."""

    def __init__(self, queue: AsyncQueue, targets: Targets, exchanges: Exchanges) -> None:
        self._queue = queue
        self._targets = targets
        self._exchanges = exchanges
        self.closures = Closures()

    async def run(self, context: Context, request: dict[str, Any]) -> dict[str, Any]:
        """Send the request of a job and store the answer; the handler of the gateway's tasks."""
        exchange = self._exchanges.get(context.job.id)
        if exchange is None:
            exchange = recovered(self._exchanges, request, context.job.tenant)
            self._exchanges.recover(exchange, context.job)
        if exchange.orphaned_until is not None:
            # Not generated for a caller that may never return.
            raise Defer(after=max(0.05, min(_LOOK_SECONDS, exchange.orphaned_until - time.monotonic())))
        exchange.begin(context.epoch)
        sent = await self._request_of(context, exchange, request)
        headers = [*request["headers"].items()]
        content = model_requests.content_to_send(sent)
        path = f"{sent.path}?{request['query']}" if request["query"] else sent.path
        targets = self._targets(sent.model)
        target = await anext(targets)
        while True:
            try:
                async with (
                    self.closures.passing(target, sent.model) as answered,
                    target.send("POST", path, headers, content) as answer,
                ):
                    answered(answer.head)
                    following = await anext(targets, None) if _is_retried(answer.head) else None
                    if following is None:
                        return await self._receive(context, exchange, answer)
            except UpstreamFailedError as error:
                following = None if exchange.seen else await anext(targets, None)
                if following is None:
                    return await self._give_up(context, exchange, error)
                exchange.begin(context.epoch)
            log.info("job %s is sent to %s, because %s does not take it", context.job.id, following.url, target.url)
            target = following

    async def _request_of(self, context: Context, exchange: Exchange, payload: dict[str, Any]) -> ModelRequest:
        if exchange.request.content:
            return exchange.request
        artifact = await context.artifact_async(REQUEST)
        parsed = model_requests.parse(exchange.request.path, artifact.data, {})
        # As they were when the affinity of the job was decided.
        return replace(parsed, options=payload["options"])

    async def _receive(self, context: Context, exchange: Exchange, answer: UpstreamAnswer) -> dict[str, Any]:
        head = answer.head
        if _is_retried(head) and context.attempt < context.job.max_attempts:
            raise Retry(f"the model server answers {head.status}", after=_retry_after(head), reason="upstream_busy")
        kept = AnswerHead(head.status, tuple(_passed_on(head)))
        streams = (dialects.NDJSON, dialects.SSE)
        if exchange.request.stream and head.status < 300 and head.media_type in streams:
            exchange.head, exchange.streaming = kept, True
            await self._receive_stream(exchange, answer)
        else:
            exchange.set_answer(kept, await answer.read())
        if head.status >= 400 or exchange.terminated == "error":
            await self._keep(
                context, [(RESPONSE, exchange.content, _media_type(kept)), (HEAD, _encoded(kept), _JSON)]
            )
            raise Fail(f"the model server answers {head.status} with an error", reason="upstream_error")
        return await self._done(context, exchange, kept)

    @staticmethod
    async def _receive_stream(exchange: Exchange, answer: UpstreamAnswer) -> None:
        try:
            await answer.forward(exchange.feed)
        except UpstreamFailedError:
            # After the terminator nothing is missing.
            if exchange.terminated is None:
                raise
        if exchange.terminated is None:
            raise UpstreamFailedError("the model server has ended its stream without the last part")

    async def _done(self, context: Context, exchange: Exchange, head: AnswerHead) -> dict[str, Any]:
        content = exchange.content
        if len(content) > _DIRECT_BYTES_MAX:
            upload = await self._queue.uploads.send(content, tenant=context.job.tenant)
            context.attach(RESPONSE, upload, _media_type(head))
        else:
            context.attach(RESPONSE, content, _media_type(head))
        usage = exchange.request.dialect.usage(content, streamed=exchange.streaming)
        if usage:
            context.used(tokens=sum(usage.values()), **usage)
        return {
            "status": head.status,
            "headers": [list(pair) for pair in head.headers],
            "bytes": len(content),
            "streamed": exchange.streaming,
            "usage": usage,
        }

    async def _give_up(self, context: Context, exchange: Exchange, error: UpstreamFailedError) -> dict[str, Any]:
        """Repeat the attempt if no reader has seen a part of it; otherwise keep what arrived, and fail."""
        if not exchange.seen:
            raise Retry(str(error), reason="upstream_failed")
        media_type = "" if exchange.head is None else _media_type(exchange.head)
        await self._keep(context, [(PARTIAL, exchange.content, media_type)])
        raise Fail(f"{error}; a part of the answer was already delivered", reason="stream_interrupted")

    async def _keep(self, context: Context, contents: list[tuple[str, bytes, str]]) -> None:
        """Store artifacts of an attempt that fails: those of the context are stored only if it is done."""
        artifacts: list[Artifact | UploadedArtifact] = []
        for name, content, media_type in contents:
            shown = media_type or "application/octet-stream"
            if len(content) > _DIRECT_BYTES_MAX:
                upload = await self._queue.uploads.send(content, tenant=context.job.tenant)
                artifacts.append(upload.artifact(name, shown))
            else:
                artifacts.append(Artifact(name, content, shown))
        job = context.job
        await self._queue.attach(Lease(job.id, context.epoch, context.lease_token, job.tenant), artifacts)


class Settlements(Middleware):
    """Reports the end of attempts after their settlement; pass it to `connect_async`."""

    def __init__(self) -> None:
        self.report: Callable[[EndedAttempt], None] = _ignore

    def ended(self, attempt: EndedAttempt) -> None:
        """Report one attempt."""
        self.report(attempt)


def _ignore(_attempt: EndedAttempt) -> None:
    """Report nothing: the gateway has not started."""


def recovered(exchanges: Exchanges, payload: dict[str, Any], tenant: str) -> Exchange:
    """Return the exchange of a job of an earlier process; its content is read from the store when it runs."""
    request = ModelRequest(
        payload["path"],
        b"",
        payload["model"],
        payload["stream"],
        payload["options"],
        store=payload["store"],
        digest=payload["digest"],
    )
    return exchanges.make(request, tenant, payload["caller"])


async def stored_answer(queue: AsyncQueue, exchange: Exchange, job: Job) -> None:
    """Fill an exchange with the answer of a job that has finished, from the store."""
    names = {one.name for one in await queue.artifacts(job.id)}
    result = job.result if isinstance(job.result, dict) else None
    if result is None and HEAD in names:
        found = await queue.artifact(job.id, HEAD)
        result = json.loads(found.data)
    if result is not None and RESPONSE in names:
        head = AnswerHead(result["status"], tuple((name, value) for name, value in result["headers"]))
        content = (await queue.artifact(job.id, RESPONSE)).data
        if result["streamed"]:
            exchange.head, exchange.streaming = head, True
            exchange.feed(content)
        else:
            exchange.set_answer(head, content)
    elif PARTIAL in names:
        found = await queue.artifact(job.id, PARTIAL)
        exchange.head, exchange.streaming = AnswerHead(200, (("content-type", found.media_type),)), True
        exchange.feed(found.data)
    exchange.epoch = job.epoch
    finish(exchange, job)


def finish(exchange: Exchange, job: Job) -> None:
    """Release what an exchange holds back, if its job has finished."""
    problem = "" if job.failure is None else job.failure.message
    match job.state:
        case "done":
            exchange.finish("done", "" if exchange.complete else "the answer was erased")
        case "failed" | "retired":
            exchange.finish("failed", problem)
        case "cancelled":
            exchange.finish("cancelled", "the job was cancelled")
        case _:
            pass


_JSON: Final = "application/json"


def _is_retried(head: AnswerHead) -> bool:
    """Return whether a later attempt may succeed; the server may say it itself."""
    match head.get("x-should-retry"):
        case "true":
            return head.status >= 400
        case "false":
            return False
        case _:
            return head.status in _RETRIED


def _retry_after(head: AnswerHead) -> float | None:
    try:
        seconds = float(head.get("retry-after") or "")
    except ValueError:
        return None
    return min(max(seconds, 0.0), _RETRY_AFTER_MAX) if seconds == seconds else None  # noqa: PLR0124  # not NaN


def _passed_on(head: AnswerHead) -> list[tuple[str, str]]:
    return [(name, value) for name, value in head.headers if name not in _OWN_HEADERS][:_HEADERS_KEPT_MAX]


def _media_type(head: AnswerHead) -> str:
    given = (head.get("content-type") or "").strip()
    return given[: limits.NAME_CHARS_MAX] if given.isprintable() and given else "application/octet-stream"


def _encoded(head: AnswerHead) -> bytes:
    streamed = head.media_type in {dialects.NDJSON, dialects.SSE}
    return json.dumps({"status": head.status, "headers": head.headers, "streamed": streamed}).encode()
