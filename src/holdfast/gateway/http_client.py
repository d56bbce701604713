"""HTTP to the model server: one connection for each request, each chunk as it arrives.

A connection is not used twice: a model server takes far longer than a connection, and closing it is how a request is
cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final, NamedTuple, TypeAlias
from urllib.parse import urlsplit

import httptools

from holdfast.domain import errors

Headers: TypeAlias = Sequence[tuple[str, str]]

_CONNECT_SECONDS: Final = 10.0
# How many bytes may wait to be sent before a sender of a body waits.
_SEND_BUFFER_BYTES: Final = 256 << 10
# Headers that concern one connection, and not the message.
HOP_BY_HOP: Final = frozenset(
    (
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te"),
        *("trailer", "transfer-encoding", "upgrade"),
    )
)


class UpstreamFailedError(Exception):
    """The model server cannot be reached, or has closed the connection before the end of its answer."""


class Address(NamedTuple):
    """Where the model server is."""

    host: str
    port: int
    secure: bool
    prefix: str
    """The path before that of every request."""
    host_header: str


def parse_url(url: str, field: str = "upstream") -> Address:
    """Return the parts of the URL of a model server, or raise `InvalidInput`."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise errors.InvalidInput(field, f"is not a URL: {error}") from None
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise errors.InvalidInput(field, "must be a URL such as http://127.0.0.1:11434")
    if parts.username is not None or parts.query or parts.fragment:
        raise errors.InvalidInput(field, "must have no user, query or fragment; use the option for the key")
    secure = parts.scheme == "https"
    return Address(
        parts.hostname,
        port or (443 if secure else 80),
        secure,
        parts.path.rstrip("/"),
        parts.netloc.rpartition("@")[2],
    )


class AnswerHead(NamedTuple):
    """The status and the headers of an answer."""

    status: int
    headers: tuple[tuple[str, str], ...]

    def get(self, name: str) -> str | None:
        """Return the value of a header, by its name in lower case."""
        return next((value for key, value in self.headers if key == name), None)

    @property
    def media_type(self) -> str:
        """The media type, without parameters."""
        return (self.get("content-type") or "").partition(";")[0].strip().lower()


class Upstream:
    """Sends requests to one model server."""

    def __init__(self, url: str, key: str | None = None) -> None:
        self.url = url.rstrip("/")
        self._address = parse_url(url)
        self._key = key
        self._ssl = ssl.create_default_context() if self._address.secure else None

    @contextlib.asynccontextmanager
    async def send(
        self,
        method: str,
        path: str,
        headers: Headers = (),
        body: bytes | AsyncIterator[bytes] = b"",
    ) -> AsyncIterator[UpstreamAnswer]:
        """Send a request and give its answer once the headers have arrived; close the connection at the end.

        Raises `UpstreamFailedError`, also while the answer is read.
        """
        answer = UpstreamAnswer(method)
        loop = asyncio.get_running_loop()
        address = self._address
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                transport, protocol = await loop.create_connection(
                    lambda: _Connection(answer), address.host, address.port, ssl=self._ssl
                )
        except (OSError, TimeoutError) as error:
            problem = str(error) or "no answer in time"
            raise UpstreamFailedError(f"the model server cannot be reached: {problem}") from None
        try:
            transport.write(self._encode_head(method, path, headers, body))
            if isinstance(body, bytes):
                transport.write(body)
            else:
                await _send_parts(transport, protocol, body)
            await answer.wait_head()
            yield answer
        finally:
            transport.abort()

    def _encode_head(self, method: str, path: str, headers: Headers, body: bytes | AsyncIterator[bytes]) -> bytes:
        lines = [f"{method} {self._address.prefix}{path} HTTP/1.1", f"Host: {self._address.host_header}"]
        lines += [f"{name}: {value}" for name, value in headers]
        if self._key is not None:
            lines += [f"Authorization: Bearer {self._key}", f"x-api-key: {self._key}"]
        if not isinstance(body, bytes):
            lines.append("Transfer-Encoding: chunked")
        elif body or method not in {"GET", "HEAD"}:
            lines.append(f"Content-Length: {len(body)}")
        return ("\r\n".join([*lines, "Connection: close"]) + "\r\n\r\n").encode("latin-1")

    async def fetch(
        self, method: str, path: str, headers: Headers = (), body: bytes = b"", *, seconds: float = 10.0
    ) -> tuple[AnswerHead, bytes]:
        """Return a whole answer, or raise `UpstreamFailedError`, also if it takes longer than *seconds*."""
        try:
            async with asyncio.timeout(seconds), self.send(method, path, headers, body) as answer:
                return answer.head, await answer.read()
        except TimeoutError:
            raise UpstreamFailedError(f"the model server did not answer {path} within {seconds:g} s") from None


