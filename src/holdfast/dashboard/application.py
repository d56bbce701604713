"""The dashboard as an ASGI application: routing, sign-in, the check of origins, and security headers."""

import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.client.async_api.queue import AsyncQueue
from holdfast.dashboard import actions, flow, job, jobs, overview, people, rendering, sign_in, system
from holdfast.dashboard.visits import SharedReads, View, Viewer, Visit
from holdfast.domain import access, errors
from holdfast.service import problems
from holdfast.service.access import EVERYTHING, Caller, is_loopback
from holdfast.service.app import Service
from holdfast.service.settings import ServiceSettings

log = logging.getLogger("holdfast.dashboard")

Authorize: TypeAlias = Callable[[Request], Viewer | Awaitable[Viewer | None] | None]
"""Returns who looks, or None if they may not; it may be a coroutine function."""

# Responses with scripts, styles or frames of other origins, or inline ones, are refused by the browser.
_HEADERS: Final = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
        b" form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    # With `no-referrer` browsers would send `Origin: null` with forms.
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
)


PAGES: Final = (
    View("GET", "/", overview.show, "list_jobs"),
    View("GET", "/jobs", jobs.show, "list_jobs"),
    View("GET", "/jobs/newer", jobs.newer, "list_jobs"),
    View("GET", "/jobs/find", jobs.find, "list_jobs"),
    View("GET", "/jobs/{number}", job.show, "list_jobs"),
    View("GET", "/jobs/{number}/output", job.output, "list_jobs"),
    View("GET", "/failures", overview.failures, "list_failures"),
    View("GET", "/flow", flow.show, "list_lanes"),
    View("GET", "/workers", people.workers, "list_workers"),
    View("GET", "/sessions", people.sessions, "list_sessions"),
    View("GET", "/sessions/one", people.session, "list_sessions"),
    View("GET", "/webhooks", people.webhooks, "list_webhooks"),
    View("GET", "/webhooks/one", people.webhook, "list_webhooks"),
    View("GET", "/system", system.show, "backlog"),
    View("GET", "/live", system.live, "events"),
)
"""What readers may see."""

ACTIONS: Final = (
    View("POST", "/jobs/{number}/cancel", actions.cancel, "cancel_job"),
    View("POST", "/jobs/{number}/cancel-by-force", actions.cancel_by_force, "requeue_job"),
    View("POST", "/jobs/{number}/requeue", actions.requeue, "requeue_job"),
    View("POST", "/jobs/{number}/priority", actions.reprioritize, "reprioritize_job"),
    View("POST", "/jobs/preview", jobs.preview, "requeue_jobs"),
    View("POST", "/jobs/apply", jobs.apply, "requeue_jobs"),
    View("POST", "/groups/cancel", actions.cancel_group, "cancel_group"),
    View("POST", "/lanes/set", actions.set_lane, "set_lane"),
    View("POST", "/workers/drain", actions.drain_worker, "drain_worker"),
    View("POST", "/workers/stop", actions.stop_worker, "stop_worker"),
    View("POST", "/limits/remove", actions.remove_limit, "remove_limit"),
    View("POST", "/schedules/pause", actions.pause_schedule, "pause_schedule"),
    View("POST", "/schedules/resume", actions.resume_schedule, "resume_schedule"),
    View("POST", "/schedules/run", actions.run_schedule, "run_schedule"),
    View("POST", "/sessions/cancel", actions.cancel_session, "cancel_session"),
    View("POST", "/webhooks/enable", actions.enable_webhook, "enable_webhook"),
    View("POST", "/webhooks/test", actions.test_webhook, "test_webhook"),
    View("POST", "/webhooks/replay", actions.replay_webhook, "replay_webhook"),
    View("POST", "/tokens/revoke", actions.revoke_token, "revoke_token"),
)
"""What changes something: the roles and scopes are those of the same operation of the HTTP service."""

PUBLIC: Final = (
    View("GET", "/sign-in", sign_in.show, None),
    View("POST", "/sign-in", sign_in.enter, None),
    View("POST", "/sign-out", sign_in.leave, None),
)

VIEWS: Final = (*PAGES, *ACTIONS, *PUBLIC)


