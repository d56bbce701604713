"""Routes: giving new ones a number, and finding known ones."""

from __future__ import annotations

from collections.abc import Set

from holdfast.domain import limits
from holdfast.domain.errors import InvalidInput
from holdfast.domain.routing import Catalog, Route, RouteKey
from holdfast.storage.contract import OvertakenError, Transaction


async def intern_routes(tx: Transaction, catalog: Catalog, keys: Set[RouteKey]) -> Catalog:
    """Return a catalog in which every one of *keys* has a number."""
    missing = sorted(keys - catalog.routes.keys())
    if not missing:
        return catalog
    if len(catalog.routes) + len(missing) > limits.ROUTES_MAX:
        raise InvalidInput(
            "kind",
            f"would bring the combinations of lane, kind and requires beyond {limits.ROUTES_MAX};"
            " names of single things belong into the payload or tags",
        )
    return await tx.add_routes(missing)


def route_by_number(catalog: Catalog, number: int) -> Route:
    """Return a route that a row names; one that came after this catalog was read makes the operation run again."""
    route = catalog.by_number.get(number)
    if route is None:
        raise OvertakenError(f"route {number} came after the catalog was read")
    return route
