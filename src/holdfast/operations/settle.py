"""Settling: lock the claimed jobs, check their leases, apply the transitions of their outcomes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from holdfast.domain import limits, transitions
from holdfast.domain.claims import Claim, JobFence, Settlement
from holdfast.domain.clock import Now
from holdfast.domain.errors import LeaseLost, Misconfigured, Refused
from holdfast.domain.job import Job, JobRow
from holdfast.domain.outcomes import CheckedOutcome, Done
from holdfast.domain.routing import RoutingTable
from holdfast.domain.transitions import Transition
from holdfast.operations.apply_transitions import apply_transitions, finish_transitions
from holdfast.operations.artifacts import write_outputs
from holdfast.operations.enqueue import enqueue_jobs, is_shared, lock_matches
from holdfast.operations.lease import held_job
from holdfast.storage.contract import StoreTransaction
from holdfast.storage.notifications import JOB_TOPIC


async def settle_jobs(
    tx: StoreTransaction, outcomes: Sequence[tuple[Claim, CheckedOutcome]], routing: RoutingTable | None = None
) -> list[Settlement]:
    """Settle each claim independently and return a settlement for each, in order.

    *routing* is the routing that this transaction has read, if any. Plain outcomes are written together. An outcome
    with follow-ups or artifacts is written after all outcomes before it, in its own savepoint: if a follow-up or
    artifact is refused, only that outcome is rolled back.
    """
    if not outcomes:
        return []
    done = await _settle_plain_successes(tx, outcomes)
    if len(done) == len(outcomes):
        return [done[index] for index in range(len(outcomes))]
    rest = [pair for index, pair in enumerate(outcomes) if index not in done]
    others = iter(await _settle_each(tx, routing or await tx.routing(), rest))
    return [done[index] if index in done else next(others) for index in range(len(outcomes))]


def is_plain_success(checked: CheckedOutcome) -> bool:
    """Return whether an outcome is a success whose result alone identifies it, without follow-ups and artifacts."""
    return type(checked.outcome) is Done and checked.digest is None


def divide_settlements(
    outcomes: Sequence[tuple[Claim, CheckedOutcome]],
) -> list[Sequence[tuple[Claim, CheckedOutcome]]]:
    """Divide the settlements of one call, in order, into parts with at most `KEYS_LOCKED_MAX` keys each.

    A single settlement with more keys is its own part: its follow-ups are written in one statement, in key order.
    """
    if not any(checked.follow_ups for _, checked in outcomes):
        return [outcomes]
    parts: list[list[tuple[Claim, CheckedOutcome]]] = [[]]
    room = limits.KEYS_LOCKED_MAX
    for claim, checked in outcomes:
        keys = sum(map(is_shared, checked.follow_ups)) + (claim.job.dedupe_key is not None)
        if keys > room and parts[-1]:
            parts.append([])
            room = limits.KEYS_LOCKED_MAX
        parts[-1].append((claim, checked))
        room -= keys
    return list(parts)


async def _settle_plain_successes(
    tx: StoreTransaction, outcomes: Sequence[tuple[Claim, CheckedOutcome]]
) -> dict[int, Settlement]:
    """Settle plain successes whose lease is held; return their settlements by index.

    Settle none if an outcome has follow-ups: whether a follow-up is a duplicate depends on the order of settling.
    """
    if any(checked.follow_ups for _, checked in outcomes):
        return {}
    # If a job is in the call twice, settle the first here; `_settle_each` then decides on the second.
    indexes: dict[int, int] = {}
    for index, (claim, checked) in enumerate(outcomes):
        if is_plain_success(checked):
            indexes.setdefault(claim.job.number, index)
    if not indexes:
        return {}
    now = await tx.now()
    written = await tx.finish_held([outcomes[index] for index in indexes.values()], now)
    jobs = [transition.after for transition in written.values()]
    if any(job.dedupe_key is not None or job.session_number is not None for job in jobs):
        await finish_transitions(tx, None, list(written.values()), now)
    else:
        tx.topics.update([JOB_TOPIC + job.id for job in jobs])
    return {indexes[job.seq]: Settlement(outcomes[indexes[job.seq]][0], Job(job)) for job in jobs}


async def _settle_each(
    tx: StoreTransaction, routing: RoutingTable, outcomes: Sequence[tuple[Claim, CheckedOutcome]]
) -> list[Settlement]:
    claims = [claim for claim, _ in outcomes]
    await lock_matches(tx, claims, [new for _, checked in outcomes for new in checked.follow_ups])
    jobs = await tx.refresh(claims)
    now = await tx.now()
    call = _SettleCall(routing, now, jobs, [], {})
    for claim, checked in outcomes:
        fence, seq = claim.fence, claim.job.number
        if seq in call.unwritten:
            # The job is in the call twice: write the first settlement before deciding on the second.
            await _flush(tx, call)
        # Only outcomes that may schedule a retry need a random number.
        chance = 0.0 if type(checked.outcome) is Done else tx.random()
        try:
            transition = transitions.settle(held_job(jobs, fence), fence, checked, now, chance)
        except LeaseLost as lost:
            settled = await find_duplicate_settlement(tx, jobs.get(seq), fence, checked)
            call.settlements.append(Settlement(claim, Job(settled)) if settled else Settlement(claim, error=lost))
            continue
        if checked.follow_ups or checked.artifacts:
            await _flush(tx, call)
            call.settlements.append(await _settle_with_extras(tx, call, claim, checked, transition))
        else:
            call.unwritten[seq] = (len(call.settlements), claim, transition)
            call.settlements.append(_UNWRITTEN)
    await _flush(tx, call)
    return call.settlements


class _SettleCall(NamedTuple):
    """The state of one call: its jobs, its settlements so far, and the transitions not yet written."""

    routing: RoutingTable
    now: Now
    jobs: dict[int, JobRow]
    settlements: list[Settlement]
    unwritten: dict[int, tuple[int, Claim, Transition]]
    """Unwritten transitions by job, each with the index of its settlement and its claim."""


# A placeholder for a settlement whose transition is not yet written.
_UNWRITTEN: Any = None


async def find_duplicate_settlement(
    tx: StoreTransaction, job: JobRow | None, fence: JobFence, checked: CheckedOutcome
) -> JobRow | None:
    """Return the job if the same outcome of this claim is already stored."""
    if job is None:
        return None
    past = None
    if job.epoch != fence.epoch:
        past = await tx.settled_attempt(fence.seq, fence.epoch)
    return job if transitions.settled_before(job, past, fence, checked) else None


async def _settle_with_extras(
    tx: StoreTransaction, call: _SettleCall, claim: Claim, checked: CheckedOutcome, transition: Transition
) -> Settlement:
    try:
        async with tx.savepoint():
            # Finish the job before its follow-ups are enqueued: one of them may have its dedupe key.
            [job] = await apply_transitions(tx, call.routing, [transition], call.now)
            await enqueue_jobs(tx, checked.follow_ups, "follow_ups")
            await write_outputs(tx, job, checked.artifacts, call.now)
    except (Refused, Misconfigured) as refusal:
        return Settlement(claim, error=refusal)
    call.jobs[job.seq] = job
    return Settlement(claim, Job(job))


async def _flush(tx: StoreTransaction, call: _SettleCall) -> None:
    """Write the unwritten transitions and fill in their settlements."""
    if not call.unwritten:
        return
    unwritten = list(call.unwritten.values())
    jobs = await apply_transitions(tx, call.routing, [transition for _, _, transition in unwritten], call.now)
    for (index, claim, _), job in zip(unwritten, jobs, strict=True):
        call.settlements[index] = Settlement(claim, Job(job))
        call.jobs[job.seq] = job
    call.unwritten.clear()