class Dashboard:
    """The ASGI application. `holdfast.dashboard.app` makes one for a queue."""

    def __init__(self, queue: AsyncQueue | None = None, authorize: Authorize | None = None) -> None:
        self._queue = queue
        self._authorize = authorize
        self._own: Service | None = None
        self._shared = SharedReads()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        if scope["type"] != "http":
            return
        visit = self._visit(scope, receive)

        async def send_guarded(message: dict[str, object]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *_HEADERS]  # type: ignore[misc]  # a list of pairs
            await send(message)

        response = await self._response(visit)
        scope["caller"] = visit.caller
        await response(scope, receive, send_guarded)  # type: ignore[arg-type]  # a message is a dict

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        """Answer the server's messages, so that the application can be served by itself."""
        while True:
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                await self.close()
                await send({"type": "lifespan.shutdown.complete"})
                return
            await send({"type": "lifespan.startup.complete"})

    async def close(self) -> None:
        """Stop the tasks of a dashboard that `app` has made; the queue stays open."""
        if self._own is not None:
            await self._own.close()
            self._own = None

    # --- one request -----------------------------------------------------------------------------------------------

    def _visit(self, scope: Scope, receive: Receive) -> Visit:
        base, path = _place(scope)
        view, number = _find(scope["method"], path)
        return Visit(
            self._service(scope),
            self._shared,
            view,
            Request(scope, receive),
            base,
            number=number,
            signs_in=self._signs_in,
        )

    @property
    def _signs_in(self) -> bool:
        return self._queue is None

    def _service(self, scope: Scope) -> Service:
        if self._queue is None:
            service: Service = scope["app"].state.service
            return service
        if self._own is None:
            self._own = Service(self._queue, ServiceSettings(tokens=False), maintains=False)
        return self._own

    async def _response(self, visit: Visit) -> Response:
        try:
            if visit.view.roles is not None:
                visit.caller = await self._caller(visit)
                access.check_role(visit.grants, visit.view.roles)
                if visit.view.any_tenant:
                    access.check_any_tenant(visit.grants)
                if visit.view.any_job:
                    access.check_any_job(visit.grants)
            if visit.request.method == "POST":
                _check_origin(visit.request)
                await visit.read_form()
            response = await visit.view.handler(visit)
            if visit.request.method == "POST":
                self._shared.clear()
            return response
        except errors.NotAuthenticated as error:
            if visit.request.method == "POST" or not self._signs_in:
                return rendering.problem(visit, problems.describe(error))
            return RedirectResponse(visit.link("/sign-in", next=visit.here), 303)
        except Exception as error:  # every error becomes a page
            problem = problems.describe(error)
            if problem.status == 500:
                log.exception("a page of the dashboard failed", exc_info=error)
            return rendering.problem(visit, problem)

    async def _caller(self, visit: Visit) -> Caller:
        request = visit.request
        if self._queue is None:
            caller = await visit.service.access.caller(sign_in.with_cookie(request))
            visit.signs_in = caller.token is not None
            return caller
        if self._authorize is None:
            _check_local(request)
            return EVERYTHING
        found = self._authorize(request)
        viewer = await found if inspect.isawaitable(found) else found
        if viewer is None:
            raise errors.Forbidden("you may not see this dashboard")
        return Caller(access.Grants(viewer.roles, viewer.tenant), viewer.name)


def app(queue: AsyncQueue, *, authorize: Authorize | None = None) -> Dashboard:
    """Return the dashboard of *queue* as an ASGI application, to be mounted in another.

    *authorize* gets the request and returns a `Viewer`, or None to refuse it. Without it only requests from this
    machine are served. The queue must be opened with `connect_async`.
    """
    return Dashboard(queue, authorize)


def mounted() -> dict[str, ASGIApp]:
    """Return what `holdfast serve` mounts: the dashboard, and a redirect of browsers that open `/`."""
    return {"/dashboard": Dashboard(), "/": _redirect}


async def _redirect(scope: Scope, receive: Receive, send: Send) -> None:
    if "text/html" not in Request(scope).headers.get("accept", ""):
        raise problems.ProblemError(404, "not_found", "no such path; /openapi.json lists them")
    await RedirectResponse(f"{scope.get('holdfast_prefix', '')}/dashboard/", 307)(scope, receive, send)


def _place(scope: Scope) -> tuple[str, str]:
    """Return the address of the dashboard, and the path below it."""
    prefix = scope.get("holdfast_prefix")
    path: str = scope["path"]
    if prefix is not None:
        return f"{prefix}/dashboard", path.removeprefix("/dashboard") or "/"
    root: str = scope.get("root_path", "").rstrip("/")
    return root, (path.removeprefix(root) if path.startswith(f"{root}/") or path == root else path) or "/"


def _find(method: str, path: str) -> tuple[View, int | None]:
    """Return the page of a path; a path that does not exist has a page that says so."""
    if path.startswith("/static/"):
        return _STATIC, None
    parts = path.split("/")
    number: int | None = None
    if len(parts) > 2 and parts[1] == "jobs" and parts[2].isascii() and parts[2].isdigit() and len(parts[2]) < 19:
        number, parts[2] = int(parts[2]), "{number}"
    pattern = "/".join(parts)
    view = _BY_PATH.get(("GET" if method == "HEAD" else method, pattern))
    if view is None:
        others = {known for known, other in _BY_PATH if other == pattern}
        return (_WRONG_METHOD if others else _MISSING), None
    return view, number


async def _missing(_visit: Visit) -> Response:
    raise problems.ProblemError(404, "not_found", "there is no such page")


async def _wrong_method(_visit: Visit) -> Response:
    raise problems.ProblemError(405, "method_not_allowed", "the page has another method")


_BY_PATH: Final[dict[tuple[str, str], View]] = {(view.method, view.path): view for view in VIEWS}
_MISSING: Final = View("GET", "/", _missing, None)
_WRONG_METHOD: Final = View("GET", "/", _wrong_method, None)
_STATIC: Final = View("GET", "/static/", rendering.serve_asset, None)


def _check_origin(request: Request) -> None:
    """Raise if a form was sent by a page of another origin.

    Browsers set both headers, and pages cannot change them. A program that sends neither has no cookies of a browser.
    """
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    if site is not None:
        genuine = site == "same-origin"
    else:
        genuine = origin is not None and urlsplit(origin).netloc == request.headers.get("host")
    if not genuine:
        raise problems.ProblemError(403, "wrong_origin", "the form was not sent by a page of this dashboard")


def _check_local(request: Request) -> None:
    """Raise unless the request comes from this machine, directly, and was sent to it by name."""
    client = request.client
    host = urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
    forwarded = any(name in request.headers for name in ("forwarded", "x-forwarded-for", "x-real-ip"))
    if client is None or not is_loopback(client.host) or not is_loopback(host) or forwarded:
        raise errors.Forbidden(
            "without authorize= the dashboard is for this machine only: pass a function that returns who looks"
        )
