"""Routes: giving new ones a number, and finding known ones."""

from __future__ import annotations

from collections.abc import Set

from holdfast.domain import limits
from holdfast.domain.errors import InvalidInput
from holdfast.domain.routing import Route, RouteKey, RoutingTable
from holdfast.storage.contract import OvertakenError, Transaction


async def intern_routes(tx: Transaction, routing: RoutingTable, keys: Set[RouteKey]) -> RoutingTable:
    """Return a routing table in which every one of *keys* has a number."""
    missing = sorted(keys - routing.routes.keys())
    if not missing:
        return routing
    if len(routing.routes) + len(missing) > limits.ROUTES_MAX:
        raise InvalidInput(
            "kind",
            f"would bring the combinations of lane, kind and requires beyond {limits.ROUTES_MAX};"
            " names of single things belong into the payload or tags",
        )
    return await tx.add_routes(missing)


def route_by_number(routing: RoutingTable, number: int) -> Route:
    """Return the route with *number*; one added after the routing table was read makes the operation run again."""
    route = routing.by_number.get(number)
    if route is None:
        raise OvertakenError(f"route {number} came after the routing table was read")
    return route
