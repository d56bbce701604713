"""Handler of `/v1/notifications`: a worker learns when to claim, to send heartbeats, or to drain or stop."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from starlette.responses import Response

from holdfast.domain import access
from holdfast.service import streams
from holdfast.service.call import Call, reply
from holdfast.storage.notifications import lane_topic, sessions_topic, worker_request_topic, worker_topic

# Notifications that arrive within this time after one are sent together.
_GATHER_SECONDS: Final = 0.02


class _Topic(NamedTuple):
    """What a client listens to: its name in the answer, and the lane or worker."""

    key: str
    name: str


class _TopicListener:
    """Adds a topic to those that were notified, in any thread."""

    def __init__(self, stream: streams.EventStream, topic: _Topic, notified: set[_Topic]) -> None:
        self._loop = asyncio.get_running_loop()
        self._stream = stream
        self._topic = topic
        self._notified = notified

    def wake(self) -> None:
        """Record the notification and wake the stream."""
        # A set that contains it is not changed, and the stream will be woken.
        if self._topic not in self._notified and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._add)

    def _add(self) -> None:
        self._notified.add(self._topic)
        self._stream.wake()


async def notifications(call: Call) -> Response:
    """Return what was notified while the request waited, or a stream if the client accepts `text/event-stream`."""
    topics = _topics(call)
    if streams.is_wanted(call):
        stream = call.service.streams.add(call)
        return streams.StreamResponse(
            call, stream, _follow(call, stream, topics), lambda: call.service.streams.remove(call, stream)
        )
    seconds = min(call.query.get("wait", 0.0), call.service.settings.wait_seconds_max)
    with _listening(call, stream := streams.EventStream(), topics) as notified:
        if seconds:
            await call.wait_for(stream.wait(seconds), otherwise=False)
        return reply(_view(notified))


def _topics(call: Call) -> dict[str, _Topic]:
    lanes = call.query.get("lane", ())
    session_lanes = call.query.get("session_lane", ())
    for lane in (*lanes, *session_lanes):
        access.check_lane(call.grants, lane, "lane")
    topics = {lane_topic(lane): _Topic("lanes", lane) for lane in lanes}
    topics |= {sessions_topic(lane): _Topic("session_lanes", lane) for lane in session_lanes}
    for worker in call.query.get("worker", ()):
        topics[worker_topic(worker)] = _Topic("cancellations", worker)
        topics[worker_request_topic(worker)] = _Topic("requests", worker)
    return topics


@contextmanager
def _listening(call: Call, stream: streams.EventStream, topics: dict[str, _Topic]) -> Iterator[set[_Topic]]:
    """Listen during the block; yield the set of what was notified."""
    notifier, notified = call.service.store.notifier, set[_Topic]()
    listeners = {name: _TopicListener(stream, topic, notified) for name, topic in topics.items()}
    for name, listener in listeners.items():
        notifier.add(name, listener)
    try:
        yield notified
    finally:
        for name, listener in listeners.items():
            notifier.remove(name, listener)


def _view(notified: set[_Topic]) -> dict[str, Any]:
    shown: dict[str, list[str]] = {"lanes": [], "session_lanes": [], "cancellations": [], "requests": []}
    for key, name in sorted(notified):
        shown[key].append(name)
    return dict(shown)


async def _follow(call: Call, stream: streams.EventStream, topics: dict[str, _Topic]) -> AsyncIterator[bytes]:
    ping_seconds = call.service.settings.ping_seconds
    with _listening(call, stream, topics) as notified:
        # What happens from now on is notified; the client looks once for what happened before.
        yield streams.RETRY_LINE + streams.named_event("listening", {})
        sent_at = 0.0
        while stream.ended is None:
            if not await stream.wait(ping_seconds):
                yield streams.comment_text("ping")
            elif notified:
                await asyncio.sleep(max(sent_at + _GATHER_SECONDS - time.monotonic(), 0))
                text = streams.named_event("notified", _view(notified))
                notified.clear()
                sent_at = time.monotonic()
                yield text
    yield streams.comment_text(stream.ended)
