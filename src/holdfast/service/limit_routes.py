"""Limits by key, which concern all tenants: handlers and rows of the route table."""

from typing import Any, Final

from starlette.responses import Response

from holdfast import json_view
from holdfast.domain import gates, limits
from holdfast.operations import flow_limits
from holdfast.service import call, schemas

_LIMIT: Final[dict[str, Any]] = {
    "name": "llm",
    "kinds": ["llm.call"],
    "lanes": None,
    "key": "tenant",
    "concurrency": 2,
    "rate": None,
    "per": None,
    "burst": None,
    "weight": None,
}
_USE: Final[dict[str, Any]] = {
    "limit": "llm",
    "key": "acme",
    "running": 2,
    "parked": 17,
    "concurrency": 2,
    "opens_at_ms": None,
    "closed": False,
    "left": None,
}
_NEW: Final[dict[str, Any]] = {
    "kinds": schemas.nullable(schemas.array(schemas.text(), limits.CLAIM_KINDS_MAX)),
    "lanes": schemas.nullable(schemas.array(schemas.text(), limits.CLAIM_LANES_MAX)),
    "key": schemas.text(description="tenant, affinity, tag:NAME, given, or all (default)."),
    "concurrency": schemas.nullable(schemas.integer(1, limits.LIMIT_CONCURRENCY_MAX)),
    "rate": schemas.nullable(schemas.integer(1, limits.LIMIT_WEIGHT_MAX)),
    "per": schemas.nullable(schemas.number(1, limits.DAY_MS / 1000, "The time of rate in seconds; default 60.")),
    "burst": schemas.nullable(schemas.integer(1, limits.LIMIT_WEIGHT_MAX)),
    "weight": schemas.nullable(
        schemas.text(limits.LIMIT_NAME_CHARS_MAX, "What rate and burst count, such as tokens.")
    ),
}
_OPTIONS: Final[dict[str, Any]] = {"any_tenant": True, "any_job": True}


async def list_limits(request: call.Call) -> Response:
    """Return all limits."""
    return call.reply({"limits": [json_view.limit(one) for one in await request.queue.limits.list()]})


async def get_limit(request: call.Call) -> Response:
    """Return one limit."""
    return call.reply(json_view.limit(await request.queue.limits.get(request.path["limit"])))


async def put_limit(request: call.Call) -> Response:
    """Set a limit."""
    options: dict[str, Any] = dict(request.body)
    limit = gates.check_limit(request.path["limit"], options)
    return call.reply(
        json_view.limit(await request.service.runner.write(flow_limits.set_limit, limit, request.caller.actor))
    )


async def remove_limit(request: call.Call) -> Response:
    """Delete a limit."""
    name = gates.check_name(request.path["limit"])
    return call.reply(
        json_view.limit(await request.service.runner.write(flow_limits.remove_limit, name, request.caller.actor))
    )


async def show_use(request: call.Call) -> Response:
    """Return how a key uses each limit."""
    return call.reply(
        {"limits": [json_view.key_use(one) for one in await request.queue.limits.show(request.query["key"])]}
    )


LIMITS: Final = (
    call.Endpoint(
        "GET",
        "/v1/limits",
        "list_limits",
        "List the limits by key",
        list_limits,
        ("read",),
        schemas.shape(limits={"type": "array", "items": schemas.ref("Limit")}),
        {"limits": [_LIMIT]},
        **_OPTIONS,
    ),
    call.Endpoint(
        "GET",
        "/v1/limits/{limit}",
        "get_limit",
        "Get one limit by key",
        get_limit,
        ("read",),
        schemas.ref("Limit"),
        _LIMIT,
        problems=(404,),
        **_OPTIONS,
    ),
    call.Endpoint(
        "PUT",
        "/v1/limits/{limit}",
        "set_limit",
        "Set a limit by key",
        put_limit,
        (),
        schemas.ref("Limit"),
        _LIMIT,
        body=schemas.strict([], _NEW),
        body_example={"kinds": ["llm.call"], "key": "tenant", "concurrency": 2},
        problems=(409,),
        **_OPTIONS,
    ),
    call.Endpoint(
        "POST",
        "/v1/limits/{limit}/remove",
        "remove_limit",
        "Delete a limit by key; jobs that wait for room become ready",
        remove_limit,
        (),
        schemas.ref("Limit"),
        _LIMIT,
        problems=(404,),
        **_OPTIONS,
    ),
    call.Endpoint(
        "GET",
        "/v1/limit-use",
        "show_limit_use",
        "Get how a key uses each limit",
        show_use,
        ("read",),
        schemas.shape(limits={"type": "array", "items": schemas.ref("KeyUse")}),
        {"limits": [_USE]},
        query={"key": schemas.text(limits.LIMIT_KEY_CHARS_MAX, "The key.")},
        query_required=("key",),
        **_OPTIONS,
    ),
)
