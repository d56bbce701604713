"""The part of `Operations` that lists and configures lanes."""

from __future__ import annotations

from holdfast.domain import validation
from holdfast.domain.claims import ClaimOptions
from holdfast.domain.routing import (
    EVENT_SCOPES,
    LANE_BACKOFFS,
    LANE_ORDERS,
    LANE_STATES,
    EventScope,
    Lane,
    LaneBackoff,
    LaneOrder,
    LaneState,
)
from holdfast.operations import admin as admin_operations
from holdfast.storage.runners import Runner


class LaneOperations:
    """Operations on lanes: they validate the options, then run transactions."""

    def __init__(self, runner: Runner, claimer: ClaimOptions) -> None:
        self.runner = runner
        self._claimer = claimer

    async def lanes(self) -> list[Lane]:
        """Return every lane that was ever configured or used, sorted by name."""
        return await self.runner.read(admin_operations.lanes)

    async def set_lane(
        self,
        lane: str,
        *,
        state: LaneState | None = None,
        order: LaneOrder | None = None,
        events: EventScope | None = None,
        backoff: LaneBackoff | None = None,
    ) -> Lane:
        """Change the given options of a lane and return it.

        *state* is `active`, `paused` or `draining`, *order* `fair` or `strict`, *events* `terminal` or `all`,
        *backoff* `block` or `skip`. If *order* or *backoff* is given, the lane's waiting jobs are updated in bounded
        chunks.
        """
        lane = validation.name(lane, "lane")
        if state is not None:
            validation.one_of(state, "state", LANE_STATES)
        if order is not None:
            validation.one_of(order, "order", LANE_ORDERS)
        if events is not None:
            validation.one_of(events, "events", EVENT_SCOPES)
        if backoff is not None:
            validation.one_of(backoff, "backoff", LANE_BACKOFFS)
        change = admin_operations.LaneChange(state, order, events, backoff)
        changed, routes = await self.runner.write(admin_operations.set_lane, lane, change)
        after = 0
        changes_waiting = order is not None or backoff is not None
        while changes_waiting and (waiting := (await self.runner.read(admin_operations.waiting_seqs, routes, after))):
            await self.runner.write(admin_operations.apply_lane_options, waiting)
            after = waiting[-1]
        return changed
