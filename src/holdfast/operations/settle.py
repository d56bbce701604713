"""Settling attempts: read under the lock, decide in the domain, write behind the fence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from holdfast.domain import transitions
from holdfast.domain.claims import Claim, Lease, Settlement
from holdfast.domain.clock import Now
from holdfast.domain.errors import LeaseLost, Misconfigured, Refused
from holdfast.domain.job import Job
from holdfast.domain.outcomes import CheckedOutcome, Done
from holdfast.domain.routing import RoutingTable
from holdfast.domain.transitions import Transition
from holdfast.operations.apply_transitions import apply_transitions, finish_transitions
from holdfast.operations.enqueue import KEYS_LOCKED_MAX, enqueue_jobs, is_shared, lock_met
from holdfast.operations.lease import held_job, write_artifacts
from holdfast.storage.contract import Transaction


async def settle_jobs(tx: Transaction, wanted: Sequence[tuple[Claim, CheckedOutcome]]) -> list[Settlement]:
    """Settle each claim by itself and return each one's answer, in order.

    Plain outcomes are written together. One that brings follow-ups or artifacts comes after all before it are
    written, in a savepoint of its own, because those may be refused, and then nothing of it must stay.
    """
    if not wanted:
        return []
    routing = await tx.routing()
    return await settle_under(tx, routing, wanted)


def divide_settlements(
    wanted: Sequence[tuple[Claim, CheckedOutcome]],
) -> list[Sequence[tuple[Claim, CheckedOutcome]]]:
    """Divide the settlements of one call, in order, so that each part brings no more keys than a transaction locks.

    A single settlement that brings more is a part of its own: its follow-ups are written in one statement, in order.
    """
    if not any(checked.follow_ups for _, checked in wanted):
        return [wanted]
    parts: list[list[tuple[Claim, CheckedOutcome]]] = [[]]
    room = KEYS_LOCKED_MAX
    for claim, checked in wanted:
        keys = sum(map(is_shared, checked.follow_ups)) + (claim.job.dedupe_key is not None)
        if keys > room and parts[-1]:
            parts.append([])
            room = KEYS_LOCKED_MAX
        parts[-1].append((claim, checked))
        room -= keys
    return list(parts)


async def settle_under(
    tx: Transaction, routing: RoutingTable, wanted: Sequence[tuple[Claim, CheckedOutcome]]
) -> list[Settlement]:
    """Settle as `settle_jobs` does, under the routing table that was just read."""
    done = await _succeed_at_once(tx, routing, wanted)
    if not done:
        return await _settle_each(tx, routing, wanted)
    rest = [pair for place, pair in enumerate(wanted) if place not in done]
    others = iter((await _settle_each(tx, routing, rest)) if rest else ())
    return [done[place] if place in done else next(others) for place in range(len(wanted))]


async def _succeed_at_once(
    tx: Transaction, routing: RoutingTable, wanted: Sequence[tuple[Claim, CheckedOutcome]]
) -> dict[int, Settlement]:
    """Settle plain successes in one statement, where the engine has one; return the answers by their place.

    Not where follow-ups come along: whether one of them meets the holder of its key depends on the order.
    """
    if any(checked.follow_ups for _, checked in wanted):
        return {}
    # Of a job named twice the first counts here; the second then meets what that has left behind.
    places: dict[int, int] = {}
    for place, (claim, checked) in enumerate(wanted):
        if type(checked.outcome) is Done and checked.digest is None:
            places.setdefault(claim.job.seq, place)
    if not places:
        return {}
    now = await tx.now()
    steps = await tx.finish_held([wanted[place] for place in places.values()], now)
    jobs = await finish_transitions(tx, routing, list(steps.values()), now)
    return {places[job.seq]: Settlement(wanted[places[job.seq]][0], job) for job in jobs}


async def _settle_each(
    tx: Transaction, routing: RoutingTable, wanted: Sequence[tuple[Claim, CheckedOutcome]]
) -> list[Settlement]:
    claims = [claim for claim, _ in wanted]
    await lock_met(tx, claims, [new for _, checked in wanted for new in checked.follow_ups])
    jobs = await tx.refresh(claims)
    now = await tx.now()
    batch = _Batch(routing, now, jobs, [], {})
    for claim, checked in wanted:
        lease, seq = claim.lease, claim.job.seq
        if seq in batch.plain:
            # Named twice in one call: the second meets what the first has left behind.
            await _write_plain(tx, batch)
        # Only an outcome that may be followed by a pause has use for chance.
        chance = 0.0 if type(checked.outcome) is Done else (tx.random())
        try:
            step = transitions.settle(held_job(jobs, lease), lease, checked, now, chance)
        except LeaseLost as lost:
            again = await sent_again(tx, jobs.get(seq), lease, checked)
            batch.answers.append(Settlement(claim, again) if again else Settlement(claim, error=lost))
            continue
        if checked.follow_ups or checked.artifacts:
            await _write_plain(tx, batch)
            batch.answers.append(await _settle_with_extras(tx, batch, claim, checked, step))
        else:
            batch.plain[seq] = (len(batch.answers), claim, step)
            batch.answers.append(_UNWRITTEN)
    await _write_plain(tx, batch)
    return batch.answers


class _Batch(NamedTuple):
    """One call's settlements: what they act on, what was answered, and what is decided but not yet written."""

    routing: RoutingTable
    now: Now
    jobs: dict[int, Job]
    answers: list[Settlement]
    plain: dict[int, tuple[int, Claim, Transition]]
    """Middleware by job, each with the place of its answer and the claim that it settles."""


# Stands in the place of an answer until its step is written.
_UNWRITTEN: Any = None


async def sent_again(tx: Transaction, job: Job | None, lease: Lease, checked: CheckedOutcome) -> Job | None:
    """Return the job if this very outcome was taken already."""
    if job is None:
        return None
    past = None
    if job.epoch != lease.epoch:
        past = await tx.settled_attempt(lease.seq, lease.epoch)
    return job if transitions.settled_before(job, past, lease, checked) else None


async def _settle_with_extras(
    tx: Transaction, batch: _Batch, claim: Claim, checked: CheckedOutcome, step: Transition
) -> Settlement:
    try:
        async with tx.savepoint():
            # The job has ended when its follow-ups come: one of them may carry on its dedupe key.
            [job] = await apply_transitions(tx, batch.routing, [step], batch.now)
            await enqueue_jobs(tx, checked.follow_ups, "follow_ups")
            await write_artifacts(tx, job, checked.artifacts, batch.now)
    except (Refused, Misconfigured) as refusal:
        return Settlement(claim, error=refusal)
    batch.jobs[job.seq] = job
    return Settlement(claim, job=job)


async def _write_plain(tx: Transaction, batch: _Batch) -> None:
    """Write what was decided since the last time, and complete the answers."""
    if not batch.plain:
        return
    decided = list(batch.plain.values())
    jobs = await apply_transitions(tx, batch.routing, [step for _, _, step in decided], batch.now)
    for (place, claim, _), job in zip(decided, jobs, strict=True):
        batch.answers[place] = Settlement(claim, job)
        batch.jobs[job.seq] = job
    batch.plain.clear()
