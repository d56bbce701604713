"""HTTP on the wire: uvicorn's protocol with a watchdog for clients that send or read too slowly.

An ASGI application sees neither headers that never end nor a body that stalls, and uvicorn does not limit them.
"""

import asyncio
import socket
import struct
from typing import Any, Literal

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from holdfast.service import problems
from holdfast.service.settings import ServiceSettings

Phase = Literal["idle", "headers", "body", "answer"]


class JoinedWrites:
    """Sends the head of a response with the first part of its body: one packet, and one system call instead of two.

    In each system call other threads take the interpreter. A head that no body follows is sent at once after it.
    """

    __slots__ = ("_head", "_joined", "_loop", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head = b""
        self._joined = False

    def write(self, data: bytes) -> None:
        """Send *data*, or keep it if it is the head."""
        if self._joined:
            self._transport.write(data)
        elif self._head:
            self._joined = True
            self._transport.write(self._head + data)
        else:
            self._head = data
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        if self._head and not self._joined:
            self._joined = True
            self._transport.write(self._head)

    def close(self) -> None:
        """Close the connection after what was written."""
        self._flush()
        self._transport.close()

    def is_closing(self) -> bool:
        """Return whether the connection is closed or closing."""
        return self._transport.is_closing()


class _AfterHead:
    """What a parser calls that was given a head to know how the body ends: passes on all but that head."""

    def __init__(self, protocol: HttpToolsProtocol) -> None:
        self._protocol = protocol
        self._in_head = True
        self.on_body = protocol.on_body
        self.on_message_complete = protocol.on_message_complete

    def on_message_begin(self) -> None:
        """Begin the next request."""
        if not self._in_head:
            self._protocol.on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Take the URL of the next request."""
        if not self._in_head:
            self._protocol.on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header of the next request, or one that follows the body."""
        if not self._in_head:
            self._protocol.on_header(name, value)

    def on_headers_complete(self) -> None:
        """Start the next request."""
        if self._in_head:
            self._in_head = False
        else:
            self._protocol.on_headers_complete()


class WatchedProtocol(HttpToolsProtocol):
    """One connection. One timer watches whatever the client has to do next."""

    settings = ServiceSettings()
    """Replaced by `watched`."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        # Uvicorn's own lines would contain queries.
        self.access_log = False
        self._phase: Phase = "idle"
        self._timer: asyncio.TimerHandle | None = None
        self._sending: asyncio.TimerHandle | None = None
        self._since = 0.0
        self._received = 0
        self._header_bytes = 0
        self._problem: problems.ProblemError | None = None

    # --- connection ------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept the connection unless there are too many."""
        super().connection_made(transport)
        limit = self.settings.connections_max
        if len(self.connections) > limit:
            self._refuse(problems.ProblemError(503, "overloaded", f"the server has {limit} connections", limit=limit))
            return
        self._begin_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers."""
        for timer in (self._timer, self._sending):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    # --- headers ---------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Parse data; count it while it belongs to headers."""
        if self.transport.is_closing():
            return
        if self._phase == "idle":
            self._begin_headers()
        self._unset_keepalive_if_required()
        self._parse(data)
        if self._phase == "headers":
            # Not yet complete: a single header may be endless.
            self._count_header(len(data))

    def _parse(self, data: bytes) -> None:
        parts: list[bytes | memoryview] = [data]
        while parts and not self.transport.is_closing():
            part = parts.pop()
            try:
                self.parser.feed_data(part)
            except httptools.HttpParserError:
                self.send_400_response("the request is not HTTP")
            except httptools.HttpParserUpgrade as upgrade:
                # The request offers another protocol, and the parser takes what follows its head for that. A server
                # may ignore the offer. Some clients make it in every request, and expect the body to be read.
                parts.append(memoryview(part)[upgrade.args[0] :])
                if framing := self._body_framing():
                    self.parser = httptools.HttpRequestParser(_AfterHead(self))
                    self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
                    parts.append(b"POST / HTTP/1.1\r\n%b\r\n" % framing)

    def _body_framing(self) -> bytes:
        """Return the headers that tell how the body of the request ends; none if it has no body."""
        names = (b"content-length", b"transfer-encoding")
        return b"".join(b"%b: %b\r\n" % header for header in self.headers if header[0] in names)

    def _begin_headers(self) -> None:
        self._phase = "headers"
        self._received = self._header_bytes = 0
        self._arm(self.settings.header_seconds)

    def on_message_begin(self) -> None:
        """Begin a request."""
        if self._phase != "headers":
            # Pipelined: the next request follows in the same data.
            self._begin_headers()
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count the bytes of a header; an exception ends the parsing."""
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > self.settings.header_bytes_max:
            self._problem = self._headers_too_large()
            raise httptools.HttpParserError("headers too large")
        super().on_header(name, value)

    def _count_header(self, count: int) -> None:
        self._received += count
        if self._received > self.settings.header_bytes_max and not self.transport.is_closing():
            self._refuse(self._headers_too_large())

    def _headers_too_large(self) -> problems.ProblemError:
        limit = self.settings.header_bytes_max
        return problems.ProblemError(
            431, "headers_too_large", f"the headers are larger than {limit} bytes", limit=limit, field="headers"
        )

    def on_headers_complete(self) -> None:
        """Start the request and watch its body."""
        self._phase = "body"
        self._received = 0
        self._since = self.loop.time()
        self._arm(self.settings.body_seconds)
        before = self.cycle
        super().on_headers_complete()
        if self.cycle is not before:
            self.cycle.transport = JoinedWrites(self.transport, self.loop)  # type: ignore[assignment]

    # --- body ------------------------------------------------------------------------------------------------------

    def on_body(self, body: bytes) -> None:
        """Count the body."""
        self._received += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Stop the timer of the body: now the client waits."""
        if self.parser.should_upgrade() and self._body_framing():
            # The parser skips the body; see `_parse`.
            return
        self._disarm()
        self._phase = "answer"
        if self.cycle.response_complete:
            # Refused before its body was complete; uvicorn's timer for idle connections has been stopped.
            self._phase = "idle"
            self._arm(self.settings.keep_alive_seconds)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait for the next request; the rest of a body is read and dropped."""
        if self._phase == "answer":
            self._phase = "idle"
        super().on_response_complete()

    # --- timers ----------------------------------------------------------------------------------------------------

    def _arm(self, seconds: float) -> None:
        self._disarm()
        self._timer = self.loop.call_later(seconds, self._expired)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expired(self) -> None:
        """Refuse a client that has not sent its headers or body in time."""
        if self._phase == "body":
            if self.flow.read_paused:
                # The application does not read: that is not the client's fault.
                self._since, self._received = self.loop.time(), 0
            allowed = self.settings.body_seconds + self._received / self.settings.body_bytes_per_second_min
            left = self._since + allowed - self.loop.time()
            if left > 0:
                self._arm(left)
                return
        silent = self._phase == "headers" and not self._received and not self._header_bytes
        answered = self._phase == "body" and self.cycle.response_complete
        if silent or answered or self._phase == "idle":
            self.transport.close()
            return
        in_body = self._phase == "body"
        limit = self.settings.body_seconds if in_body else self.settings.header_seconds
        rate = f" and one more for each {self.settings.body_bytes_per_second_min} bytes" if in_body else ""
        detail = f"the {self._phase} took longer than {limit:g} seconds{rate}"
        self._refuse(problems.ProblemError(408, "request_timeout", detail, limit=limit, field=self._phase))

    def pause_writing(self) -> None:
        """Watch a client that does not read its response."""
        super().pause_writing()
        self._sending = self.loop.call_later(self.settings.send_seconds, self._reset)

    def resume_writing(self) -> None:
        """Stop the timer of a client that reads again."""
        super().resume_writing()
        if self._sending is not None:
            self._sending.cancel()
            self._sending = None

    def _reset(self) -> None:
        """Drop the connection and what was not sent; otherwise the kernel would keep it for minutes."""
        connection = self.transport.get_extra_info("socket")
        if connection is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    # --- refusals --------------------------------------------------------------------------------------------------

    def send_400_response(self, msg: str) -> None:
        """Refuse data that is not HTTP, or headers that are too large."""
        self._refuse(self._problem or problems.ProblemError(400, "bad_request", msg))

    def _refuse(self, problem: problems.ProblemError) -> None:
        """Send a problem if no response has begun, and close the connection."""
        self._disarm()
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and not cycle.response_complete:
            if cycle.response_started:
                self._reset()
                return
            cycle.disconnected = True
            cycle.message_event.set()
        content = problems.encode(problems.document(problem))
        head = [
            STATUS_LINE[problem.status],
            *(b"%s: %s\r\n" % header for header in self.server_state.default_headers),
            b"content-type: %s\r\n" % problems.MEDIA_TYPE.encode(),
            b"content-length: %d\r\n" % len(content),
            b"connection: close\r\n\r\n",
        ]
        self.transport.write(b"".join(head) + content)
        self.transport.close()


def watched(settings: ServiceSettings) -> type[WatchedProtocol]:
    """Return the protocol class with these settings; uvicorn makes the instances."""
    return type("WatchedProtocol", (WatchedProtocol,), {"settings": settings})
