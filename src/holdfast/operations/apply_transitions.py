"""Writing transitions: the one place where a step that the domain decided becomes rows, events and signals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from holdfast.domain import transitions
from holdfast.domain.clock import Now
from holdfast.domain.events import TERMINAL, EventName
from holdfast.domain.job import FINISHED, WAITING, Job
from holdfast.domain.routing import RoutingTable
from holdfast.domain.transitions import Transition
from holdfast.operations.sessions import refresh_sessions
from holdfast.storage.contract import Transaction
from holdfast.storage.notifications import job_topic, lane_topic, session_topic, sessions_topic

_TO_CLAIM: Final = ("ready", "scheduled")


async def apply_transitions(
    tx: Transaction, routing: RoutingTable, steps: Sequence[Transition], now: Now
) -> list[Job]:
    """Write *steps* with their history and events, free successors, and return the jobs they leave, in order."""
    if not steps:
        return []
    placed = [_apply_lane_rules(routing, step, now) for step in steps]
    await tx.apply(placed, now)
    return await finish_transitions(tx, routing, placed, now)


async def finish_transitions(
    tx: Transaction, routing: RoutingTable, steps: Sequence[Transition], now: Now
) -> list[Job]:
    """Do what follows from *steps* that are written and recorded, and return the jobs they leave, in order."""
    after = [step.after for step in steps]
    await notify_jobs(tx, after)
    await _free_successors(tx, routing, steps, now)
    # A claim writes its session itself.
    touched = {
        step.after.session_number
        for step in steps
        if step.after.session_number is not None and step.event != "claimed"
    }
    if touched:
        await refresh_sessions(tx, routing, touched, now)
    return after


# --- lane rules ----------------------------------------------------------------------------------------------------


def _apply_lane_rules(routing: RoutingTable, step: Transition, now: Now) -> Transition:
    """Apply lane rules: retire jobs of retired kinds and set the fairness key."""
    before, after, event = step
    if after.state in WAITING:
        if after.kind in routing.retired:
            after, event = transitions.retire(after, now)[1:]
        elif after.state == "ready" and after.fair_key != (
            fair_key := routing.lane(after.lane).fair_key_of(after.tenant)
        ):
            after = after._replace(fair_key=fair_key)
    if records(routing, after, event):
        after = after.counting_event()
    return step if after is step.after else Transition(before, after, event)


# --- telling -------------------------------------------------------------------------------------------------------


def records(routing: RoutingTable, job: Job, event: EventName) -> bool:
    """Whether *event* of *job* belongs into the log."""
    return event in TERMINAL or bool(job.record_all) or job.lane in routing.loud


async def notify_jobs(tx: Transaction, jobs: Sequence[Job]) -> None:
    """Wake those who wait for what has finished, and claimers in lanes where something came or will come."""
    topics = [job_topic(job.id) for job in jobs if job.state in FINISHED]
    # A scheduled job concerns claimers too: it may fall due before anything they know of.
    waiting = [job for job in jobs if job.state in _TO_CLAIM]
    topics += [lane_topic(lane) for lane in {job.lane for job in waiting if job.entry_json is None}]
    for job in waiting:
        if job.entry_json is not None:
            topics += (sessions_topic(job.lane), session_topic(job.tenant, job.session or ""))
    if topics:
        tx.notify(topics)


# --- what follows --------------------------------------------------------------------------------------------------


async def _free_successors(tx: Transaction, routing: RoutingTable, steps: Sequence[Transition], now: Now) -> None:
    # Only a job with a dedupe key can have a successor, so that others do not pay for looking.
    ended = [step.after.seq for step in steps if step.after.dedupe_key is not None and step.finishes]
    if ended:
        blocked = await tx.successors(ended)
        await apply_transitions(tx, routing, [transitions.unblock(job, now) for job in blocked], now)
