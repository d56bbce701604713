"""What plain forms work out once for each version of the routing."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from holdfast.domain import claim_order, strict_json
from holdfast.domain.claims import ClaimRequest
from holdfast.domain.new_job import CheckedJob
from holdfast.domain.routing import RoutingTable
from holdfast.storage.query_names import QueryName
from holdfast.storage.sql_queries import Row
from holdfast.storage.sqlite import narrow_rows, sql

_NO_PREFERENCE: Final = claim_order.Preference()
_PLAIN_ROUTES_MAX: Final = 32
_PLANS_MAX: Final = 1_024
CLAIM_PARAMETERS: Final = ("scope", "version", "wall_now", "lease_now", "chosen_token", "worker", "incarnation")
_PLAIN_QUERIES: Final[Mapping[tuple[bool, bool], tuple[QueryName, str]]] = {
    (True, True): sql.numbered("ready_plain_next", "route", *CLAIM_PARAMETERS),
    (False, True): sql.numbered("ready_plain_routes", "routes", *CLAIM_PARAMETERS),
    (True, False): sql.numbered("ready_plain_stream", "route", *CLAIM_PARAMETERS, "limit"),
    (False, False): sql.numbered("ready_plain_streams", "routes", *CLAIM_PARAMETERS, "limit"),
}
"""The queries of a plain claim, by whether it serves one route and takes one job."""


@dataclass(slots=True)
class PlainSelection:
    """What plain claims with the same options have in common, by one routing."""

    name: QueryName
    text: str
    bound: tuple[int | str, str, str]
    """The first values of the query: the only route, or several as JSON, the scope and the version of the routing."""
    scope: str
    """The text that precedes the priority in the fairness scope."""
    gated: bool
    """Whether jobs may need room at a gate."""


class Plans:
    """What plain forms have worked out by one routing, for calls that differ in ids and times only."""

    __slots__ = ("_claims", "_last_claim", "inserts", "lone", "routing", "version")

    def __init__(self, routing: RoutingTable) -> None:
        self.routing = routing
        self.version = str(routing.version)
        self.lone = True
        """Whether claims first look for jobs of one fair_key: no, after one has found several."""
        self.inserts: dict[int, tuple[narrow_rows.PlainInsert, str, Row]] = {}
        """By the identity of their settings, to which each has a reference; the last two are its `due`."""
        self._claims: dict[tuple[object, ...], PlainSelection | None] = {}
        self._last_claim: tuple[tuple[object, ...], bool, PlainSelection | None] = ((), False, None)

    def add_insert(self, new: CheckedJob, completed: CheckedJob) -> tuple[narrow_rows.PlainInsert, str, Row]:
        """Return what jobs with the settings of *completed* have in common; *new* is as its caller gave it."""
        plan = narrow_rows.plain_insert(completed.settings, self.routing)
        found = (plan, *plan.due())
        if completed is new:
            if len(self.inserts) >= _PLANS_MAX:
                self.inserts.clear()
            self.inserts[id(new.settings)] = found
        return found

    def claim(self, request: ClaimRequest) -> PlainSelection | None:
        """Return what claims with the options of *request* have in common; None if they have no plain form."""
        key, one_job = request[:6], request.limit == 1
        last, last_one_job, selection = self._last_claim
        # The options of a request are cached, so that comparing them takes less time than computing their hash.
        if key == last and one_job is last_one_job:
            return selection
        try:
            selection = self._claims[key, one_job]
        except KeyError:
            if len(self._claims) >= _PLANS_MAX:
                self._claims.clear()
            selection = self._claims[key, one_job] = self._selection(request)
        self._last_claim = (key, one_job, selection)
        return selection

    def _selection(self, request: ClaimRequest) -> PlainSelection | None:
        routing = self.routing
        if request.tenant is not None or request.listed or request.preference != _NO_PREFERENCE:
            return None
        routes = routing.serving(request.lanes, request.kinds, request.capabilities)
        if not routing.recorded_lanes.isdisjoint(request.lanes) or not routes or len(routes) > _PLAIN_ROUTES_MAX:
            return None
        numbers = [route.number for route in routes]
        name, text = _PLAIN_QUERIES[len(routes) == 1, request.limit == 1]
        shown = numbers[0] if len(routes) == 1 else strict_json.compact(numbers)
        scope = request.fair_scope_prefix()
        return PlainSelection(name, text, (shown, scope, self.version), scope, routing.is_gated(routes))
