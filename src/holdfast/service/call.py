"""One row of the route table, and one request of it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import Response

from holdfast.client import validate_calls
from holdfast.client.async_api.queue import AsyncQueue
from holdfast.domain import access, errors, json_schema, routing, strict_json, validation
from holdfast.domain.job import Job
from holdfast.service import bodies
from holdfast.service.access import PUBLIC, Caller
from holdfast.service.problems import ProblemError, encode
from holdfast.service.schemas import Schema

if TYPE_CHECKING:
    from holdfast.service.app import Service

T = TypeVar("T")

Handler: TypeAlias = Callable[["Call"], Awaitable[Response]]
Method: TypeAlias = Literal["GET", "POST", "PUT", "PATCH"]

_BODY_BYTES_MAX: Final = 1 << 20
_KEY: Final = re.compile(r"[\x21-\x7e]{1,255}")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One operation of the service. Routing, authorization, OpenAPI and tests are made from it."""

    method: Method
    path: str
    name: str
    """The operation's id."""
    summary: str
    handler: Handler
    roles: tuple[access.Role, ...] | None
    """The roles of which a token needs one, besides `admin`; None if no token is needed."""
    response: Schema
    response_example: strict_json.Json = None
    any_tenant: bool = False
    """Whether it concerns all tenants, so that a token of one tenant is refused."""
    any_job: bool = False
    """Whether it concerns jobs of all lanes and kinds, so that a token of some is refused."""
    query: Mapping[str, Schema] = field(default_factory=dict)
    query_required: tuple[str, ...] = ()
    """The names of query parameters that must be given."""
    body: Schema | None = None
    body_required: bool = True
    body_example: strict_json.Json = None
    body_media_type: str = bodies.JSON
    body_bytes_max: int = _BODY_BYTES_MAX
    status: int = 200
    headers: Mapping[str, Schema] = field(default_factory=dict)
    """Headers that it reads, for the OpenAPI document."""
    streams: bool = False
    """Whether it returns a stream of server-sent events to clients that accept one."""
    response_media_type: str = bodies.JSON
    idempotent: bool = False
    """Whether it accepts the header `Idempotency-Key`."""
    problems: tuple[int, ...] = ()
    """Statuses of problems besides those that every route may have."""


