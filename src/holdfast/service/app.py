"""The ASGI application: request ids, access log, problems, and the routes of the table."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import cached_property
from typing import Final

from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as PathRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.client.async_api.queue import AsyncQueue
from holdfast.domain.errors import HoldfastError
from holdfast.service import openapi, operators, problems
from holdfast.service.access import Access
from holdfast.service.call import Call, Endpoint
from holdfast.service.event_streams import EventTail
from holdfast.service.problems import ProblemError
from holdfast.service.routes import ROUTES
from holdfast.service.settings import ServiceSettings
from holdfast.service.streams import OpenStreams
from holdfast.service.waiters import JobWaiter
from holdfast.storage.runners import AsyncRunner
from holdfast.telemetry.store_metrics import StoreCollector

log = logging.getLogger("holdfast.service")
access_log = logging.getLogger("holdfast.access")

_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,100}", re.ASCII)


class Service:
    """What the requests of one server process share."""

    def __init__(self, queue: AsyncQueue, settings: ServiceSettings) -> None:
        self.queue = queue
        self.settings = settings
        self.closing = asyncio.Event()
        self.streams = OpenStreams()
        self.access = Access(self.runner, required=settings.tokens)
        self.waiter = JobWaiter(self.runner, queue.store.notifier)
        self.tail = EventTail(self.runner)
        self.openapi = problems.encode(openapi.document(ROUTES))

    @property
    def runner(self) -> AsyncRunner:
        """Runs the transactions for which the queue has no method."""
        return self.queue._runner

    @cached_property
    def registry(self) -> CollectorRegistry:
        """The metrics of the store."""
        return operators.store_registry(StoreCollector(self.queue))

    def begin_closing(self) -> None:
        """End streams and long polls, so that the server can shut down."""
        self.closing.set()
        self.streams.end_all("server is shutting down")

    async def close(self) -> None:
        """Stop the tasks of the service."""
        self.begin_closing()
        await self.waiter.close()
        await self.tail.close()
        await self.access.close()


class _Path:
    """All routes of one path, as an ASGI application."""

    def __init__(self, routes: Mapping[str, Endpoint]) -> None:
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method = scope["method"]
        route = self._routes.get("GET" if method == "HEAD" else method)
        if route is None:
            allowed = ", ".join([*self._routes, *(["HEAD"] if "GET" in self._routes else [])])
            raise ProblemError(405, "method_not_allowed", f"the path has {allowed}", headers={"Allow": allowed})
        call = Call(scope["app"].state.service, route, Request(scope, receive))
        await call.prepare()
        scope["caller"] = call.caller
        response = await route.handler(call)
        await response(scope, receive, send)


class _Requests:
    """Middleware: request ids, the access log, and every error as a problem document."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        request_id = _request_id(scope)
        # Names in paths may contain encoded slashes, so the path is decoded after routing.
        scope["path"] = scope["raw_path"].decode("ascii")
        status = 0

        async def send_marked(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
            await send(message)

        try:
            await self._app(scope, receive, send_marked)
        except Exception as error:  # every error becomes a response
            problem = problems.describe(error)
            if problem.status == 500:
                log.exception("request %s failed", request_id, exc_info=error)
            elif isinstance(error, HoldfastError) and problem.status > 500:
                log.warning("request %s: %s", request_id, error)
            if status:
                # The response has begun; only a cut connection tells the client.
                raise
            await problems.response(problem, request_id)(scope, receive, send_marked)
        finally:
            _log_request(scope, request_id, status, time.perf_counter() - started)


def _request_id(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            text: str = value.decode("latin-1")
            if _REQUEST_ID.fullmatch(text):
                return text
    return secrets.token_hex(8)


def _log_request(scope: Scope, request_id: str, status: int, seconds: float) -> None:
    """Write a line without query, headers and body: they may contain secrets."""
    if access_log.isEnabledFor(logging.INFO):
        client = scope["client"][0] if scope.get("client") else "-"
        caller = scope.get("caller")
        access_log.info(
            "%s %s %s %d %.1fms %s %s",
            client,
            scope["method"],
            scope["path"],
            status,
            seconds * 1000,
            caller.actor if caller is not None else "-",
            request_id,
        )


async def _no_route(_request: Request, _error: Exception) -> Response:
    raise ProblemError(404, "not_found", "no such path; /openapi.json lists them")


def make_app(queue: AsyncQueue, settings: ServiceSettings | None = None) -> Starlette:
    """Return the ASGI application that serves *queue*."""
    paths: dict[str, dict[str, Endpoint]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method] = route

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        app.state.service = Service(queue, settings or ServiceSettings())
        try:
            yield
        finally:
            await app.state.service.close()

    app = Starlette(
        routes=[PathRoute(path, _Path(routes)) for path, routes in paths.items()],
        middleware=[Middleware(_Requests)],
        exception_handlers={HTTPException: _no_route},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    return app
