"""Following the event log: one reader for all streams, a ring of recent events, and server-sent events."""

import asyncio
import contextlib
import logging
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable
from typing import Final

from holdfast import json_view
from holdfast.domain import errors, limits
from holdfast.domain.events import Event
from holdfast.operations import jobs as job_operations
from holdfast.service import problems, streams
from holdfast.storage import contract, runners

log = logging.getLogger("holdfast.service")

_POLL_SECONDS: Final = 0.1
_RETRY_SECONDS: Final = 1.0
_RING_MAX: Final = 10_000

Matches = Callable[[Event], bool]


class _Entry:
    """An event of the ring; its text is made once for all streams."""

    __slots__ = ("_text", "event", "position")

    def __init__(self, position: contract.EventPosition, event: Event) -> None:
        self.position = position
        self.event = event
        self._text: bytes | None = None

    @property
    def text(self) -> bytes:
        """The event as a server-sent event."""
        if self._text is None:
            self._text = event_text(self.event)
        return self._text


def event_text(event: Event) -> bytes:
    """Return an event of the log as a server-sent event; JSON contains no line ends."""
    return b"id: %s\ndata: %s\n\n" % (event.cursor.encode(), problems.encode(json_view.event(event)))


class EventTail:
    """Reads the end of the log while there are streams."""

    def __init__(self, runner: runners.AsyncRunner) -> None:
        self._runner = runner
        self._streams: set[streams.EventStream] = set()
        self._task: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self._entries: list[_Entry] = []
        self._removed = 0
        """How many entries were removed from the start of the ring."""
        self._start: contract.EventPosition = (0, 0)
        """The ring has every event after this position and up to `_end`."""
        self._end: contract.EventPosition = (0, 0)

    async def read_page(
        self, after: contract.EventPosition, limit: int
    ) -> tuple[tuple[Event, ...], contract.EventPosition]:
        """Return the events after a position that can be read now, and the last position."""
        page, _ = await self._runner.read(job_operations.event_page, contract.cursor_of(after), limit, None)
        return page.events, job_operations.event_position(page.cursor)

    async def open(self, stream: streams.EventStream, after: contract.EventPosition | None) -> contract.EventPosition:
        """Add a stream and return its start: *after*, or the end of the log. Raise `EventsPruned` if it is gone."""
        self._streams.add(stream)
        async with self._starting:
            if self._task is None or self._task.done():
                end = await self._runner.read(job_operations.end_of_events)
                self._entries, self._removed = [], 0
                self._start = self._end = end
                self._task = asyncio.create_task(self._run())
        if after is None:
            # Not the end of the ring, which the shared reader may be about to move.
            return await self._runner.read(job_operations.end_of_events)
        # Raises if the events after this position were pruned.
        await self.read_page(after, 1)
        return after

    def leave(self, stream: streams.EventStream) -> None:
        """Remove a stream."""
        self._streams.discard(stream)

    async def _run(self) -> None:
        while self._streams:
            pause = _POLL_SECONDS
            try:
                events, last = await self.read_page(self._end, limits.PAGE_MAX)
            except errors.EventsPruned as pruned:
                # Pruned before they were read: the streams are told that they lag.
                self._entries, self._removed = [], self._removed + len(self._entries) + 1
                self._start = self._end = job_operations.event_position(pruned.horizon)
                self._wake()
            except errors.HoldfastError as error:
                log.warning("events could not be read: %s", error)
                pause = _RETRY_SECONDS
            else:
                self._end = last
                if events:
                    self._add(events)
                    pause = 0 if len(events) == limits.PAGE_MAX else pause
            await asyncio.sleep(pause)

    def _add(self, events: tuple[Event, ...]) -> None:
        self._entries += [_Entry(job_operations.event_position(event.cursor), event) for event in events]
        surplus = len(self._entries) - _RING_MAX
        if surplus > _RING_MAX // 10:
            self._start = self._entries[surplus - 1].position
            del self._entries[:surplus]
            self._removed += surplus
        self._wake()

    def _wake(self) -> None:
        for stream in self._streams:
            stream.wake()

    # --- one stream ------------------------------------------------------------------------------------------------

    async def follow(
        self, stream: streams.EventStream, position: contract.EventPosition, matches: Matches, ping_seconds: float
    ) -> AsyncIterator[bytes]:
        """Yield server-sent events after *position* until the stream ends."""
        yield streams.RETRY_LINE
        while position < self._start and stream.ended is None:
            try:
                events, position = await self.read_page(position, limits.PAGE_MAX)
            except errors.EventsPruned as pruned:
                yield streams.named_event("pruned", {"cursor": pruned.horizon})
                return
            if text := b"".join(event_text(event) for event in events if matches(event)):
                yield text
        index = self._removed + bisect_right(self._entries, position, key=lambda entry: entry.position)
        while stream.ended is None:
            if index < self._removed:
                yield streams.named_event("lagged", {"cursor": contract.cursor_of(position)})
                return
            found = self._entries[index - self._removed :]
            index += len(found)
            # The store may have given this stream events that the shared reader reads only now.
            fresh = [entry for entry in found if entry.position > position]
            if fresh:
                position = fresh[-1].position
                if text := b"".join(entry.text for entry in fresh if matches(entry.event)):
                    yield text
                    continue
            if not await stream.wait(ping_seconds):
                # An event without data changes only the id from which the client resumes.
                yield b": ping\nid: %s\n\n" % contract.cursor_of(position).encode()
        yield streams.comment_text(stream.ended)

    async def close(self) -> None:
        """Stop reading."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
