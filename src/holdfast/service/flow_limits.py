"""Handlers of `/v1/limits`: limits by key concern all tenants."""

from typing import Any

from starlette.responses import Response

from holdfast import json_view
from holdfast.domain import gates
from holdfast.operations import flow_limits
from holdfast.service.call import Call, reply


async def list_limits(call: Call) -> Response:
    """Return all limits."""
    return reply({"limits": [json_view.limit(one) for one in await call.queue.limits.list()]})


async def get(call: Call) -> Response:
    """Return one limit."""
    return reply(json_view.limit(await call.queue.limits.get(call.path["limit"])))


async def put(call: Call) -> Response:
    """Set a limit."""
    options: dict[str, Any] = dict(call.body)
    limit = gates.check_limit(call.path["limit"], options)
    return reply(json_view.limit(await call.service.runner.write(flow_limits.set_limit, limit, call.caller.actor)))


async def remove(call: Call) -> Response:
    """Delete a limit."""
    name = gates.check_name(call.path["limit"])
    return reply(json_view.limit(await call.service.runner.write(flow_limits.remove_limit, name, call.caller.actor)))


async def show(call: Call) -> Response:
    """Return how a key uses each limit."""
    return reply({"limits": [json_view.key_use(one) for one in await call.queue.limits.show(call.query["key"])]})
