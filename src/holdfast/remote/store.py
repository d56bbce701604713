"""`HttpStore`: a queue behind the HTTP service."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import threading
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import partial
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary, WeakSet

import httpx2

from holdfast.domain import errors
from holdfast.remote import calls, content, groups, limits, notify, overview, schedules, sessions, webhooks  # noqa: F401  # they register calls
from holdfast.remote.connection import AsyncHttp, Sockets, SyncHttp
from holdfast.remote.errors import not_available
from holdfast.storage import notifications, runners, store
from holdfast.version import __version__

T = TypeVar("T")

# Shorter than the server's, so that a connection is not used at the moment at which the server closes it.
_KEPT_SECONDS: Final = 30.0
_LIMITS: Final = httpx2.Limits(max_connections=None, max_keepalive_connections=100, keepalive_expiry=_KEPT_SECONDS)
_SOCKET_OPTIONS: Final = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)
_CLOSING_SECONDS: Final = 1.0


class HttpStore:
    """A queue behind the HTTP service. It is safe to share between threads, and a forked process opens its own."""

    joined: Final = False
    writes_in_order: Final = False

    def __init__(self, url: str, token: str | None = None) -> None:
        self._url = url
        self._token = token
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._client: httpx2.Client | None = None
        self._sockets = Sockets()
        self._async_clients: WeakKeyDictionary[asyncio.AbstractEventLoop, httpx2.AsyncClient] = WeakKeyDictionary()
        self._notifier = self._new_notifier()
        self.translate = calls.translate
        _stores.add(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._url}>"

    # --- operations ------------------------------------------------------------------------------------------------

    def read(self, operation: store.Operation[T]) -> T:
        """Run an operation over HTTP."""
        return runners.run_sync(operation(self._http()))  # type: ignore[arg-type]  # it was translated

    def write(self, operation: store.Operation[T]) -> T:
        """Run an operation over HTTP."""
        return self.read(operation)

    async def read_async(self, operation: store.Operation[T]) -> T:
        """Run an operation over HTTP."""
        return await operation(self._async_http())  # type: ignore[arg-type]  # it was translated

    async def write_async(self, operation: store.Operation[T]) -> T:
        """Run an operation over HTTP."""
        return await self.read_async(operation)

    # --- notifications ---------------------------------------------------------------------------------------------

    @property
    def notifier(self) -> notifications.Notifier:
        """The notifier of changes, of which only workers use it: other calls let the server wait."""
        with self._lock:
            self._forget_after_fork()
            return self._notifier

    def _new_notifier(self) -> notifications.Notifier:
        return notify.notifier_for(self._url, self._token, partial(new_async_client, self._url, self._token))

    # --- connections -----------------------------------------------------------------------------------------------

    def _http(self) -> SyncHttp:
        with self._lock:
            self._forget_after_fork()
            if self._client is None:
                transport = httpx2.HTTPTransport(**_transport_options(self._url))
                self._client = httpx2.Client(transport=transport, **_client_options(self._url, self._token))
                self._sockets = Sockets()
            return SyncHttp(self._client, self._sockets)

    def _async_http(self) -> AsyncHttp:
        loop = asyncio.get_running_loop()
        with self._lock:
            self._forget_after_fork()
            client = self._async_clients.get(loop)
            if client is None:
                client = self._async_clients[loop] = new_async_client(self._url, self._token)
            return AsyncHttp(client)

    def _forget_after_fork(self) -> None:
        if self._process != os.getpid():
            self._process, self._client = os.getpid(), None
            self._async_clients = WeakKeyDictionary()
            self._notifier = self._new_notifier()

    def interrupt(self) -> None:
        """Make calls of other threads that wait for the server raise `Unavailable`."""
        with self._lock:
            client, self._client = self._client, None
            sockets = self._sockets
        if client is not None:
            sockets.interrupt()

    async def interrupt_async(self) -> None:
        """Close the connections of this event loop; calls that use them raise `Unavailable`."""
        with self._lock:
            client = self._async_clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.aclose()

    def close(self) -> None:
        """Close the connections. A store that is used again opens again."""
        with self._lock:
            self._forget_after_fork()
            client, self._client = self._client, None
            async_clients, self._async_clients = dict(self._async_clients), WeakKeyDictionary()
        if client is not None:
            client.close()
        for loop, async_client in async_clients.items():
            _close_async(loop, async_client)

    # --- the same store elsewhere ----------------------------------------------------------------------------------

    def clone(self) -> HttpStore:
        """Return another store with its own connections."""
        return HttpStore(self._url, self._token)

    def address(self) -> dict[str, Any] | None:
        """Return the arguments with which another process opens the same queue."""
        return {"http_url": self._url, "token": self._token}

    def description(self) -> str:
        """Return the URL."""
        return self._url

    # --- what needs the store itself -------------------------------------------------------------------------------

    def transaction(self) -> AbstractContextManager[store.ExternalTransaction]:
        """Raise: a transaction cannot stay open between requests."""
        raise not_available("transaction")

    def transaction_async(self) -> AbstractAsyncContextManager[store.ExternalTransaction]:
        """Raise: a transaction cannot stay open between requests."""
        raise not_available("transaction")

    def within(self, connection: Any) -> store.ExternalTransaction:
        """Raise: the caller's connection does not lead to the server."""
        raise not_available("within")

    def migrate(self) -> list[str]:
        """Raise: the server migrates its store."""
        raise not_available("migrate")


_stores: WeakSet[HttpStore] = WeakSet()


def _renew_locks() -> None:
    """Replace the locks in a forked child, in which no thread may be left to release them."""
    for one in list(_stores):
        one._lock = threading.Lock()  # noqa: SLF001  # of this module


os.register_at_fork(after_in_child=_renew_locks)


def new_async_client(url: str, token: str | None) -> httpx2.AsyncClient:
    """Return a client for the event loop of the caller."""
    transport = httpx2.AsyncHTTPTransport(**_transport_options(url))
    return httpx2.AsyncClient(transport=transport, **_client_options(url, token))


def _client_options(url: str, token: str | None) -> dict[str, Any]:
    headers = {"User-Agent": f"holdfast/{__version__}", "Accept": "application/json"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    return {"base_url": url, "headers": headers}


def _transport_options(url: str) -> dict[str, Any]:
    # Reading the certificates of the system takes longer than a request. The environment's proxies are not used.
    verify = _certificates() if url.startswith("https:") else False
    return {"verify": verify, "limits": _LIMITS, "socket_options": _SOCKET_OPTIONS}


def _certificates() -> ssl.SSLContext:
    """Return the certificates to trust: those of `SSL_CERT_FILE` or `SSL_CERT_DIR`, else those of the system."""
    try:
        return httpx2.create_ssl_context()
    except OSError as error:
        raise errors.Misconfigured(
            f"the certificates that SSL_CERT_FILE or SSL_CERT_DIR names cannot be read: {error}"
        ) from error


def _close_async(loop: asyncio.AbstractEventLoop, client: httpx2.AsyncClient) -> None:
    """Close the connections of an event loop from any thread, as far as the loop still runs."""
    if not loop.is_running():
        return
    closing = asyncio.run_coroutine_threadsafe(client.aclose(), loop)
    with contextlib.suppress(RuntimeError):
        if asyncio.get_running_loop() is loop:
            # The loop cannot close them before this call returns.
            return
    with contextlib.suppress(TimeoutError):
        closing.result(_CLOSING_SECONDS)
