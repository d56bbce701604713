"""Connections to receivers: each address is checked before anything is sent to it.

A name is resolved once for each connection, every address of it is checked, and a checked address is connected to, so
that a name which changes its address in between cannot be used to reach another. Redirects, cookies, compression and
proxies of the environment do not exist here: one request is written, and one answer is read by httptools.
"""

import asyncio
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple, TypeAlias

import httptools

from holdfast.domain import limits, webhook_urls, webhooks

Resolve: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the addresses of a host."""

_KEPT_MAX: Final = 256
_KEPT_SECONDS: Final = 20.0
_SWEEP_SECONDS: Final = 1.0
_LOOK_UPS_AT_ONCE: Final = 16
_HEAD_BYTES_MAX: Final = 64 << 10


class AddressRefusedError(Exception):
    """The host has an address to which nothing is sent."""


class ExchangeError(Exception):
    """The receiver sent no complete answer."""


class _StaleError(ExchangeError):
    """A kept connection was closed before a byte of the answer."""


class Received(NamedTuple):
    """An answer as it was read: its beginning, if it is too long."""

    status: int
    retry_after: str
    body: bytes


class ReceiverConnection(asyncio.Protocol):
    """One connection to a receiver, for one request at a time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._waiting: asyncio.Future[Received] | None = None
        self._status = 0
        self._retry_after = ""
        self._body = bytearray()
        self._head_bytes = 0
        self._began = self._has_head = self._has_length = False
        self.used_at = 0.0
        """When the last answer was complete."""

    @property
    def open(self) -> bool:
        """Whether a request can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101  # of a stream
        self._transport = transport

    async def exchange(self, request: bytes) -> Received:
        """Send a request and return its answer; the connection is closed unless it can be used again."""
        assert self._transport is not None  # noqa: S101  # connected
        self._waiting = self._loop.create_future()
        self._parser = httptools.HttpResponseParser(self)
        self._status, self._retry_after, self._head_bytes = 0, "", 0
        self._began = self._has_head = self._has_length = False
        self._body = bytearray()
        self._transport.write(request)
        try:
            return await self._waiting
        except BaseException:
            self.abort()
            raise
        finally:
            self._waiting = None

    def abort(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    # --- what the receiver sends -----------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Parse a part of the answer; data without a request ends the connection."""
        if self._waiting is None or self._waiting.done() or self._parser is None:
            self.abort()
            return
        self._began = True
        if not self._has_head:
            self._head_bytes += len(data)
            if self._head_bytes > _HEAD_BYTES_MAX + limits.WEBHOOK_ANSWER_BYTES_MAX:
                self._fail(ExchangeError("the headers of the answer are too large"))
                return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(ExchangeError(f"the answer is not HTTP/1.1: {type(error).__name__}"))

    def eof_received(self) -> None:
        """End the answer, if the end of the connection is its end."""
        if self._waiting is None or self._waiting.done():
            return
        if self._has_head and not self._has_length:
            self._complete()
        else:
            self._fail_ended()

    def connection_lost(self, error: Exception | None) -> None:
        """Fail the request that waits."""
        if self._waiting is not None and not self._waiting.done():
            self._fail_ended(error)

    def _fail_ended(self, error: Exception | None = None) -> None:
        if not self._began and self.used_at:
            self._fail(_StaleError("the receiver has closed the connection"))
        else:
            cause = "" if error is None else f": {error}"
            self._fail(ExchangeError(f"the receiver closed the connection before the end of its answer{cause}"))

    def _fail(self, error: Exception) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error)
        self.abort()

    # --- called by the parser --------------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep the headers that matter."""
        name = name.lower()
        if name == b"retry-after":
            self._retry_after = value.decode("latin-1")
        elif name in {b"content-length", b"transfer-encoding"}:
            self._has_length = True

    def on_headers_complete(self) -> None:
        """Note the status; that of an interim answer is followed by another."""
        assert self._parser is not None  # noqa: S101  # it calls
        self._status = self._parser.get_status_code()
        self._has_head = self._status >= 200

    def on_body(self, body: bytes) -> None:
        """Keep the body up to its limit; the rest is not read."""
        self._body += body
        if len(self._body) >= limits.WEBHOOK_ANSWER_BYTES_MAX:
            self._complete()
            self.abort()

    def on_message_complete(self) -> None:
        """Complete the answer."""
        if self._status < 200:
            self._has_length, self._retry_after = False, ""
            return
        assert self._parser is not None  # noqa: S101  # it calls
        self._complete()
        if not self._parser.should_keep_alive():
            self.abort()

    def _complete(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self.used_at = time.monotonic()
            self._waiting.set_result(Received(self._status, self._retry_after, bytes(self._body)))


class Connections:
    """Sends requests over connections that are kept open for a short time; the sender limits how many run at once."""

    def __init__(
        self,
        allowed: Sequence[webhook_urls.Network],
        *,
        resolve: Resolve | None = None,
        ssl_context: ssl.SSLContext | None = None,
        timeout_seconds: float = limits.WEBHOOK_TIMEOUT_MS / 1000,
    ) -> None:
        self._allowed = allowed
        self._look_ups = ThreadPoolExecutor(_LOOK_UPS_AT_ONCE, "holdfast-webhook-names")
        self._resolve = resolve or self._addresses
        self._ssl_context = ssl_context
        self._timeout_seconds = timeout_seconds
        self._idle: dict[str, list[ReceiverConnection]] = {}
        """Connections that may be used again, by origin; the one that was used last is the last."""
        self._idle_count = 0
        self._sweep_at = 0.0

    async def post(self, url: webhook_urls.WebhookUrl, headers: Mapping[str, str], body: bytes) -> webhooks.Answer:
        """Send a request and return the answer, or why there is none. Never raises because of the receiver."""
        try:
            async with asyncio.timeout(self._timeout_seconds):
                received = await self._post(url, _request(url, headers, body))
        except AddressRefusedError as error:
            return webhooks.Answer(None, str(error), refused=True)
        except TimeoutError:
            return webhooks.Answer(None, f"no answer within {self._timeout_seconds:g} seconds")
        except (ExchangeError, OSError, ValueError) as error:
            # The last two of connecting and of TLS, such as a certificate for another name, or of an invalid name.
            return webhooks.Answer(None, _clean(f"{type(error).__name__}: {error}"))
        retry_after = None
        if received.retry_after:
            retry_after = webhooks.retry_after_seconds(received.retry_after, round(time.time() * 1000))
        text = _clean(received.body[: limits.WEBHOOK_ANSWER_CHARS_KEPT].decode("utf-8", "replace"))
        return webhooks.Answer(received.status, text, retry_after)

    async def _post(self, url: webhook_urls.WebhookUrl, request: bytes) -> Received:
        connection = self._take(url.origin)
        if connection is not None:
            try:
                return await self._exchange(url.origin, connection, request)
            except _StaleError:
                # It was closed while the request was on its way; the delivery's id tells a receiver of a repetition.
                pass
        return await self._exchange(url.origin, await self._connect(url), request)

    async def _exchange(self, origin: str, connection: ReceiverConnection, request: bytes) -> Received:
        received = await connection.exchange(request)
        self._put_back(origin, connection)
        return received

    async def _connect(self, url: webhook_urls.WebhookUrl) -> ReceiverConnection:
        """Resolve the host, check all its addresses and connect to the first that answers."""
        try:
            addresses = await self._resolve(url.host, url.port)
        except OSError as error:
            raise ExchangeError(f"the host cannot be resolved: {error}") from None
        problem = webhook_urls.refusal(url.scheme, addresses, self._allowed)
        if problem is not None:
            raise AddressRefusedError(problem)
        context = None
        if url.scheme == "https":
            context = self._ssl_context = self._ssl_context or ssl.create_default_context()
        loop = asyncio.get_running_loop()
        failure: Exception = ExchangeError("the host has no address")
        for address in addresses:
            try:
                _, connection = await loop.create_connection(
                    ReceiverConnection,
                    address,
                    url.port,
                    ssl=context,
                    server_hostname=None if context is None else url.host,
                )
            except ssl.SSLError:
                raise
            except OSError as error:
                failure = error
            else:
                return connection
        raise failure

    # --- kept connections ------------------------------------------------------------------------------------------

    def _take(self, origin: str) -> ReceiverConnection | None:
        """Return a connection that was kept, if one is still open."""
        while kept := self._idle.get(origin):
            connection = kept.pop()
            self._idle_count -= 1
            if not kept:
                del self._idle[origin]
            if connection.open and time.monotonic() - connection.used_at < _KEPT_SECONDS:
                return connection
            connection.abort()
        return None

    def _put_back(self, origin: str, connection: ReceiverConnection) -> None:
        """Keep a connection whose answer was read to its end, unless there are too many."""
        if not connection.open:
            return
        if self._idle_count >= _KEPT_MAX and time.monotonic() > self._sweep_at:
            self._sweep_at = time.monotonic() + _SWEEP_SECONDS
            self._close_idle(expired_only=True)
        if self._idle_count < _KEPT_MAX:
            self._idle.setdefault(origin, []).append(connection)
            self._idle_count += 1
        else:
            connection.abort()

    def _close_idle(self, *, expired_only: bool) -> None:
        kept: dict[str, list[ReceiverConnection]] = {}
        before = time.monotonic() - _KEPT_SECONDS
        for origin, connections in self._idle.items():
            for one in connections:
                if expired_only and one.open and one.used_at > before:
                    kept.setdefault(origin, []).append(one)
                else:
                    one.abort()
        self._idle, self._idle_count = kept, sum(map(len, kept.values()))

    async def _addresses(self, host: str, port: int) -> Sequence[str]:
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(
            self._look_ups, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        )
        return [str(one[4][0]) for one in found]

    async def close(self) -> None:
        """Close all connections."""
        self._close_idle(expired_only=False)
        self._look_ups.shutdown(wait=False, cancel_futures=True)


def _request(url: webhook_urls.WebhookUrl, headers: Mapping[str, str], body: bytes) -> bytes:
    """Return the bytes of a request. No part can contain a line break: the URL is checked, the headers are ours."""
    lines = [f"POST {url.target} HTTP/1.1", f"Host: {url.authority}", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join((*lines, "", "")).encode("ascii") + body


def _clean(text: str) -> str:
    """Return *text* as it can be stored: without NUL and halves of surrogate pairs."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()
