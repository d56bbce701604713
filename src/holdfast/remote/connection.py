"""Requests to the service, sync and async from one source: retries, timeouts, and errors.

As with operations, the methods are coroutines. Those of `SyncHttp` never suspend, so that `run_sync` drives them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import ssl
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping
from itertools import count
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode
from weakref import WeakSet

import httpx2

from holdfast.domain import backoff, errors, strict_json
from holdfast.remote.errors import error_of_response
from holdfast.storage import cancellation, randomness

log = logging.getLogger("holdfast")

RETRIES: Final = backoff.RetryPolicy(first=0.05, last=1.0)
"""The pauses before a call is sent again if the server cannot be reached or did not answer."""
# No retry begins later than this after the first request; after the first failure, if the server was to wait.
_RETRY_SECONDS: Final = 5.0
_CONNECT_SECONDS: Final = 5.0
# How long a response may take, besides the time for which the server was asked to wait.
_ANSWER_SECONDS: Final = 20.0
WAIT_SECONDS: Final = 30.0
"""The longest wait that is asked of the server in one request."""
# A request that failed so was not sent.
_NOT_SENT: Final = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.UnsupportedProtocol)
# The codes of OpenSSL for a certificate without a trusted issuer.
_UNTRUSTED: Final = frozenset((18, 19, 20, 21))
_GATEWAY_STATUSES: Final = frozenset((502, 503, 504))


# The steps of a request that open a connection.
_OPENED: Final = frozenset(("connection.connect_tcp.complete", "connection.start_tls.complete"))


# A client or a proxy would take these names for steps within the path.
_DOTS: Final[Mapping[str | int, str]] = {".": "%2E", "..": "%2E%2E"}


class Request(NamedTuple):
    """One call of the service."""

    method: str
    path: str
    """The path and query, percent-encoded."""
    content: bytes | None
    media_type: str
    wait: float
    repeatable: bool
    """Whether the request has the same effect if it is sent twice."""
    headers: Mapping[str, str] = {}
    waiting: Callable[[float], Request] | None = None
    """Returns the same request with what is left of its wait."""


class Response(NamedTuple):
    """A whole response."""

    status: int
    media_type: str
    content: bytes
    etag: str


def path(*parts: str | int) -> str:
    """Return a path of names, each percent-encoded."""
    return "/v1/" + "/".join(_DOTS.get(part) or quote(str(part), safe="") for part in parts)


class Http(ABC):
    """Sends requests to *server*. An operation over HTTP takes it in place of a transaction."""

    def __init__(self, server: httpx2.URL) -> None:
        self._server = str(server).rstrip("/")

    async def get(self, route: str, query: Mapping[str, Any] | None = None, *, wait: float = 0.0) -> Any:
        """Read; *wait* is the time for which the server may wait before it answers."""

        def waiting(left: float) -> Request:
            return _request("GET", route, _with_wait(query, left), None, wait=left, repeatable=True)

        plain = _request("GET", route, query, None, wait=wait, repeatable=True)
        return await self._json(plain._replace(waiting=waiting) if wait else plain)

    async def post(
        self,
        route: str,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, Any] | None = None,
        *,
        wait: float = 0.0,
        repeatable: bool = True,
        method: str = "POST",
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """Write; if the call is not *repeatable* and no answer comes, raise `OutcomeUnknown`."""

        def waiting(left: float) -> Request:
            return _request(method, route, query, _with_wait(body, left), wait=left, repeatable=repeatable)

        plain = _request(method, route, query, body, wait=wait, repeatable=repeatable)
        if wait:
            plain = plain._replace(waiting=waiting)
        return await self._json(plain if headers is None else plain._replace(headers=headers))

    async def put_bytes(self, route: str, data: bytes, query: Mapping[str, Any]) -> Any:
        """Send bytes."""
        plain = _request("PUT", route, query, None, wait=0.0, repeatable=True)
        return await self._json(plain._replace(content=data, media_type="application/octet-stream"))

    async def get_bytes(self, route: str, query: Mapping[str, Any], first: int, last: int) -> Response:
        """Return a range of the bytes of a download."""
        plain = _request("GET", route, query, None, wait=0.0, repeatable=True)
        return await self.send(plain._replace(headers={"Range": f"bytes={first}-{last}"}))

    async def _json(self, request: Request) -> Any:
        response = await self.send(request)
        if not response.media_type.startswith("application/json"):
            raise errors.Misconfigured(
                f"{self._server} is not a Holdfast server: it answers with {response.media_type or 'no media type'}"
            )
        return json.loads(response.content)

    @property
    def interrupted(self) -> bool:
        """Whether requests are not sent again."""
        return False

    async def send(self, request: Request) -> Response:
        """Send a request, again if that is safe and may help; return the response or raise its error."""
        started = failed_at = time.monotonic()
        first, unknown = request, False
        for failures in count(1):
            error: errors.HoldfastError
            timed_out = False
            try:
                response = await self._exchange(request)
            except _NOT_SENT as failed:
                error = errors.StoreUnreachable(f"cannot connect to {self._server}: {_why_unconnected(failed)}")
            except httpx2.RequestError as failed:
                unknown, timed_out = unknown or request.method != "GET", isinstance(failed, httpx2.TimeoutException)
                error = errors.StoreUnreachable(f"{self._server} did not answer: {_reason(failed)}")
            else:
                if response.status < 300:
                    return response
                error = error_of_response(response.status, response.media_type, response.content)
                if response.status not in _GATEWAY_STATUSES:
                    raise error
                # A proxy may have passed the request on; the service says itself whether nothing was done.
                unknown = unknown or isinstance(error, errors.OutcomeUnknown) or _from_proxy(request, response)
            if failures == 1 and request.waiting is not None and not timed_out:
                failed_at = time.monotonic()
            late = self.interrupted or time.monotonic() - failed_at > _RETRY_SECONDS
            if late or (unknown and not request.repeatable) or not RETRIES.repeats(error, failures):
                raise (
                    errors.OutcomeUnknown(f"it is not known whether the call took effect: {error}")
                    if unknown
                    else error
                )
            await self._pause(RETRIES.pause_seconds(failures, randomness.RANDOM.random()))
            if first.waiting is not None:
                request = first.waiting(max(first.wait - (time.monotonic() - started), 0.0))
        raise AssertionError

    @abstractmethod
    async def _exchange(self, request: Request) -> Response:
        """Send a request once."""

    @abstractmethod
    async def _pause(self, seconds: float) -> None:
        """Wait before a request is sent again."""

    async def undo(self, work: Coroutine[Any, Any, object]) -> None:
        """Run *work*, which releases what a call has leased whose caller was cancelled or interrupted."""
        await self._undo(_log_errors(work))

    @abstractmethod
    async def _undo(self, work: Coroutine[Any, Any, None]) -> None:
        """Run *work* although the caller was cancelled."""


async def _log_errors(work: Coroutine[Any, Any, object]) -> None:
    try:
        await work
    except errors.HoldfastError as error:
        log.warning("a cancelled claim could not be released and will expire: %s", error)


class Sockets:
    """The sockets of a sync client. Another thread may shut them down, which ends the requests that wait."""

    def __init__(self) -> None:
        self.interrupted = False
        self._open: WeakSet[socket.socket] = WeakSet()

    def trace(self, event: str, details: Mapping[str, Any]) -> None:
        """Keep the socket of a connection that is being opened; called for every step of a request."""
        if event in _OPENED:
            self._open.add(details["return_value"].get_extra_info("socket"))

    def interrupt(self) -> None:
        """Shut all connections down; requests are not sent again."""
        self.interrupted = True
        for one in list(self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


class SyncHttp(Http):
    """Sends requests in the caller's thread."""

    def __init__(self, client: httpx2.Client, sockets: Sockets) -> None:
        super().__init__(client.base_url)
        self._client = client
        self._sockets = sockets

    @property
    def interrupted(self) -> bool:
        """Whether another thread has ended the requests of this client."""
        return self._sockets.interrupted

    async def _exchange(self, request: Request) -> Response:
        return _response(self._client.request(**_arguments(request), extensions={"trace": self._sockets.trace}))

    async def _pause(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251  # never runs in an event loop

    async def _undo(self, work: Coroutine[Any, Any, None]) -> None:
        await work


class AsyncHttp(Http):
    """Sends requests without blocking the event loop."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        super().__init__(client.base_url)
        self._client = client

    async def _exchange(self, request: Request) -> Response:
        return _response(await self._client.request(**_arguments(request)))

    async def _pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def _undo(self, work: Coroutine[Any, Any, None]) -> None:
        await cancellation.undo(work)


def _request(
    method: str,
    route: str,
    query: Mapping[str, Any] | None,
    body: Mapping[str, Any] | None,
    *,
    wait: float,
    repeatable: bool,
) -> Request:
    pairs: list[tuple[str, str]] = []
    for name, value in (query or {}).items():
        values = value if isinstance(value, list | tuple) else [value]
        pairs += [(name, _text(one)) for one in values if one is not None]
    content = None if body is None else strict_json.compact(body).encode()
    full = f"{route}?{urlencode(pairs)}" if pairs else route
    return Request(method, full, content, "application/json", wait, repeatable)


def _with_wait(values: Mapping[str, Any] | None, seconds: float) -> dict[str, Any]:
    """Return a query or a body with another wait."""
    rest = {name: value for name, value in (values or {}).items() if name != "wait"}
    return {**rest, "wait": seconds} if seconds else rest


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:.6f}" if isinstance(value, float) else str(value)


def _arguments(request: Request) -> dict[str, Any]:
    media_type = {} if request.content is None else {"Content-Type": request.media_type}
    timeout = httpx2.Timeout(_ANSWER_SECONDS + request.wait, connect=_CONNECT_SECONDS)
    return {
        "method": request.method,
        "url": request.path,
        "content": request.content,
        "headers": {**media_type, **request.headers},
        "timeout": timeout,
    }


def _response(response: httpx2.Response) -> Response:
    headers = response.headers
    return Response(response.status_code, headers.get("content-type", ""), response.content, headers.get("etag", ""))


def _from_proxy(request: Request, response: Response) -> bool:
    return request.method != "GET" and not response.media_type.startswith("application/problem+json")


def _reason(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _why_unconnected(error: Exception) -> str:
    """Return why no connection was made, and the remedy if there is one."""
    cause = _system_error(error)
    if isinstance(cause, ssl.SSLCertVerificationError) and cause.verify_code in _UNTRUSTED:
        return f"its certificate is not trusted: {cause.verify_message}; SSL_CERT_FILE names a file of those to trust"
    if isinstance(cause, ssl.SSLError) and cause.reason == "WRONG_VERSION_NUMBER":
        return "it does not use TLS; its URL may begin with http://"
    if isinstance(cause, ConnectionRefusedError):
        return f"{_reason(cause)}; check that `holdfast serve` runs there, and the port"
    return _reason(cause)


def _system_error(error: Exception) -> BaseException:
    """Return the error below *error*: that of an async connection only says that all attempts have failed."""
    below = error.__cause__.__context__ if isinstance(error, httpx2.ConnectError) and error.__cause__ else None
    if not isinstance(below, OSError):
        return error
    first = below.__cause__
    return first.exceptions[0] if isinstance(first, BaseExceptionGroup) else first or below
