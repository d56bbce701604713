"""Running the service with uvicorn: one process, stopped by SIGTERM or SIGINT within a bound."""

import asyncio
import logging
import resource
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Final, TypeAlias

import uvicorn
from starlette.applications import Starlette
from starlette.types import ASGIApp

from holdfast.client.async_api.queue import AsyncQueue
from holdfast.domain import errors
from holdfast.service import access, app, protocol
from holdfast.service.settings import ServiceSettings
from holdfast.worker import garbage

log = logging.getLogger("holdfast.service")

_BACKLOG: Final = 2_048
# The files that a server has open besides its connections: the store, and connections that are about to be refused.
_OTHER_FILES: Final = 100

Started: TypeAlias = Callable[[Callable[[], object]], None]


class _Server(uvicorn.Server):
    """A server that ends streams and long polls before it waits for requests."""

    def __init__(self, config: uvicorn.Config, started: Started, closing: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_start = started
        self._on_close = closing

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop on SIGTERM and SIGINT, without raising the signal again at the end."""
        if threading.current_thread() is not threading.main_thread():
            # Python delivers signals to the main thread only.
            yield
            return
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then report it."""
        await super().startup(sockets)
        loop = asyncio.get_running_loop()
        self._on_start(lambda: loop.call_soon_threadsafe(self.handle_exit, signal.SIGTERM, None))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End streams and long polls, then wait for the other requests."""
        self._on_close()
        await super().shutdown(sockets)


def check_address(host: str, *, tokens: bool) -> None:
    """Raise `Misconfigured` if other machines could use the service without tokens."""
    if not tokens and not access.is_loopback(host):
        raise errors.Misconfigured(
            f"without tokens the service listens on this machine only, not on {host!r}; use --tokens on, and create"
            " tokens with 'holdfast token create'"
        )


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens, or raise `Misconfigured`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, asyncio sends small writes at once; otherwise a response in two parts waits up to 40 ms
    # for the client to acknowledge the first.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except (OSError, OverflowError) as error:
        listener.close()
        why = getattr(error, "strerror", None) or error
        message = f"cannot listen on {host}:{port}: {why}; choose another --host or --port"
        raise errors.Misconfigured(message) from None
    listener.settimeout(0)
    return listener


def allow_connections(wanted: int) -> int:
    """Raise this process's limit of open files as far as connections need it; return how many are possible.

    Many systems allow 1,024 at first. At that limit a client would wait, instead of being refused with a reason.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + _OTHER_FILES
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return wanted
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed == needed:
        return wanted
    possible = max(allowed - _OTHER_FILES, 1)
    log.warning("at most %d connections instead of %d: the system allows %d open files", possible, wanted, allowed)
    return possible


def url_of(listener: socket.socket) -> str:
    """Return the URL of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def serve(
    queue: AsyncQueue,
    listener: socket.socket,
    settings: ServiceSettings,
    started: Started = lambda _: None,
    mounts: Mapping[str, ASGIApp] | None = None,
) -> None:
    """Serve *queue* on a listening socket until a signal arrives, then close the queue.

    *started* is called once requests are served, with a function that stops the server and may be called from any
    thread. *mounts* are other applications, by the first part of the path.
    """
    application = app.make_app(queue, settings, mounts)

    def closing() -> None:
        application.state.service.begin_closing()

    try:
        await run(application, listener, settings, started, closing)
    finally:
        await queue.close()


async def run(
    application: Starlette,
    listener: socket.socket,
    settings: ServiceSettings,
    started: Started,
    closing: Callable[[], None],
) -> None:
    """Run an application on a listening socket until a signal arrives; *closing* ends its streams and long polls."""
    settings = replace(settings, connections_max=allow_connections(settings.connections_max))
    config = uvicorn.Config(
        application,
        http=protocol.watched(settings),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=settings.keep_alive_seconds,
        timeout_graceful_shutdown=settings.shutdown_seconds,
        backlog=_BACKLOG,
    )
    with garbage.rare_collections():
        await _Server(config, started, closing).serve(sockets=[listener])
