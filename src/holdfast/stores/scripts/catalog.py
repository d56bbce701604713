"""Reading and changing the catalog: lanes, routes and retired kinds."""

from __future__ import annotations

import secrets
from collections.abc import Set

from holdfast.domain import limits, strict_json
from holdfast.domain.errors import InvalidInput
from holdfast.domain.lane import Catalog, Lane, Route, RouteKey
from holdfast.stores.engine import Engine
from holdfast.stores.script import OvertakenError, Script, Statement


def load_catalog(engine: Engine) -> Script[Catalog]:
    """Return the catalog as it stands in this transaction, from memory if its version is known."""
    [[version]] = yield Statement("catalog_version")
    return (yield from catalog_at(engine, int(version)))


def catalog_at(engine: Engine, version: int) -> Script[Catalog]:
    """Return the catalog of the *version* that was just read."""
    known = engine.catalog
    if known is None or known.version != version:
        lanes = yield Statement("catalog_lanes")
        routes = yield Statement("catalog_routes")
        retired = yield Statement("catalog_retired")
        # Other threads may read another version at the same time, so that only the local name is to be trusted.
        engine.catalog = known = Catalog(
            version,
            (Lane(*row) for row in lanes),
            (_route(*row) for row in routes),
            (kind for (kind,) in retired),
        )
    return known


def _route(number: int, lane: str, kind: str, requires_json: str, *flags: int) -> Route:
    placed, session = map(bool, flags)
    key = RouteKey(lane, kind, requires_json, placed, session)
    return Route(number, key, frozenset(strict_json.decode(requires_json)))


def hold_catalog() -> Script[None]:
    """Keep everybody else from deciding by the catalog until it has been changed. Comes before any reading of it."""
    yield Statement("catalog_hold")


def touch_catalog() -> Script[None]:
    """Give the catalog a new version. Drawn at random: one that was rolled back is never met again."""
    yield Statement("catalog_touch", {"version": str(secrets.randbits(62) + 1)})


def intern_routes(engine: Engine, catalog: Catalog, keys: Set[RouteKey]) -> Script[Catalog]:
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
    for key in missing:
        yield Statement(
            "route_insert",
            {
                "lane": key.lane,
                "kind": key.kind,
                "requires": key.requires_json,
                "placed": int(key.placed),
                "session": int(key.session),
            },
        )
    yield from touch_catalog()
    return (yield from load_catalog(engine))


def route_by_number(catalog: Catalog, number: int) -> Route:
    """Return a route that a row names; one that came after this catalog was read makes the script run again."""
    route = catalog.by_number.get(number)
    if route is None:
        raise OvertakenError(f"route {number} came after the catalog was read")
    return route
