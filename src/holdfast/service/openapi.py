"""The OpenAPI 3.1 document, made from the route table."""

import re
from collections.abc import Iterable
from typing import Any, Final

from holdfast.domain import limits
from holdfast.service import bodies, call, problems, schemas
from holdfast.service.streams import MEDIA_TYPE as EVENT_STREAM
from holdfast.version import __version__

_PARAMETER: Final = re.compile(r"\{(\w+)\}")
# Other parameters of paths are names.
_PATH_SCHEMAS: Final = {"number": schemas.integer(0, limits.ARTIFACT_BYTES_MAX // limits.ARTIFACT_CHUNK_BYTES)}
_DESCRIPTIONS: Final = {
    200: "Success",
    201: "Created",
    206: "The range that was asked for",
    400: "The body is not JSON, or the request is not HTTP",
    401: "No valid token",
    403: "The token does not grant this",
    404: "Not found, or of another tenant",
    408: "The request took too long",
    409: "The state or content in the store does not permit this",
    410: "The events after the cursor were pruned",
    413: "The body is too large",
    416: "The artifact has no such range",
    415: "Another Content-Type is expected",
    422: "A value is invalid; `field` names it",
    429: "Too many streams, or waiting jobs in the lane",
    500: "A defect of the service or its configuration",
    503: "The store does not answer; send the request again",
    507: "The store is full",
}


def document(routes: Iterable[call.Endpoint]) -> dict[str, Any]:
    """Return the OpenAPI document of *routes*."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Holdfast",
            "version": __version__,
            "description": "A durable work queue. Durations are seconds, timestamps are milliseconds since 1970.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas.COMPONENTS,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "bearerFormat": "hf_<id>_<secret>"}},
        },
    }


def _operation(route: call.Endpoint) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "tags": [route.path.split("/")[2] if route.path.startswith("/v1/") else "health"],
        "responses": _responses(route),
    }
    if route.roles is None:
        operation["security"] = []
    else:
        needed = " or ".join((*route.roles, "admin"))
        scope = "; the token must be for any tenant" if route.any_tenant else ""
        scope += "; the token must be for all lanes and kinds" if route.any_job else ""
        operation |= {"security": [{"token": []}], "description": f"Role: {needed}{scope}."}
    if parameters := _parameters(route):
        operation["parameters"] = parameters
    if route.body is not None:
        content: dict[str, Any] = {"schema": _named(route.body)}
        if route.body_example is not None:
            content["example"] = route.body_example
        operation["requestBody"] = {
            "required": route.body_required,
            "content": {route.body_media_type: content},
        }
    return operation


def _named(schema: schemas.Schema) -> schemas.Schema:
    """Return a reference to *schema* if it has a name."""
    return next((schemas.ref(name) for name, known in schemas.COMPONENTS.items() if known is schema), schema)


def _parameters(route: call.Endpoint) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": _PATH_SCHEMAS.get(name, {**schemas.STRING, "minLength": 1}),
        }
        for name in _PARAMETER.findall(route.path)
    ]
    found += [
        {"name": name, "in": "query", "schema": schema} | ({"required": True} if name in route.query_required else {})
        for name, schema in route.query.items()
    ]
    found += [{"name": name, "in": "header", "schema": schema} for name, schema in route.headers.items()]
    if route.idempotent:
        schema = {"type": "string", "pattern": "^[\\x21-\\x7e]{1,255}$"}
        found.append({"name": "Idempotency-Key", "in": "header", "schema": schema})
    return found


def _responses(route: call.Endpoint) -> dict[str, Any]:
    content: dict[str, Any] = {"schema": route.response}
    if route.response_example is not None:
        content["example"] = route.response_example
    contents = {route.response_media_type: content}
    if route.streams:
        contents[EVENT_STREAM] = {"schema": schemas.STRING, "example": 'id: 42\ndata: {"number":42}\n\n'}
    if route.name == "get_artifact":
        contents = {"*/*": content}
    statuses = {route.status, 200} if route.idempotent else {route.status}
    if "Range" in route.headers:
        statuses.add(206)
    responses: dict[str, Any] = {
        str(status): {"description": _DESCRIPTIONS[status], "content": contents} for status in sorted(statuses)
    }
    problem = {problems.MEDIA_TYPE: {"schema": schemas.ref("Problem")}}
    for status in sorted(_problem_statuses(route)):
        responses[str(status)] = {"description": _DESCRIPTIONS[status], "content": problem}
    return responses


def _problem_statuses(route: call.Endpoint) -> set[int]:
    statuses = {400, 422, 500, 503, *route.problems}
    if route.roles is not None:
        statuses |= {401, 403}
    if route.body is not None:
        statuses |= {408, 413, 415}
    if route.method != "GET":
        statuses |= {507}
    return statuses


def is_json(route: call.Endpoint) -> bool:
    """Return whether the route's response is JSON."""
    return route.response_media_type == bodies.JSON
