"""Handler of `/v1/events`: a page as JSON, or a stream of server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from holdfast import json_view
from holdfast.domain import access
from holdfast.domain.errors import InvalidInput
from holdfast.domain.events import Event
from holdfast.operations.jobs import event_position
from holdfast.service.call import Call, reply
from holdfast.service.event_streams import EventStream, Matches
from holdfast.service.problems import ProblemError

MEDIA_TYPE = "text/event-stream"


async def events(call: Call) -> Response:
    """Return a page of events, or a stream if the client accepts `text/event-stream`."""
    matches = _filter(call)
    after = call.request.headers.get("last-event-id") or call.query.get("after")
    if MEDIA_TYPE in call.request.headers.get("accept", "") and call.request.method == "GET":
        return await _stream(call, matches, after)
    limit: dict[str, Any] = {"limit": call.query["limit"]} if "limit" in call.query else {}
    page = await call.queue.events(after=after, **limit)
    return reply({"events": [json_view.event(one) for one in page if matches(one)], "cursor": page.cursor})


def _filter(call: Call) -> Matches:
    grants, tenant = call.grants, call.tenant
    kinds, lanes, jobs = (frozenset(call.query.get(name, ())) for name in ("kind", "lane", "job"))
    tags = dict(_tag(tag) for tag in call.query.get("tag", ()))

    def matches(event: Event) -> bool:
        return (
            tenant in {None, event.tenant}
            and (not kinds or event.kind in kinds)
            and (not lanes or event.lane in lanes)
            and (not jobs or event.job_id in jobs)
            and access.covers(grants, event.lane, event.kind)
            and (not tags or tags.items() <= event.tags.items())
        )

    return matches


def _tag(text: str) -> tuple[str, str]:
    name, separator, value = text.partition(":")
    if not separator or not name:
        raise InvalidInput("tag", "must be a name and a value, such as customer:acme")
    return name, value


async def _stream(call: Call, matches: Matches, after: str | None) -> Response:
    position = None if after is None else event_position(after)
    stream = EventStream()
    service = call.service
    if service.closing.is_set():
        raise ProblemError(503, "shutting_down", "the server is shutting down", headers={"Retry-After": "1"})
    slot = call.caller.actor
    limit = service.settings.streams_per_token_max
    if service.streams[slot] >= limit:
        raise ProblemError(
            429,
            "too_many_streams",
            f"the token has {limit} open streams; close one",
            headers={"Retry-After": "5"},
            limit=limit,
        )
    service.streams[slot] += 1
    try:
        start = await service.tail.open(stream, position)
    except BaseException:
        _leave(call, slot, stream)
        raise
    parts = service.tail.follow(stream, start, matches, service.settings.ping_seconds)
    return _EventResponse(call, slot, stream, parts)


def _leave(call: Call, slot: str, stream: EventStream) -> None:
    call.service.tail.leave(stream)
    call.service.streams[slot] -= 1
    if not call.service.streams[slot]:
        del call.service.streams[slot]


class _EventResponse(StreamingResponse):
    """A stream that ends with its client, its token or the server."""

    def __init__(self, call: Call, slot: str, stream: EventStream, parts: AsyncIterator[bytes]) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(parts, media_type=MEDIA_TYPE, headers=headers)
        self._call = call
        self._slot = slot
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  # of ASGI
        """Send the stream."""
        gone = asyncio.create_task(self._watch_client(receive))
        try:
            with self._call.service.access.watch(self._call.caller, lambda: self._stream.end("token revoked")):
                await self.stream_response(send)
        finally:
            gone.cancel()
            _leave(self._call, self._slot, self._stream)

    async def _watch_client(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._stream.end("disconnected")
