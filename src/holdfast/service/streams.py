"""Streams of server-sent events: each ends with its client, its token or the server."""

import asyncio
import functools
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from holdfast.service import problems
from holdfast.service.call import Call

MEDIA_TYPE: Final = "text/event-stream"
RETRY_LINE: Final = b"retry: 2000\n\n"


class EventStream:
    """One stream: woken by new events, and ended from outside."""

    def __init__(self) -> None:
        self.signal = asyncio.Event()
        self.ended: str | None = None

    def wake(self) -> None:
        """Let the stream look for events."""
        self.signal.set()

    def end(self, why: str) -> None:
        """End the stream."""
        self.ended = self.ended or why
        self.signal.set()

    async def wait(self, seconds: float) -> bool:
        """Return whether it was woken or ended within *seconds*."""
        try:
            await asyncio.wait_for(self.signal.wait(), seconds)
        except TimeoutError:
            return False
        self.signal.clear()
        return True


class OpenStreams:
    """The open streams of one server process, by caller."""

    def __init__(self) -> None:
        self._by_caller: dict[str, set[EventStream]] = {}

    def add(self, call: Call) -> EventStream:
        """Return a new stream, or raise if the server is shutting down or the caller has too many streams."""
        if call.service.closing.is_set():
            raise problems.ProblemError(
                503, "shutting_down", "the server is shutting down", headers={"Retry-After": "1"}
            )
        limit = call.service.settings.streams_per_token_max
        open_ones = self._by_caller.setdefault(call.caller.actor, set())
        if len(open_ones) >= limit:
            raise problems.ProblemError(
                429,
                "too_many_streams",
                f"the token has {limit} open streams; close one",
                headers={"Retry-After": "5"},
                limit=limit,
            )
        stream = EventStream()
        open_ones.add(stream)
        return stream

    def remove(self, call: Call, stream: EventStream) -> None:
        """Forget a stream."""
        open_ones = self._by_caller.get(call.caller.actor, set())
        open_ones.discard(stream)
        if not open_ones:
            self._by_caller.pop(call.caller.actor, None)

    def end_all(self, why: str) -> None:
        """End every stream."""
        for open_ones in self._by_caller.values():
            for stream in open_ones:
                stream.end(why)


class StreamResponse(StreamingResponse):
    """A stream that ends with its client, its token or the server; then *leave* is called."""

    def __init__(
        self, call: Call, stream: EventStream, parts: AsyncIterator[bytes], leave: Callable[[], object]
    ) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(parts, media_type=MEDIA_TYPE, headers=headers)
        self._call = call
        self._stream = stream
        self._leave = leave

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  # of ASGI
        """Send the stream."""
        gone = asyncio.create_task(self._watch_client(receive))
        try:
            end = functools.partial(self._stream.end, "the token was revoked or has expired")
            with self._call.service.access.watch(self._call.caller, end):
                await self.stream_response(send)
        finally:
            gone.cancel()
            self._leave()

    async def _watch_client(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._stream.end("disconnected")


def is_wanted(call: Call) -> bool:
    """Return whether the client asks for a stream."""
    return MEDIA_TYPE in call.request.headers.get("accept", "") and call.request.method == "GET"


def comment_text(text: str) -> bytes:
    """Return a comment, which clients ignore."""
    return b": %s\n\n" % text.encode()


def named_event(name: str, data: Any) -> bytes:
    """Return an event of the stream itself, such as `lagged`; JSON contains no line ends."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), problems.encode(data))