@dataclass(eq=False)
class Call:
    """One request, authenticated, with validated query and body."""

    service: Service
    route: Endpoint
    request: Request
    caller: Caller = PUBLIC
    query: dict[str, Any] = field(default_factory=dict)
    body: Any = None
    path: dict[str, str] = field(default_factory=dict)
    """The parameters of the path, decoded."""

    @property
    def queue(self) -> AsyncQueue:
        """The queue."""
        return self.service.queue

    @property
    def grants(self) -> access.Grants:
        """What the caller may do."""
        return self.caller.grants

    async def prepare(self) -> None:
        """Authenticate and authorize the request, then read and check its query and body."""
        if self.route.roles is not None:
            self.caller = await self.service.access.caller(self.request)
            access.check_role(self.grants, self.route.roles)
            if self.route.any_tenant:
                access.check_any_tenant(self.grants)
            if self.route.any_job:
                access.check_any_job(self.grants)
        if given := self.request.path_params:
            self.path = _decoded(given)
        if self.route.query or self.request.scope["query_string"]:
            self.query = self._parse_query()
        if self.route.body is not None and self.route.body_media_type == bodies.JSON:
            self.body = await self._parse_body(self.route.body)

    async def _parse_body(self, schema: Schema) -> Any:
        content = await bodies.read(self.request, self.route.body_bytes_max)
        if not content and not self.route.body_required:
            return {}
        bodies.check_media_type(self.request, bodies.JSON)
        body = bodies.parse(content)
        try:
            json_schema.check(schema, body, "")
        except errors.InvalidInput as error:
            raise errors.InvalidInput(error.field.removeprefix(".") or "body", error.problem, error.limit) from None
        return body

    def _parse_query(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in bodies.parse_parameters(self.request.scope["query_string"], "query", 100):
            schema = self.route.query.get(name)
            if schema is None:
                known = ", ".join(self.route.query) or "none"
                raise errors.InvalidInput(name, f"unknown parameter; valid parameters are: {known}")
            if schema["type"] == "array":
                found.setdefault(name, []).append(value)
            elif name in found:
                raise errors.InvalidInput(name, "is given twice")
            else:
                found[name] = _converted(name, value, schema)
        for name in self.route.query_required:
            if name not in found:
                raise errors.InvalidInput(name, "must be given as a query parameter")
        for name, value in found.items():
            _check_parameter(name, value, self.route.query[name])
        return found

    # --- tenants and scopes ----------------------------------------------------------------------------------------

    @property
    def tenant(self) -> str | None:
        """The tenant whose things the call reads; None for any."""
        return access.tenant_for(self.grants, self.query.get("tenant"))

    @property
    def tenant_of_body(self) -> str:
        """The tenant that the body names, else that of the token, else the default one."""
        tenant = access.tenant_for(self.grants, self.body.get("tenant"))
        return routing.DEFAULT_NAME if tenant is None else validation.name(tenant, "tenant")

    async def job(self, job_id: str | None = None) -> Job:
        """Return a job, by default that of the path, if the caller may see it; else raise `JobNotFound`."""
        wanted = self.path["job_id"] if job_id is None else job_id
        by_number = self.query.get("by") == "number"
        if by_number and not re.fullmatch(r"[0-9]{1,18}", wanted):
            raise errors.JobNotFound(wanted)
        try:
            if by_number:
                found = await self.queue.get(int(wanted), tenant=self.tenant)
            else:
                found = await self.service.combined.job(validate_calls.job_id(wanted))
        except errors.InvalidInput:
            raise errors.JobNotFound(wanted) from None
        if self.tenant not in {None, found.tenant}:
            raise errors.JobNotFound(wanted)
        if not access.covers(self.grants, found.lane, found.kind):
            raise errors.JobNotFound(wanted)
        return found

    @property
    def idempotency_key(self) -> str | None:
        """The header `Idempotency-Key`."""
        # Not by `request.headers`, which takes three times as long: every enqueue asks.
        for name, value in self.request.scope["headers"]:
            if name == b"idempotency-key":
                key: str = value.decode("latin-1")
                if not _KEY.fullmatch(key):
                    raise errors.InvalidInput("Idempotency-Key", "must be 1 to 255 visible ASCII characters")
                return key
        return None

    async def audit(self, action: str, target: str, **detail: strict_json.Json) -> None:
        """Record an action of an operator, before it is carried out."""
        await self.queue.admin.record_action(action, target, actor=self.caller.actor, detail=detail)

    # --- waiting ---------------------------------------------------------------------------------------------------

    async def wait_for(self, waiting: Coroutine[Any, Any, T], otherwise: T) -> T:
        """Return the result of a coroutine that may take long.

        Cancel it and return *otherwise* if the server shuts down; cancel it and raise if the client is gone or its
        token was revoked.
        """
        task = asyncio.ensure_future(waiting)
        gone = asyncio.ensure_future(_disconnected(self.request))
        closing = asyncio.ensure_future(self.service.closing.wait())
        revoked: list[bool] = []

        def revoke() -> None:
            revoked.append(True)
            task.cancel()

        try:
            with self.service.access.watch(self.caller, revoke):
                await asyncio.wait({task, gone, closing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for other in (gone, closing):
                other.cancel()
            if not task.done():
                task.cancel()
        try:
            return await task
        except asyncio.CancelledError:
            if revoked:
                raise errors.NotAuthenticated("the token was revoked or has expired") from None
            if self.service.closing.is_set():
                return otherwise
            raise ProblemError(400, "bad_request", "the client has closed the connection") from None


def _decoded(parameters: Mapping[str, str]) -> dict[str, str]:
    try:
        return {name: unquote(value, errors="strict") for name, value in parameters.items()}
    except UnicodeDecodeError:
        raise ProblemError(404, "not_found", "the path is not UTF-8") from None


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _check_parameter(name: str, value: Any, schema: Schema) -> None:
    """Raise `InvalidInput` if a parameter is outside of its schema."""
    json_schema.check(schema, value, name)
    if isinstance(value, list):
        for index, item in enumerate(value):
            _check_parameter(f"{name}[{index}]", item, schema["items"])
    elif "maximum" in schema:
        validation.number(value, name, schema["minimum"], schema["maximum"])
    elif "maxLength" in schema:
        validation.name(value, name, schema["maxLength"])


def check_limits(schema: Schema, value: Any, path: str) -> None:
    """Raise `InvalidInput` if a part of a body exceeds a limit of its schema, whose types were checked.

    For handlers that pass on values which the library does not check, because its own workers send them.
    """
    schema = next((one for one in schema.get("anyOf", ()) if one.get("type") != "null"), schema)
    match value:
        case dict():
            limit = schema.get("maxProperties", len(value))
            if len(value) > limit:
                raise errors.InvalidInput(path, f"has {len(value)} keys; the limit is {limit}", limit)
            for name, one in value.items():
                known = schema.get("properties", {}).get(name, schema.get("additionalProperties"))
                if isinstance(known, dict):
                    check_limits(known, one, f"{path}.{name}".removeprefix("."))
        case list():
            low, high = schema.get("minItems", 0), schema.get("maxItems", len(value))
            if not low <= len(value) <= high:
                problem = f"has {len(value)} entries; it must have {low} to {high}"
                raise errors.InvalidInput(path, problem, high if value else low)
            for index, one in enumerate(value):
                check_limits(schema.get("items", {}), one, f"{path}[{index}]")
        case str() if "pattern" in schema and "maxLength" in schema:
            validation.name(value, path, schema["maxLength"])
        case int() | float() if "maximum" in schema and not isinstance(value, bool):
            validation.number(value, path, schema["minimum"], schema["maximum"])
        case _:
            pass


def _converted(name: str, value: str, schema: Schema) -> Any:
    match schema["type"]:
        case "integer":
            if not re.fullmatch(r"-?[0-9]{1,18}", value):
                raise errors.InvalidInput(name, "must be an integer")
            return int(value)
        case "number":
            if not re.fullmatch(r"-?[0-9]{1,15}(\.[0-9]{1,9})?", value):
                raise errors.InvalidInput(name, "must be a number")
            return float(value)
        case "boolean":
            if value not in {"true", "false"}:
                raise errors.InvalidInput(name, "must be true or false")
            return value == "true"
        case _:
            return value


def reply(document: strict_json.Json, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a JSON response."""
    return _json(encode(document), status, headers)


def reply_text(text: str, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a response of JSON text."""
    return _json(text.encode("utf-8", "replace"), status, headers)


def _json(content: bytes, status: int, headers: Mapping[str, str] | None) -> Response:
    response = Response(content, status, media_type=bodies.JSON)
    if headers is not None:
        # The constructor would look for its own headers among them.
        response.raw_headers += [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
    return response


def within_scope(grants: access.Grants, jobs: Sequence[Job]) -> list[Job]:
    """Return the jobs that the caller may see."""
    return [job for job in jobs if access.covers(grants, job.lane, job.kind)]
