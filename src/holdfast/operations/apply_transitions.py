"""Applying transitions: writes the jobs that the domain has decided, their events and notifications."""

from collections.abc import Sequence
from typing import Final

from holdfast.domain import clock, events, transitions
from holdfast.domain.job import FINISHED, WAITING, JobRow
from holdfast.domain.routing import RoutingTable, fair_key_of
from holdfast.operations import failures, rollups, sessions
from holdfast.storage import contract, notifications

_TO_CLAIM: Final = ("ready", "scheduled")


async def apply_transitions(
    tx: contract.StoreTransaction, routing: RoutingTable, decided: Sequence[transitions.Transition], now: clock.Now
) -> list[JobRow]:
    """Write *decided* with attempts and events, unblock successors, and return the changed jobs, in order."""
    if not decided:
        return []
    adjusted = [_apply_lane_rules(routing, transition, now) for transition in decided]
    await tx.apply(adjusted, now)
    tx.forms["settle full"] += sum(one.event == "done" for one in adjusted)
    tx.rollups.ended.extend(rollups.ended(adjusted, now))
    if routing.has_edges and (ended := [one.after.seq for one in adjusted if one.finishes]):
        await tx.wake_awaited(ended)
    if failed := [one.after for one in adjusted if one.after.state == "failed" and one.finishes]:
        await failures.record(tx, failed, now)
    if routing.has_limits:
        await tx.wake_gates([one.after.seq for one in adjusted if transitions.leaves_gate(one)])
    return await finish_transitions(tx, routing, adjusted, now)


async def finish_transitions(
    tx: contract.StoreTransaction,
    routing: RoutingTable | None,
    written: Sequence[transitions.Transition],
    now: clock.Now,
) -> list[JobRow]:
    """Send notifications, unblock successors and update sessions; return the changed jobs, in order.

    Without *routing* it is read if it is needed.
    """
    after = [transition.after for transition in written]
    await notify_jobs(tx, after)
    await _unblock_successors(tx, routing, written, now)
    # A claim writes its session itself.
    changed = {
        transition.after.session_number
        for transition in written
        if transition.after.session_number is not None and transition.event != "claimed"
    }
    if changed:
        await sessions.refresh_sessions(tx, routing or await tx.routing(), changed, now)
    return after


# --- lane rules ----------------------------------------------------------------------------------------------------


def _apply_lane_rules(
    routing: RoutingTable, transition: transitions.Transition, now: clock.Now
) -> transitions.Transition:
    """Apply lane rules: retire jobs of retired kinds and set the fairness key."""
    before, after, event = transition
    if after.state in WAITING:
        if after.kind in routing.retired:
            after, event = transitions.retire(after, now)[1:]
        elif after.state == "ready" and after.fair_key != (
            fair_key := fair_key_of(routing.lane(after.lane), after.tenant)
        ):
            after = after._replace(fair_key=fair_key)
    if records(routing, after, event):
        after = after.counting_event()
    return transition if after is transition.after else transitions.Transition(before, after, event)


# --- events and notifications --------------------------------------------------------------------------------------


def records(routing: RoutingTable, job: JobRow, event: events.EventName) -> bool:
    """Return whether *event* of *job* is recorded in the event log."""
    return event in events.ALWAYS or bool(job.record_all) or job.lane in routing.recorded_lanes


async def notify_jobs(tx: contract.StoreTransaction, jobs: Sequence[JobRow]) -> None:
    """Notify callers that wait for finished jobs, and claimers of lanes with ready or scheduled jobs."""
    topics = [notifications.job_topic(job.id) for job in jobs if job.state in FINISHED]
    # Claimers also need to know of a scheduled job: it may be due earlier than the time they wait for.
    waiting = [job for job in jobs if job.state in _TO_CLAIM]
    topics += [notifications.lane_topic(lane) for lane in {job.lane for job in waiting if job.entry_json is None}]
    for job in waiting:
        if job.entry_json is not None:
            topics += (
                notifications.sessions_topic(job.lane),
                notifications.session_topic(job.tenant, job.session or ""),
            )
    if topics:
        tx.notify(topics)


# --- successors ----------------------------------------------------------------------------------------------------


async def _unblock_successors(
    tx: contract.StoreTransaction,
    routing: RoutingTable | None,
    written: Sequence[transitions.Transition],
    now: clock.Now,
) -> None:
    # Only a job with a dedupe key can have a successor; skip the query for all others.
    ended = [one.after.seq for one in written if one.after.dedupe_key is not None and one.finishes]
    if ended:
        blocked = await tx.successors(ended)
        if blocked:
            unblocked = [transitions.unblock(job, now) for job in blocked]
            await apply_transitions(tx, routing or await tx.routing(), unblocked, now)
