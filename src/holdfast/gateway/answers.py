"""Answers to callers: the answer of the model server as it is, streamed or whole, and refusals in its dialect."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from starlette.types import Receive, Scope, Send

from holdfast.gateway.dialects import Dialect
from holdfast.gateway.exchanges import Exchange, ExchangeReader

if TYPE_CHECKING:
    from holdfast.gateway.gateway import Gateway

JOB_HEADER: Final = "holdfast-job"
_WHOLE_WAIT_SECONDS: Final = 60.0
# Keeps proxies from collecting a stream before they pass it on.
_UNBUFFERED: Final = ("x-accel-buffering", "no")
_ENDS: Final = {
    "done": (410, "content_erased"),
    "failed": (502, "upstream_failed"),
    "cancelled": (503, "cancelled"),
}
"""What callers of jobs without an answer get."""


class GatewayRefusal(Exception):  # noqa: N818  # an answer, in the dialect of its path
    """A refusal by the gateway itself."""

    def __init__(self, status: int, code: str, message: str, headers: Iterable[tuple[str, str]] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.headers = tuple(headers)


class AnswerChannel:
    """One answer over ASGI."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self.receive = receive
        self._send = send
        self.started = False

    async def start(self, status: int, headers: Iterable[tuple[str, str]]) -> None:
        """Send the status and the headers."""
        self.started = True
        encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        await self._send({"type": "http.response.start", "status": status, "headers": encoded})

    async def write(self, data: bytes, *, more: bool = True) -> None:
        """Send a part of the body."""
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def whole(self, status: int, headers: Iterable[tuple[str, str]], content: bytes) -> None:
        """Send a whole answer."""
        length = [] if status in {204, 304} else [("content-length", str(len(content)))]
        await self.start(status, [*headers, *length])
        await self.write(content, more=False)

    async def refuse(self, dialect: Dialect, refusal: GatewayRefusal) -> None:
        """Send a refusal in the dialect of the path."""
        content = dialect.error_body(refusal.status, refusal.code, refusal.message)
        await self.whole(refusal.status, [("content-type", "application/json"), *refusal.headers], content)


async def watch_client(receive: Receive, reader: ExchangeReader) -> None:
    """Wait until the client closes the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
    reader.leave()


class ExchangeAnswer:
    """Sends the answer of a job to one reader."""

    def __init__(self, gateway: Gateway, exchange: Exchange, channel: AnswerChannel) -> None:
        self._gateway = gateway
        self._exchange = exchange
        self._channel = channel
        self._dialect = exchange.request.dialect

    async def send(self, reader: ExchangeReader) -> None:
        """Send the answer, until its end or until the client is gone."""
        watcher = asyncio.create_task(watch_client(self._channel.receive, reader))
        try:
            if self._exchange.request.stream:
                await self._send_stream(reader)
            else:
                await self._send_whole(reader)
        finally:
            watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watcher

    # --- whole -----------------------------------------------------------------------------------------------------

    async def _send_whole(self, reader: ExchangeReader) -> None:
        while self._exchange.ended is None and not reader.gone:
            await reader.wait(time.monotonic() + _WHOLE_WAIT_SECONDS)
        if self._exchange.ended is None:
            await self._leave_waiting()
        else:
            await self._send_final()

    async def _send_final(self) -> None:
        """Send the answer of the model server as it is, or why there is none."""
        exchange = self._exchange
        if exchange.complete and exchange.head is not None:
            content = b"".join([*exchange.frames, exchange.held])
            await self._channel.whole(exchange.head.status, [*exchange.head.headers, *self._own_headers()], content)
            return
        status, code = _ENDS.get(exchange.ended or "failed", (502, "upstream_failed"))
        retry = ("x-should-retry", "false")
        refusal = GatewayRefusal(status, code, self._problem(), [retry, *self._own_headers()])
        await self._channel.refuse(self._dialect, refusal)

    async def _leave_waiting(self) -> None:
        """Let a caller go that waits while the server shuts down; a retry joins its job."""
        if self._gateway.closing:
            message = f"the gateway restarts; the request is kept as job {self._exchange.job_id}"
            refusal = GatewayRefusal(503, "shutting_down", message, [("retry-after", "1"), *self._own_headers()])
            with contextlib.suppress(OSError):
                await self._channel.refuse(self._dialect, refusal)

    # --- streams ---------------------------------------------------------------------------------------------------

    async def _send_stream(self, reader: ExchangeReader) -> None:
        exchange, settings = self._exchange, self._gateway.settings
        hold_until = time.monotonic() + settings.hold_headers
        while not reader.interrupted:
            if data := reader.take():
                if not self._channel.started and exchange.head is not None:
                    headers = [*exchange.head.headers, _UNBUFFERED, *self._own_headers()]
                    await self._channel.start(exchange.head.status, headers)
                await self._channel.write(data)
                continue
            if exchange.ended is not None or reader.gone:
                break
            if self._channel.started:
                await self._wait_or_keep_alive(reader, settings.keep_alive_every)
            elif time.monotonic() < hold_until:
                await reader.wait(hold_until)
            else:
                await self._start_early()
        await self._end_stream(reader)

    async def _wait_or_keep_alive(self, reader: ExchangeReader, seconds: float) -> None:
        until = time.monotonic() + seconds
        await reader.wait(until)
        if time.monotonic() >= until:
            model = self._exchange.request.model
            await self._channel.write(self._dialect.keep_alive(self._exchange.request.path, model))

    async def _start_early(self) -> None:
        """Send the headers of a stream before the model server has answered, so that no proxy gives up."""
        headers = [("content-type", self._dialect.media_type), ("cache-control", "no-cache"), _UNBUFFERED]
        headers += self._own_headers()
        await self._channel.start(200, headers)
        model = self._exchange.request.model
        await self._channel.write(self._dialect.keep_alive(self._exchange.request.path, model))

    async def _end_stream(self, reader: ExchangeReader) -> None:
        exchange, channel = self._exchange, self._channel
        if not channel.started:
            if exchange.ended is not None:
                await self._send_final()
            else:
                await self._leave_waiting()
            return
        if reader.interrupted or not (exchange.streaming and exchange.complete and exchange.ended):
            if reader.gone and not self._gateway.closing:
                return
            message = self._problem() if exchange.ended else f"the attempt was interrupted (job {exchange.job_id})"
            await channel.write(self._dialect.error_frame("stream_interrupted", message))
        await channel.write(b"", more=False)

    # --- texts and headers -----------------------------------------------------------------------------------------

    def _problem(self) -> str:
        exchange = self._exchange
        problem = exchange.problem or "the request could not be completed"
        if exchange.head is not None and not exchange.streaming and exchange.held:
            problem = (
                f"the model server answers {exchange.head.status}: {exchange.held[:500].decode('utf-8', 'replace')}"
            )
        return f"{problem} (job {exchange.job_id})"

    def _own_headers(self) -> list[tuple[str, str]]:
        headers = [(JOB_HEADER, self._exchange.job_id)]
        if self._exchange.epoch:
            headers.append(("holdfast-attempt", str(self._exchange.epoch)))
        return [*headers, *place_headers(self._gateway, self._exchange)]


def place_headers(gateway: Gateway, exchange: Exchange) -> list[tuple[str, str]]:
    """Return the headers with the position and the estimate of a request that waits."""
    place = gateway.place(exchange)
    if place is None:
        return []
    return [("holdfast-position", str(place.position)), ("holdfast-estimate", f"{place.seconds:.1f}")]
