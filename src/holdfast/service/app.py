"""The ASGI application: request ids, access log, problems, and the routes of the table."""

import asyncio
import logging
import re
import secrets
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cached_property
from itertools import count
from typing import Final

from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.client import queue_state
from holdfast.client.async_api import decoding
from holdfast.client.async_api.queue import AsyncQueue
from holdfast.domain import access as access_rules, errors
from holdfast.domain.claims import Claim, fence_of
from holdfast.domain.job import columns_of
from holdfast.service import (
    access,
    combining,
    event_streams,
    maintenance,
    openapi,
    operators,
    problems,
    streams,
)
from holdfast.service.call import Call, Endpoint
from holdfast.service.routes import ROUTES
from holdfast.service.settings import ServiceSettings
from holdfast.service.waiters import JobWaiter
from holdfast.storage import runners
from holdfast.telemetry.store_metrics import StoreCollector
from holdfast.webhooks import sender as webhook_sender

log = logging.getLogger("holdfast.service")
access_log = logging.getLogger("holdfast.access")

# Request ids name a request in the log, and are no secrets.
_PROCESS_ID: Final = secrets.token_hex(6)
_REQUEST_NUMBERS: Final = count(1)
# How many claims are kept, and the longest payload of their jobs.
_CLAIMS_KEPT_MAX: Final = 2_000
_PAYLOAD_CHARS_KEPT_MAX: Final = 4_096
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,100}", re.ASCII)


class Service:
    """What the requests of one server process share."""

    def __init__(self, queue: AsyncQueue, settings: ServiceSettings, *, maintains: bool = True) -> None:
        state = queue_state.state_of(queue)
        self.queue = queue
        self.store = state.store
        self.runner: runners.AsyncRunner = decoding.runner_on(state.store, state.codec)
        """Runs the transactions for which the queue has no method."""
        self.settings = settings
        self.closing = asyncio.Event()
        self.streams = streams.OpenStreams()
        self.access = access.Access(self.runner, required=settings.tokens)
        self.waiter = JobWaiter(self.runner, self.store.notifier)
        self.tail = event_streams.EventTail(self.runner)
        self.combined = combining.CombinedCalls(queue, self.runner)
        self.held = HeldClaims()
        self.maintenance = maintenance.ServiceMaintenance(self.store) if maintains else None
        self.openapi = problems.encode(openapi.document(ROUTES))

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
        if self.maintenance is not None:
            await self.maintenance.close()
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
            raise problems.ProblemError(
                405, "method_not_allowed", f"the path has {allowed}", headers={"Allow": allowed}
            )
        call = Call(scope["app"].state.service, route, Request(scope, receive))
        await call.prepare()
        scope["caller"] = call.caller
        response = await route.handler(call)
        await response(scope, receive, send)


class _Routes:
    """Finds the routes of a path in a tree of its parts; the time does not depend on how many routes there are."""

    def __init__(self, routes: Sequence[Endpoint], mounts: Mapping[str, ASGIApp]) -> None:
        self._mounts = mounts
        by_path: dict[str, dict[str, Endpoint]] = {}
        for route in routes:
            by_path.setdefault(route.path, {})[route.method] = route
        self._tree = _Node()
        for path, methods in by_path.items():
            node = self._tree
            parts = path.split("/")
            for part in parts:
                node = node.children.setdefault("{}" if part.startswith("{") else part, _Node())
            node.app = _Path(methods)
            node.names = [part[1:-1] for part in parts if part.startswith("{")]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # By the first part of the path.
        mounted = self._mounts.get("/" + scope["path"][1:].partition("/")[0])
        if mounted is not None:
            scope.setdefault("holdfast_prefix", "")
            await mounted(scope, receive, send)
            return
        values: list[str] = []
        parts = scope["path"].split("/")
        found = _find_first(self._tree, parts, values)
        if found is None:
            values.clear()
            found = _find(self._tree, parts, 0, values)
            values.reverse()
        if found is None or found.app is None:
            raise problems.ProblemError(404, "not_found", "no such path; /openapi.json lists them")
        scope["path_params"] = dict(zip(found.names, values, strict=True))
        await found.app(scope, receive, send)


class _Node:
    """The paths that begin with the same parts; `{}` stands for any part that is not empty."""

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.names: list[str] = []
        self.app: _Path | None = None


def _find_first(node: _Node, parts: Sequence[str], values: list[str]) -> _Node | None:
    """Return what `_find` does if a name or else a parameter leads there at each part, as in nearly all requests."""
    for part in parts:
        child = node.children.get(part)
        if child is None or part == "{}":
            child = node.children.get("{}")
            if child is None or not part:
                return None
            values.append(part)
        node = child
    return node if node.app is not None else None


def _find(node: _Node, parts: Sequence[str], index: int, values: list[str]) -> _Node | None:
    """Return the node of a path, and add the values of its parameters, last first; a name goes before a parameter."""
    if index == len(parts):
        return node if node.app is not None else None
    part = parts[index]
    child = node.children.get(part)
    # A part of the path may be `{}` itself.
    if child is not None and part != "{}" and (found := _find(child, parts, index + 1, values)) is not None:
        return found
    child = node.children.get("{}")
    if child is not None and part and (found := _find(child, parts, index + 1, values)) is not None:
        values.append(part)
        return found
    return None


class Requests:
    """Middleware: request ids, the access log, and every error as a problem document."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
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
            elif isinstance(error, errors.HoldfastError) and problem.status > 500:
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
    return f"{_PROCESS_ID}-{next(_REQUEST_NUMBERS):x}"


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


def make_app(
    queue: AsyncQueue, settings: ServiceSettings | None = None, mounts: Mapping[str, ASGIApp] | None = None
) -> Starlette:
    """Return the ASGI application that serves *queue*, and other applications by the first part of the path."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        app.state.service = Service(queue, settings or ServiceSettings())
        try:
            async with webhook_sender.sending(app.state.service.store):
                yield
        finally:
            await app.state.service.close()

    app = Starlette(lifespan=lifespan)
    app.router.redirect_slashes = False
    # Not `routes`, which are tried one after the other.
    app.router.default = _Routes(ROUTES, mounts or {})
    # Not `middleware`, which would add two layers for errors to our own.
    app.middleware_stack = Requests(app.router)
    return app


class HeldClaims:
    """The claims that this process has handed out, so that most settlements need not read their job first.

    It keeps a bounded number of recent claims by job, but none of large jobs.

    A kept claim proves nothing: the operation that gets it compares epoch and token in its transaction, as it does
    with the claim of a worker. If it is missing, for example because another process made it, the job is read.
    """

    def __init__(self) -> None:
        self._claims: dict[str, Claim] = {}

    def keep(self, claims: Iterable[Claim]) -> None:
        """Keep the claims that are handed out."""
        for claim in claims:
            row = columns_of(claim.job)
            if len(row.payload_json) <= _PAYLOAD_CHARS_KEPT_MAX:
                self._claims[row.id] = claim
        while len(self._claims) > _CLAIMS_KEPT_MAX:
            del self._claims[next(iter(self._claims))]

    def take(
        self, job_id: str, epoch: int, lease_token: str, tenant: str | None, grants: access_rules.Grants
    ) -> Claim | None:
        """Return the claim that is settled and forget it, or None if it is not kept or the caller may not see it."""
        claim = self._claims.get(job_id)
        if claim is None or fence_of(claim)[2:] != (epoch, lease_token):
            return None
        row = columns_of(claim.job)
        if tenant not in {None, row.tenant} or not access_rules.covers(grants, row.lane, row.kind):
            return None
        del self._claims[job_id]
        return claim
