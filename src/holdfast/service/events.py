"""Handler of `/v1/events`: a page as JSON, or a stream of server-sent events."""

from typing import Any

from starlette.responses import Response

from holdfast import json_view
from holdfast.domain import access, errors
from holdfast.domain.events import Event
from holdfast.operations.jobs import event_position
from holdfast.service import event_streams, streams
from holdfast.service.call import Call, reply


async def events(call: Call) -> Response:
    """Return a page of events, or a stream if the client accepts `text/event-stream`."""
    matches = _filter(call)
    after = call.request.headers.get("last-event-id") or call.query.get("after")
    if streams.is_wanted(call):
        return await _stream(call, matches, after)
    limit: dict[str, Any] = {"limit": call.query["limit"]} if "limit" in call.query else {}
    page = await call.queue.events(after=after, **limit)
    return reply({"events": [json_view.event(one) for one in page if matches(one)], "cursor": page.cursor})


def _filter(call: Call) -> event_streams.Matches:
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
        raise errors.InvalidInput("tag", "must be a name and a value, such as customer:acme")
    return name, value


async def _stream(call: Call, matches: event_streams.Matches, after: str | None) -> Response:
    position = None if after is None else event_position(after)
    service = call.service
    stream = service.streams.add(call)

    def leave() -> None:
        service.tail.leave(stream)
        service.streams.remove(call, stream)

    try:
        start = await service.tail.open(stream, position)
    except BaseException:
        leave()
        raise
    parts = service.tail.follow(stream, start, matches, service.settings.ping_seconds)
    return streams.StreamResponse(call, stream, parts, leave)
