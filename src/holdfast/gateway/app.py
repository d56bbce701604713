"""The ASGI application of the gateway: which paths are jobs, which are passed on, and who may use them."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from holdfast.dashboard import application as dashboard
from holdfast.domain import access, errors
from holdfast.gateway import callers, dialects, model_requests
from holdfast.gateway.answers import JOB_HEADER, AnswerChannel, ExchangeAnswer, GatewayRefusal, place_headers
from holdfast.gateway.catalog import Model
from holdfast.gateway.exchanges import Exchange
from holdfast.gateway.gateway import Gateway, JobAdmission, QueueFullError, keyed_job_id
from holdfast.gateway.http_client import HOP_BY_HOP, UpstreamFailedError
from holdfast.gateway.job_routes import JobRoutes
from holdfast.gateway.metrics import GatewayCollector
from holdfast.gateway.model_requests import ModelRequest
from holdfast.service import app as service_app, bodies, problems
from holdfast.service.access import Caller
from holdfast.service.app import Service
from holdfast.service.settings import ServiceSettings

log = logging.getLogger("holdfast.gateway")

SERVICE_PREFIX: Final = "/holdfast"
_PASSED: Final = {
    "/": ("GET", "HEAD"),
    "/api/version": ("GET", "HEAD"),
    "/api/tags": ("GET", "HEAD"),
    "/api/ps": ("GET", "HEAD"),
    "/api/show": ("POST",),
    "/v1/models": ("GET", "HEAD"),
}
"""Paths that are passed on to the model server."""
_ADMIN: Final = ("/api/pull", "/api/push", "/api/create", "/api/copy", "/api/delete", "/api/blobs/")
"""Paths that change the models of the server."""
# Request headers that are not passed on: those of the connection, and credentials, which are the gateway's.
_NOT_PASSED: Final = HOP_BY_HOP | {
    "host",
    "content-length",
    "authorization",
    "x-api-key",
    "cookie",
    "accept-encoding",
}


class GatewayApp:
    """The ASGI application; `make_app` wraps it."""

    def __init__(self, gateway: Gateway, service: Starlette) -> None:
        self.gateway = gateway
        self._service_app = service
        self._jobs = JobRoutes(self)

    @property
    def service(self) -> Service:
        """The service under `/holdfast/`."""
        service: Service = self._service_app.state.service
        return service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        path: str = scope["path"]
        scope = callers.with_bearer(scope)
        if path == SERVICE_PREFIX or path.startswith(f"{SERVICE_PREFIX}/"):
            await self.call_service(scope, receive, send, path.removeprefix(SERVICE_PREFIX) or "/")
            return
        channel = AnswerChannel(scope, receive, send)
        if path == "/jobs" or path.startswith("/jobs/"):
            await self._jobs.handle(Request(scope, receive), channel, send)
            return
        dialect = dialects.dialect_of(path)
        try:
            await self._handle(Request(scope, receive), channel)
        except Exception as error:
            if channel.started:
                raise
            refusal = refusal_of(error)
            if refusal.status == 500:
                log.exception("a request to %s failed", path)
            await channel.refuse(dialect, refusal)

    async def call_service(self, scope: Scope, receive: Receive, send: Send, path: str) -> None:
        """Let the service handle a request under its own path."""
        inner = {**scope, "path": path, "raw_path": path.encode("ascii"), "app": self._service_app}
        inner["holdfast_prefix"] = SERVICE_PREFIX
        await self._service_app.router(inner, receive, send)

    async def caller(self, request: Request, *roles: access.Role) -> Caller:
        """Return who sends a request, or raise if it may not."""
        caller = await self.service.access.caller(request)
        request.scope["caller"] = caller
        access.check_role(caller.grants, roles)
        return caller

    # --- paths of the model server ---------------------------------------------------------------------------------

    async def _handle(self, request: Request, channel: AnswerChannel) -> None:
        path, method = request.scope["path"], request.method
        if path in dialects.GENERATING or path in dialects.EMBEDDING:
            _check_method(method, ("POST",))
            await self._generate(request, channel)
        elif path in _PASSED or path.startswith("/v1/models/"):
            _check_method(method, _PASSED.get(path, ("GET", "HEAD")))
            await self.caller(request, "read", "produce")
            await self._pass_on(request, channel)
        elif path.startswith(_ADMIN):
            access.check_any_tenant((await self.caller(request)).grants)
            try:
                await self._pass_on(request, channel)
            finally:
                self.gateway.spawn(self.gateway.catalog.refresh())
        elif path == "/healthz":
            await channel.whole(200, [("content-type", "application/json")], b'{"status":"ok"}')
        else:
            raise GatewayRefusal(404, "not_found", "no such path")

    async def _pass_on(self, request: Request, channel: AnswerChannel) -> None:
        """Pass a request on to the model server, and its answer back, part by part."""
        has_body = request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers
        content: Any = request.stream() if has_body else b""
        await self._relay(request, channel, content)

    async def _relay(
        self,
        request: Request,
        channel: AnswerChannel,
        content: bytes | AsyncIterator[bytes],
        *,
        errors_only: bool = False,
    ) -> bool:
        """Relay an answer; with *errors_only* one that is an error. Return whether it was relayed."""
        headers = [(name, value) for name, value in request.headers.items() if name not in _NOT_PASSED]
        query = request.scope["query_string"].decode("latin-1")
        path = request.scope["path"] + (f"?{query}" if query else "")
        async with self.gateway.upstream.send(request.method, path, headers, content) as answer:
            if errors_only and answer.head.status < 400:
                return False
            kept = [pair for pair in answer.head.headers if pair[0] not in HOP_BY_HOP]
            await channel.start(answer.head.status, kept)
            async for chunk in answer:
                await channel.write(chunk)
            await channel.write(b"", more=False)
            return True

    # --- jobs ------------------------------------------------------------------------------------------------------

    async def _generate(self, request: Request, channel: AnswerChannel) -> None:
        caller = await self.caller(request, "produce")
        parsed = self.parse(request.scope["path"], await bodies.read(request, callers.BODY_BYTES_MAX))
        tenant = callers.tenant_of(caller, request.headers.get("holdfast-tenant"))
        if (abandoned := self._abandoned(request, parsed, tenant)) is not None:
            await self.answer(caller, abandoned, channel)
            return
        model = await self.find_model(parsed)
        if model is None and await self._refused_by_upstream(request, channel, parsed):
            return
        if await self._handled_at_once(request, channel, parsed, model):
            return
        exchange = await self.admit(parsed, model, self._admission(request, caller, tenant))
        if "respond-async" in request.headers.get("prefer", ""):
            await self.accept(exchange, channel)
        else:
            await self.answer(caller, exchange, channel)

    def parse(self, path: str, content: bytes) -> ModelRequest:
        """Return the request with this body, or raise a refusal."""
        try:
            return model_requests.parse(path, content, self.gateway.settings.num_ctx)
        except model_requests.InvalidRequestError as error:
            raise GatewayRefusal(400, "invalid_json", str(error)) from None

    def _abandoned(self, request: Request, parsed: ModelRequest, tenant: str) -> Exchange | None:
        """Return the job that a retry joins: the same request of the same tenant, whose caller has gone."""
        retries = request.headers.get("x-stainless-retry-count", "0")
        if not (retries.isascii() and retries.isdigit() and int(retries)) or "idempotency-key" in request.headers:
            return None
        return self.gateway.exchanges.find_abandoned((tenant, parsed.path, parsed.digest))

    async def find_model(self, parsed: ModelRequest) -> Model | None:
        """Return the model of a request; None if no model server lists it."""
        return await self.gateway.find_model(parsed.model)

    async def _refused_by_upstream(self, request: Request, channel: AnswerChannel, parsed: ModelRequest) -> bool:
        """Let the model server refuse a model that it does not list; return whether it did."""
        return await self._relay(request, channel, parsed.content, errors_only=True)

    async def _handled_at_once(
        self, request: Request, channel: AnswerChannel, parsed: ModelRequest, model: Model | None
    ) -> bool:
        """Handle what needs no job: embeddings of a resident model, and requests to unload one."""
        if model is None or model.remote or self.gateway.catalog.type != "ollama":
            return False
        if parsed.path in dialects.EMBEDDING:
            declared = {parsed.model, model.name} & set(self.gateway.settings.resident)
            if declared or await self.gateway.catalog.is_resident(model):
                return await self._relay(request, channel, parsed.content)
        if not parsed.unloads:
            return False
        if self.gateway.postpone_unload(parsed, model):
            content = dialects.unloaded(parsed.path, parsed.model)
            await channel.whole(200, [("content-type", "application/json; charset=utf-8")], content)
            return True
        return await self._relay(request, channel, parsed.content)

    def _admission(self, request: Request, caller: Caller, tenant: str) -> JobAdmission:
        key = request.headers.get("idempotency-key")
        if key is not None and not (0 < len(key) <= 255 and key.isascii() and key.isprintable()):
            raise GatewayRefusal(400, "invalid_input", "Idempotency-Key must be 1 to 255 visible ASCII characters")
        kept = key is not None or "respond-async" in request.headers.get("prefer", "")
        return JobAdmission(
            tenant=tenant,
            priority=callers.priority_of(caller, request.headers.get("holdfast-priority")),
            caller_kind="kept" if kept else "waiting",
            headers=model_requests.kept_headers(request.headers),
            query=request.scope["query_string"].decode("latin-1"),
            job_id=None if key is None else keyed_job_id(tenant, request.scope["path"], key),
            webhook_url=request.headers.get("holdfast-webhook-url"),
        )

    async def admit(self, parsed: ModelRequest, model: Model | None, admission: JobAdmission) -> Exchange:
        """Store a request as a job, or raise a refusal."""
        if self.gateway.closing:
            raise GatewayRefusal(503, "shutting_down", "the gateway restarts; try again", [("retry-after", "1")])
        try:
            if admission.job_id is None or self.gateway.exchanges.get(admission.job_id) is None:
                self.gateway.check_room(admission.tenant)
            return await self.gateway.enqueue(parsed, model, admission)
        except QueueFullError as error:
            raise GatewayRefusal(429, "queue_full", str(error), [("retry-after", str(error.retry_after))]) from None
        except errors.Conflict as error:
            if admission.job_id is None:
                raise
            text = "this Idempotency-Key was sent with another body; choose a new key"
            raise GatewayRefusal(422, "idempotency_key_reused", text) from error

    async def accept(self, exchange: Exchange, channel: AnswerChannel) -> None:
        """Answer 202 with the job."""
        content = await self._jobs.document(await self.gateway.queue.get(exchange.job_id))
        location = ("location", f"/jobs/{exchange.job_id}")
        places = place_headers(self.gateway, exchange)
        headers = [("content-type", "application/json"), location, (JOB_HEADER, exchange.job_id), *places]
        await channel.whole(202, headers, problems.encode(content))

    async def answer(self, caller: Caller, exchange: Exchange, channel: AnswerChannel) -> None:
        """Send the answer of a job to its caller."""
        with (
            self.gateway.exchanges.reading(exchange) as reader,
            self.service.access.watch(caller, reader.leave),
        ):
            if self.gateway.closing and not exchange.running:
                # The gateway has begun to stop while the request was stored: callers who wait are let go then.
                reader.leave()
            await ExchangeAnswer(self.gateway, exchange, channel).send(reader)


def refusal_of(error: Exception) -> GatewayRefusal:
    """Return the refusal for an error."""
    match error:
        case GatewayRefusal():
            return error
        case UpstreamFailedError():
            return GatewayRefusal(502, "upstream_failed", str(error))
        case _:
            problem = problems.describe(error)
            status = 400 if problem.status == 422 else problem.status
            field = problem.extras.get("field")
            detail = f"{field}: {problem.detail}" if field else problem.detail
            headers = [(name.lower(), value) for name, value in problem.headers.items()]
            return GatewayRefusal(status, problem.code, detail, headers)


def _check_method(method: str, allowed: tuple[str, ...]) -> None:
    if method not in allowed:
        raise GatewayRefusal(
            405, "method_not_allowed", f"the path has {', '.join(allowed)}", [("allow", ", ".join(allowed))]
        )


def make_app(gateway: Gateway, settings: ServiceSettings, failed: Callable[[BaseException], None]) -> Starlette:
    """Return the application of a gateway, with the service under `/holdfast/`; *failed* is told if a worker ends."""
    inner = service_app.make_app(gateway.queue, settings, dashboard.mounted())

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with inner.router.lifespan_context(inner):
            app.state.service = inner.state.service
            inner.state.service.registry.register(GatewayCollector(gateway))
            await gateway.start(inner.state.service.waiter, failed)
            try:
                yield
            finally:
                await gateway.close()

    app = Starlette(lifespan=lifespan)
    handler = GatewayApp(gateway, inner)

    async def route(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await app.router.lifespan(scope, receive, send)
            return
        await handler(scope, receive, send)

    app.middleware_stack = service_app.Requests(route)
    return app
