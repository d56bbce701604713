"""Exchanges: what the attempt of a job and its callers share in memory.

The attempt adds the frames of the answer, readers take them, each from its own position. The terminator is held back
until the job is settled. An exchange of a job whose caller has left is kept for a grace, in which a retry may join.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, Literal, TypeAlias

from holdfast.domain.job import Job
from holdfast.gateway.backlog import WaitingRequest
from holdfast.gateway.dialects import FrameSplitter
from holdfast.gateway.http_client import AnswerHead
from holdfast.gateway.model_requests import ModelRequest

CallerKind: TypeAlias = Literal["waiting", "kept"]
"""`waiting`: the job is cancelled if its caller leaves. `kept`: it is asynchronous, or has an idempotency key."""
JoinKey: TypeAlias = tuple[str, str, str]
"""Tenant, path and digest of the body: what a retry has in common with the first request."""


class Exchange:
    """One job: its frames, its readers and its end."""

    def __init__(self, request: ModelRequest, join_key: JoinKey, caller_kind: CallerKind, order: int) -> None:
        self.request = request
        self.join_key = join_key
        self.caller_kind: CallerKind = caller_kind
        self.job_id = ""
        self.priority = 0
        self.affinity: str | None = None
        self.order = order
        self.epoch = 0
        """The epoch of the attempt whose frames these are; 0 before the first."""
        self.head: AnswerHead | None = None
        self.frames: list[bytes] = []
        """What readers may take."""
        self.held = b""
        """What follows the settlement: the terminator, or a whole answer that is not a stream."""
        self.streaming = False
        self.seen = False
        """Whether a reader has taken a frame of this attempt."""
        self.running = False
        self.ended: Literal["done", "failed", "cancelled"] | None = None
        self.problem = ""
        """Why it failed, if the answer of the model server does not say it."""
        self.orphaned_until: float | None = None
        """Until when an attempt waits for the caller, after a restart, by the monotonic clock."""
        self.callers = 0
        self.readers: set[ExchangeReader] = set()
        self.grace: asyncio.TimerHandle | None = None
        self._splitter = FrameSplitter(request.dialect.pattern)
        self._parts: list[bytes] = []
        self._terminated: Literal["end", "error"] | None = None

    # --- the attempt -----------------------------------------------------------------------------------------------

    def begin(self, epoch: int) -> None:
        """Begin an attempt: what no reader has seen of an earlier one is dropped."""
        self.interrupt()
        self.epoch, self.running, self.seen = epoch, True, False
        self.head, self.frames, self.held, self.streaming = None, [], b"", False
        self._splitter, self._parts, self._terminated = FrameSplitter(self.request.dialect.pattern), [], None

    def feed(self, data: bytes) -> None:
        """Add a chunk of a stream; from the terminator on, everything is held back."""
        self._parts.append(data)
        if self._terminated is not None:
            self.held += data
            return
        kind_of = self.request.dialect.frame_kind
        complete = self._splitter.feed(data)
        for index, frame in enumerate(complete):
            kind = kind_of(frame)
            if kind != "content":
                self._terminated = kind
                self.held = b"".join(complete[index:]) + self._splitter.rest
                break
            self.frames.append(frame)
        self._wake()

    def interrupt(self) -> None:
        """End the readers that have seen a part of this attempt: parts of two attempts are never joined."""
        for reader in self.readers:
            if reader.position:
                reader.interrupted = True
                reader.wake()

    @property
    def terminated(self) -> Literal["end", "error"] | None:
        """How the stream has ended in its own dialect; None if it has not."""
        return self._terminated

    @property
    def content(self) -> bytes:
        """All bytes of the answer so far."""
        return b"".join(self._parts)

    def set_answer(self, head: AnswerHead, content: bytes) -> None:
        """Store an answer that is not a stream; readers get it after the settlement."""
        self.head, self.held, self._parts = head, content, [content]

    # --- the end ---------------------------------------------------------------------------------------------------

    def finish(self, ended: Literal["done", "failed", "cancelled"], problem: str = "") -> None:
        """Release what was held back: the job is settled."""
        if self.ended is not None:
            return
        self.ended, self.problem, self.running = ended, problem, False
        if self.streaming and self.held:
            self.frames.append(self.held)
            self.held = b""
        self._wake()

    @property
    def complete(self) -> bool:
        """Whether the answer of the model server is complete, also if it is an error."""
        return self.head is not None and (not self.streaming or self._terminated is not None)

    def _wake(self) -> None:
        for reader in self.readers:
            reader.wake()

    @property
    def waiting(self) -> WaitingRequest:
        """How the backlog sees it."""
        return WaitingRequest(self.job_id, self.join_key[0], self.priority, self.affinity, self.order)


class ExchangeReader:
    """One reader of an exchange, at its own position."""

    def __init__(self, exchange: Exchange, position: int = 0) -> None:
        self.exchange = exchange
        self.position = position
        self.gone = False
        """Whether the client has closed the connection, or the server closes it."""
        self.interrupted = False
        """Whether the attempt that it read from has ended without a settlement."""
        self._future: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._until = 0.0

    def take(self) -> bytes:
        """Return the frames since the last call."""
        frames = self.exchange.frames
        if self.position >= len(frames):
            return b""
        self.exchange.seen = True
        taken = frames[self.position] if len(frames) == self.position + 1 else b"".join(frames[self.position :])
        self.position = len(frames)
        return taken

    def leave(self) -> None:
        """Note that the client is gone."""
        self.gone = True
        self.wake()

    def wake(self) -> None:
        """Let the reader look."""
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def wait(self, until: float) -> None:
        """Wait for a change, at most *until* a moment of the event loop's clock.

        The timer is set again only after it has fired: a stream waits far more often than it is idle.
        """
        loop = asyncio.get_running_loop()
        self._future, self._until = loop.create_future(), until
        if self._timer is None or self._timer.when() > until:
            self.stop_timer()
            self._timer = loop.call_at(until, self._fired)
        try:
            await self._future
        finally:
            self._future = None

    def _fired(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        if self._until > loop.time():
            self._timer = loop.call_at(self._until, self._fired)
        else:
            self.wake()

    def stop_timer(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Exchanges:
    """The exchanges of one gateway process, by job and by what a retry has in common with its first request."""

    def __init__(
        self, grace_seconds: float, cancel: Callable[[Exchange], None], forgotten: Callable[[Exchange], None]
    ) -> None:
        self._grace_seconds = grace_seconds
        self._cancel = cancel
        self._forgotten = forgotten
        self._by_job: dict[str, Exchange] = {}
        self._by_key: dict[JoinKey, list[Exchange]] = {}
        self._orders = count()
        self.joined = 0
        """How many retries have joined a job."""

    def make(self, request: ModelRequest, tenant: str, caller_kind: CallerKind) -> Exchange:
        """Return a new exchange, which is not registered."""
        return Exchange(request, (tenant, request.path, request.digest), caller_kind, next(self._orders))

    def add(self, exchange: Exchange, job_id: str, priority: int, affinity: str | None) -> None:
        """Register an exchange under the id of a job that is stored, or about to be stored."""
        exchange.job_id, exchange.priority, exchange.affinity = job_id, priority, affinity
        self._by_job[job_id] = exchange
        self._by_key.setdefault(exchange.join_key, []).append(exchange)

    def get(self, job_id: str) -> Exchange | None:
        """Return the exchange of a job."""
        return self._by_job.get(job_id)

    def __iter__(self) -> Iterator[Exchange]:
        return iter(self._by_job.values())

    def find_abandoned(self, join_key: JoinKey) -> Exchange | None:
        """Return a job with this key whose caller has gone, for a retry that joins it; its grace has begun."""
        found = next((one for one in self._by_key.get(join_key, ()) if one.grace is not None), None)
        if found is not None:
            self.joined += 1
        return found

    def unfinished(self) -> list[Exchange]:
        """Return the exchanges whose jobs have not ended. Safe to call from any thread."""
        return [one for one in list(self._by_job.values()) if one.ended is None]

    # --- callers ---------------------------------------------------------------------------------------------------

    @contextmanager
    def reading(self, exchange: Exchange, *, position: int = 0, caller: bool = True) -> Iterator[ExchangeReader]:
        """Read an exchange for a block; *caller* is whether the reader is a caller, whose leaving cancels the job."""
        reader = ExchangeReader(exchange, position)
        exchange.readers.add(reader)
        if caller:
            exchange.callers += 1
            exchange.orphaned_until = None
            if exchange.grace is not None:
                exchange.grace.cancel()
                exchange.grace = None
        try:
            yield reader
        finally:
            reader.stop_timer()
            exchange.readers.discard(reader)
            if caller:
                exchange.callers -= 1
                self.caller_left(exchange, delivered=not reader.gone)

    def caller_left(self, exchange: Exchange, *, delivered: bool = False) -> None:
        """Begin the grace if no caller is left; a job whose answer was delivered is forgotten at once."""
        if exchange.callers or exchange.grace is not None:
            return
        if exchange.ended is not None and delivered:
            self.forget(exchange)
            return
        if exchange.caller_kind == "waiting" or exchange.ended is not None:
            loop = asyncio.get_running_loop()
            exchange.grace = loop.call_later(self._grace_seconds, self._grace_over, exchange)

    def _grace_over(self, exchange: Exchange) -> None:
        exchange.grace = None
        if exchange.callers:
            return
        if exchange.ended is None and exchange.readers:
            # The stream is read again, by its number: it goes on as long as that.
            self.caller_left(exchange)
        elif exchange.ended is None:
            self._cancel(exchange)
        else:
            self.forget(exchange)

    def ended(self, exchange: Exchange) -> None:
        """Forget an exchange whose job has ended, unless a caller or a retry may still need it."""
        if not exchange.callers and exchange.grace is None:
            if exchange.caller_kind == "waiting" or not exchange.request.store:
                self.caller_left(exchange)
            elif not exchange.readers:
                self.forget(exchange)

    def forget(self, exchange: Exchange) -> None:
        """Remove an exchange."""
        if exchange.grace is not None:
            exchange.grace.cancel()
            exchange.grace = None
        self._by_job.pop(exchange.job_id, None)
        same_key = self._by_key.get(exchange.join_key, [])
        if exchange in same_key:
            same_key.remove(exchange)
        if not same_key:
            self._by_key.pop(exchange.join_key, None)
        self._forgotten(exchange)

    def recover(self, exchange: Exchange, job: Job) -> None:
        """Register the exchange of a job that an earlier process left."""
        self.add(exchange, job.id, job.priority, job.affinity)
        if exchange.caller_kind == "waiting":
            exchange.orphaned_until = time.monotonic() + self._grace_seconds
            self.caller_left(exchange)

    def end_readers(self, *, waiting_only: bool = False) -> None:
        """End the readers, with *waiting_only* those whose jobs do not run."""
        for exchange in list(self._by_job.values()):
            if not (waiting_only and exchange.running):
                for reader in list(exchange.readers):
                    reader.leave()

    def close(self) -> None:
        """Stop the timers, and end all readers."""
        self.end_readers()
        for exchange in self._by_job.values():
            if exchange.grace is not None:
                exchange.grace.cancel()
                exchange.grace = None


def payload_of(request: ModelRequest, headers: dict[str, str], caller_kind: CallerKind) -> dict[str, Any]:
    """Return the payload of a job: names and sizes, no content."""
    return {
        "path": request.path,
        "model": request.model,
        "stream": request.stream,
        "options": dict(request.options),
        "store": request.store,
        "digest": request.digest,
        "bytes": len(request.content),
        "headers": headers,
        "caller": caller_kind,
    }
