# Generated from client/async_api/lanes.py by scripts/make-sync; do not edit.
"""`queue.lanes`: list and configure lanes."""

from __future__ import annotations

import builtins

from holdfast.client.sync_api.namespace import Namespace
from holdfast.domain import limits, routing, validation
from holdfast.domain.routing import EventScope, Lane, LaneBackoff, LaneOrder, LaneState
from holdfast.domain.validation import Duration
from holdfast.operations import admin as admin_operations


class Lanes(Namespace):
    """Lists and configures the lanes of a queue: `queue.lanes`."""

    def list(self) -> builtins.list[Lane]:
        """Return every lane that was ever configured or used, sorted by name."""
        return self._runner.read(admin_operations.lanes)

    def set(
        self,
        lane: str,
        *,
        state: LaneState | None = None,
        order: LaneOrder | None = None,
        events: EventScope | None = None,
        backoff: LaneBackoff | None = None,
        max_waiting: int | None = None,
        target_age: Duration | None = None,
    ) -> Lane:
        """Change the given options of a lane and return it.

        *state* is `active`, `paused` or `draining`, *order* `fair` or `strict`, *events* `terminal` or `all`,
        *backoff* `block` or `skip`. *max_waiting* is how many ready and parked jobs each tenant may have in the lane
        before `enqueue` raises `QueueFull`. *target_age* is for how many seconds its oldest ready job should be due
        at most; `doctor`, the overview, metrics and the event `late` report lanes that are late. 0 removes either. If
        *order* or *backoff* is given, the lane's waiting jobs are updated in bounded chunks.
        """
        lane = validation.name(lane, "lane")
        if state is not None:
            validation.one_of(state, "state", routing.LANE_STATES)
        if order is not None:
            validation.one_of(order, "order", routing.LANE_ORDERS)
        if events is not None:
            validation.one_of(events, "events", routing.EVENT_SCOPES)
        if backoff is not None:
            validation.one_of(backoff, "backoff", routing.LANE_BACKOFFS)
        if max_waiting is not None:
            validation.integer(max_waiting, "max_waiting", 0, limits.LANE_WAITING_MAX)
        age = None if target_age is None else validation.duration_ms(target_age, "target_age") / 1000
        change = admin_operations.LaneChange(state, order, events, backoff, max_waiting, age)
        changed, routes = self._runner.write(admin_operations.set_lane, lane, change)
        after = 0
        changes_waiting = order is not None or backoff is not None
        while changes_waiting and (waiting := self._runner.read(admin_operations.waiting_seqs, routes, after)):
            self._runner.write(admin_operations.apply_lane_options, waiting)
            after = waiting[-1]
        return changed
