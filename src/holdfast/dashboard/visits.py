"""One request of the dashboard: who looks, what was asked, and what may be done."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar
from urllib.parse import quote, unquote, urlencode

from starlette.requests import Request
from starlette.responses import Response

from holdfast.client.async_api.queue import AsyncQueue
from holdfast.domain import access, errors, strict_json
from holdfast.domain.job import Job
from holdfast.service import bodies
from holdfast.service.access import PUBLIC, Caller
from holdfast.service.app import Service
from holdfast.service.routes import ROUTES

FORM_BYTES_MAX: Final = 64 << 10
SHARED_SECONDS: Final = 1.0
"""For how long viewers share what was read of the whole queue."""
NOTE: Final = "holdfast_note"
"""The cookie with a line of text for the next page."""
_ENDPOINTS: Final = {route.name: route for route in ROUTES}

Handler: TypeAlias = Callable[["Visit"], Awaitable[Response]]
Found = TypeVar("Found")


class Viewer(NamedTuple):
    """Who looks at a mounted dashboard, as `authorize` returns it."""

    name: str
    """How the audit log names them."""
    roles: tuple[access.Role, ...] = ("read",)
    """`read` shows pages, `admin` also acts."""
    tenant: str | None = None
    """Only jobs of this tenant; None for any."""


@dataclass(frozen=True, slots=True)
class View:
    """One page or one action. Routing, authorization and tests are made from the table of them."""

    method: Literal["GET", "POST"]
    path: str
    """Below the address of the dashboard; `{number}` is the number of a job."""
    handler: Handler
    endpoint: str | None
    """The operation of the HTTP service whose roles and scopes apply; None if no token is needed."""

    @property
    def roles(self) -> tuple[access.Role, ...] | None:
        """The roles of which one is needed, besides `admin`; None if no token is needed."""
        return None if self.endpoint is None else _ENDPOINTS[self.endpoint].roles or ()

    @property
    def any_tenant(self) -> bool:
        """Whether a token of one tenant is refused."""
        return self.endpoint is not None and _ENDPOINTS[self.endpoint].any_tenant

    @property
    def any_job(self) -> bool:
        """Whether a token of some lanes or kinds is refused."""
        return self.endpoint is not None and _ENDPOINTS[self.endpoint].any_job


def check(endpoint: str, grants: access.Grants) -> None:
    """Raise `Forbidden` unless the operation of the service with this name may be called."""
    route = _ENDPOINTS[endpoint]
    access.check_role(grants, route.roles or ())
    if route.any_tenant:
        access.check_any_tenant(grants)
    if route.any_job:
        access.check_any_job(grants)


class SharedReads:
    """Reads of the whole queue that all viewers share: ten open pages cost the store as much as one."""

    def __init__(self) -> None:
        self._reads: dict[str, tuple[asyncio.Task[Any], float]] = {}

    async def read(self, name: str, read: Callable[[], Awaitable[Found]]) -> Found:
        """Return what *read* returned within the last second, or returns now."""
        task, began = self._reads.get(name, (None, 0.0))
        if task is None or (task.done() and time.monotonic() >= began + SHARED_SECONDS):
            task = asyncio.ensure_future(_await(read))
            self._reads[name] = (task, time.monotonic())
        try:
            # A viewer who leaves does not cancel the read for the others.
            found: Found = task.result() if task.done() else await asyncio.shield(task)
        except Exception:
            self._reads.pop(name, None)
            raise
        return found

    def clear(self) -> None:
        """Read again what is asked for next: a viewer has changed something."""
        self._reads.clear()


async def _await(read: Callable[[], Awaitable[Found]]) -> Found:
    return await read()


@dataclass(eq=False)
class Visit:
    """One request."""

    service: Service
    shared: SharedReads
    view: View
    request: Request
    base: str
    """The address of the dashboard, such as `/dashboard`."""
    caller: Caller = PUBLIC
    number: int | None = None
    """The number of the job in the path."""
    form: Mapping[str, str] = field(default_factory=dict)
    signs_in: bool = True
    """Whether there are tokens, with which one signs in and out."""

    @property
    def queue(self) -> AsyncQueue:
        """The queue."""
        return self.service.queue

    @property
    def grants(self) -> access.Grants:
        """What the viewer may see and do."""
        return self.caller.grants

    @cached_property
    def now(self) -> datetime:
        """The time of the request."""
        return datetime.now(UTC)

    @cached_property
    def query(self) -> dict[str, str]:
        """The parameters of the address; of repeated ones the last."""
        return dict(bodies.parse_parameters(self.request.scope["query_string"], "query", 50))

    @property
    def tenant(self) -> str | None:
        """The tenant whose things are shown; None for any."""
        return access.tenant_for(self.grants, self.query.get("tenant") or self.form.get("tenant") or None)

    def may(self, endpoint: str) -> bool:
        """Return whether the viewer may call the operation of the service with this name."""
        try:
            check(endpoint, self.grants)
        except errors.Forbidden:
            return False
        return True

    def link(self, path: str, **query: Any) -> str:
        """Return the address of a page, without the parameters that are None or empty."""
        given = {name: str(value) for name, value in query.items() if value not in {None, ""}}
        return f"{self.base}{path}" + (f"?{urlencode(given, quote_via=quote)}" if given else "")

    @cached_property
    def here(self) -> str:
        """The path and query of this page, below the dashboard."""
        query = self.request.scope["query_string"].decode("latin-1")
        path = self.view.path.replace("{number}", str(self.number))
        return path + (f"?{query}" if query else "")

    async def job(self) -> Job:
        """Return the job of the path if the viewer may see it, else raise `JobNotFound`."""
        number = self.number if self.number is not None else -1
        found = await self.queue.get(number, tenant=self.grants.tenant)
        if not access.covers(self.grants, found.lane, found.kind):
            raise errors.JobNotFound(str(number))
        return found

    def field(self, name: str) -> str:
        """Return a field of the form, or raise."""
        value = self.form.get(name)
        if not value:
            raise errors.InvalidInput(name, "is missing")
        return value

    async def read_form(self) -> None:
        """Read the fields of a form."""
        bodies.check_media_type(self.request, "application/x-www-form-urlencoded")
        content = await bodies.read(self.request, FORM_BYTES_MAX)
        self.form = dict(bodies.parse_parameters(content, "form", 50))

    async def audit(self, action: str, target: str, **detail: strict_json.Json) -> None:
        """Record an action before it is carried out."""
        await self.queue.admin.record_action(action, target, actor=self.caller.actor, detail=detail)


# --- cookies, and where forms may lead to ---------------------------------------------------------------------------


def is_secure(request: Request) -> bool:
    """Return whether the browser uses TLS, to this server or to a proxy before it."""
    return "https" in {request.scope.get("scheme"), request.headers.get("x-forwarded-proto")}


def safe_next(path: str | None) -> str:
    """Return the page to show next, below the dashboard; other addresses become the first page."""
    if path is None or not path.startswith("/") or path.startswith(("//", "/\\")) or not path.isascii():
        return "/"
    return path if path.isprintable() else "/"


def note(visit: Visit, response: Response, text: str) -> None:
    """Show a line of text on the next page."""
    set_cookie(visit, response, NOTE, quote(text[:300]), 20)


def take_note(visit: Visit) -> str | None:
    """Return the line that an action has left for the next page."""
    found = visit.request.cookies.get(NOTE)
    return unquote(found) if found else None


def set_cookie(visit: Visit, response: Response, name: str, value: str, seconds: int) -> None:
    """Set a cookie that scripts cannot read and that is sent to the dashboard only."""
    response.set_cookie(
        name,
        value,
        max_age=seconds,
        path=visit.base or "/",
        secure=is_secure(visit.request),
        httponly=True,
        samesite="lax",
    )
