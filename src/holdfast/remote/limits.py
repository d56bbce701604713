"""What the operations on limits by key do over HTTP. The server names the token of the caller as the actor."""

from holdfast.domain import gates
from holdfast.operations import flow_limits
from holdfast.remote import calls, connection, decode


@calls.over_http(flow_limits.list_limits)
async def list_limits(http: connection.Http) -> list[gates.Limit]:
    """Return all limits."""
    return [decode.limit(one) for one in (await http.get(connection.path("limits")))["limits"]]


@calls.over_http(flow_limits.get_limit)
async def get_limit(http: connection.Http, name: str) -> gates.Limit:
    """Return one limit."""
    return decode.limit(await http.get(connection.path("limits", name)))


@calls.over_http(flow_limits.set_limit)
async def set_limit(http: connection.Http, new: gates.LimitRow, actor: str) -> gates.Limit:
    """Set a limit."""
    one = gates.public(new)
    body = {
        "kinds": one.kinds and list(one.kinds),
        "lanes": one.lanes and list(one.lanes),
        "key": one.key,
        "concurrency": one.concurrency,
        "rate": one.rate,
        "per": one.per,
        "burst": one.burst,
        "weight": one.weight,
    }
    return decode.limit(await http.post(connection.path("limits", one.name), body, method="PUT"))


@calls.over_http(flow_limits.remove_limit)
async def remove_limit(http: connection.Http, name: str, actor: str) -> gates.Limit:
    """Delete a limit."""
    return decode.limit(await http.post(connection.path("limits", name, "remove"), None, repeatable=False))


@calls.over_http(flow_limits.show_key)
async def show_key(http: connection.Http, key: str) -> list[gates.KeyUse]:
    """Return how a key uses each limit."""
    return [decode.key_use(one) for one in (await http.get(connection.path("limit-use"), {"key": key}))["limits"]]