async def _send_parts(transport: asyncio.Transport, connection: _Connection, parts: AsyncIterator[bytes]) -> None:
    async for part in parts:
        if part:
            transport.write(b"%x\r\n%s\r\n" % (len(part), part))
            await connection.drain()
    transport.write(b"0\r\n\r\n")


class UpstreamAnswer:
    """An answer of the model server; iterate over it to get its chunks as they arrive."""

    def __init__(self, method: str) -> None:
        self.head = AnswerHead(0, ())
        self.method = method
        self._chunks: deque[bytes] = deque()
        self._ended = False
        self._error: UpstreamFailedError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._consume: Callable[[bytes], None] | None = None

    # --- called by the connection ----------------------------------------------------------------------------------

    def set_head(self, head: AnswerHead) -> None:
        """Store the status and the headers."""
        self.head = head
        self._wake()

    def add(self, data: bytes) -> None:
        """Add a part of the body."""
        if self._consume is not None:
            self._consume(data)
            return
        self._chunks.append(data)
        self._wake()

    def end(self, error: UpstreamFailedError | None = None) -> None:
        """End the body, with an error if it is not complete."""
        if not self._ended:
            self._ended, self._error = True, error
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # --- called by the reader --------------------------------------------------------------------------------------

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    async def wait_head(self) -> None:
        """Wait for the status and the headers."""
        while not self.head.status and not self._ended:
            await self._wait()
        if not self.head.status:
            raise self._error or UpstreamFailedError("the model server has closed the connection without an answer")

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        while not self._chunks:
            if self._ended:
                if self._error is not None:
                    raise self._error
                raise StopAsyncIteration
            await self._wait()
        if len(self._chunks) == 1:
            return self._chunks.popleft()
        joined = b"".join(self._chunks)
        self._chunks.clear()
        return joined

    async def forward(self, consume: Callable[[bytes], None]) -> None:
        """Call *consume* with each chunk as it arrives, without a task between, and return at the end of the body."""
        for chunk in self._chunks:
            consume(chunk)
        self._chunks.clear()
        self._consume = consume
        while not self._ended:
            await self._wait()
        if self._error is not None:
            raise self._error

    async def read(self) -> bytes:
        """Return the rest of the body."""
        return b"".join([chunk async for chunk in self])


class _Connection(asyncio.Protocol):
    """One connection: parses the answer of one request."""

    def __init__(self, answer: UpstreamAnswer) -> None:
        self._answer = answer
        self._parser = httptools.HttpResponseParser(self)
        self._headers: list[tuple[str, str]] = []
        self._until_close = False
        self._transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()
        self._writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101  # of a stream connection
        transport.set_write_buffer_limits(_SEND_BUFFER_BYTES)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._answer.end(UpstreamFailedError(f"the model server does not speak HTTP: {error}"))
            if self._transport is not None:
                self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._writable.set()
        if self._until_close and exc is None:
            self._answer.end()
        self._answer.end(UpstreamFailedError("the model server has closed the connection within its answer"))

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    async def drain(self) -> None:
        """Wait until more can be sent."""
        await self._writable.wait()

    # --- callbacks of the parser -----------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Begin an answer; one with a status of 1xx may precede another."""
        self._headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header."""
        self._headers.append((name.decode("latin-1").lower(), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        """Store the head; a body without a length ends with the connection."""
        status = self._parser.get_status_code()
        if status < 200:
            return
        head = AnswerHead(status, tuple(self._headers))
        names = {name for name, _ in self._headers}
        bodiless = self._answer.method == "HEAD" or status in {204, 304}
        self._until_close = not bodiless and names.isdisjoint(("content-length", "transfer-encoding"))
        self._answer.set_head(head)
        if bodiless:
            self._answer.end()

    def on_body(self, body: bytes) -> None:
        """Add a part of the body."""
        self._answer.add(body)

    def on_message_complete(self) -> None:
        """End the answer."""
        if self._parser.get_status_code() >= 200 and not self._until_close:
            self._answer.end()
