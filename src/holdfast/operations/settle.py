"""Settling: lock the claimed jobs, check their leases, apply the transitions of their outcomes."""

from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any, NamedTuple

from holdfast.domain import clock, errors, limits, transitions
from holdfast.domain.claims import (
    Claim,
    JobFence,
    Settlement,
    accepted,
    ends_if_done,
    fence_of,
    job_id_of,
    number_of,
    taken_with,
)
from holdfast.domain.job import JobRow, job_of, row_of
from holdfast.domain.outcomes import CheckedOutcome, Deferred, Done, children_of
from holdfast.domain.routing import RoutingTable
from holdfast.operations import artifacts, enqueue, gates, lease
from holdfast.operations.apply_transitions import apply_transitions, finish_transitions
from holdfast.storage import notifications
from holdfast.storage.contract import StoreTransaction
from holdfast.storage.plain_contract import FinishedJobs


def settle_jobs(
    tx: StoreTransaction, outcomes: Sequence[tuple[Claim, CheckedOutcome]], routing: RoutingTable | None = None
) -> Coroutine[Any, Any, list[Settlement]]:
    """Settle each claim independently and return a settlement for each, in order.

    *routing* is the routing that this transaction has read, if any. Outcomes without follow-ups are written together.
    One with follow-ups is written after all outcomes before it, in its own savepoint: if a follow-up is refused, only
    that outcome is rolled back.
    """
    alone = len(outcomes) == 1 and is_plain_success(outcomes[0][1])
    return settle_alone(tx, outcomes, routing) if alone else _settle_several(tx, outcomes, routing)


async def settle_alone(
    tx: StoreTransaction, outcomes: Sequence[tuple[Claim, CheckedOutcome]], routing: RoutingTable | None = None
) -> list[Settlement]:
    """Settle as `settle_jobs` does; the only outcome is a plain success."""
    finished = await tx.finish_held(outcomes)
    if settled := accept_one(tx, *outcomes[0], finished):
        return [settled]
    done = await accept_finished(tx, outcomes, dict.fromkeys(finished.jobs, 0), finished)
    return await _settle_others(tx, outcomes, done, routing)


async def _settle_several(
    tx: StoreTransaction, outcomes: Sequence[tuple[Claim, CheckedOutcome]], routing: RoutingTable | None
) -> list[Settlement]:
    indexes = plain_indexes(outcomes)
    if routing is None and not indexes:
        await expect(tx, outcomes)
    return await settle_indexed(tx, outcomes, indexes, routing)


async def settle_indexed(
    tx: StoreTransaction,
    outcomes: Sequence[tuple[Claim, CheckedOutcome]],
    indexes: dict[int, int] | None,
    routing: RoutingTable | None = None,
) -> list[Settlement]:
    """Settle as `settle_jobs` does; *indexes* is the result of `plain_indexes`."""
    done = await _settle_plain_successes(tx, outcomes, indexes)
    return await _settle_others(tx, outcomes, done, routing)


async def _settle_others(
    tx: StoreTransaction,
    outcomes: Sequence[tuple[Claim, CheckedOutcome]],
    done: dict[int, Settlement],
    routing: RoutingTable | None,
) -> list[Settlement]:
    """Settle all but those that are *done*, by index; return the settlements of all."""
    if len(done) == len(outcomes):
        return [done[index] for index in range(len(outcomes))]
    rest = [pair for index, pair in enumerate(outcomes) if index not in done]
    others = iter(await _settle_each(tx, routing or await tx.routing(), rest))
    return [done[index] if index in done else next(others) for index in range(len(outcomes))]


async def expect(tx: StoreTransaction, outcomes: Sequence[tuple[Claim, CheckedOutcome]]) -> None:
    """Let the next statement also read what settling *outcomes*, none of which is plain, reads first."""
    if outcomes and not any(checked.follow_ups for _, checked in outcomes):
        claims = [claim for claim, _ in outcomes]
        await tx.expect_settlements(claims, [claim for claim, checked in outcomes if checked.artifacts])


def is_plain_success(checked: CheckedOutcome) -> bool:
    """Return whether an outcome is a success whose result alone identifies it, without follow-ups and artifacts."""
    return type(checked.outcome) is Done and checked.digest is None


def divide_settlements(
    outcomes: Sequence[tuple[Claim, CheckedOutcome]],
) -> list[Sequence[tuple[Claim, CheckedOutcome]]]:
    """Divide the settlements of one call, in order, into parts with at most `KEYS_LOCKED_MAX` keys each.

    A single settlement with more keys is its own part: its follow-ups are written in one statement, in key order.
    """
    if len(outcomes) == 1:
        return [outcomes]
    for _, checked in outcomes:
        if checked.follow_ups:
            return _divided(outcomes)
    return [outcomes]


def _divided(outcomes: Sequence[tuple[Claim, CheckedOutcome]]) -> list[Sequence[tuple[Claim, CheckedOutcome]]]:
    parts: list[list[tuple[Claim, CheckedOutcome]]] = [[]]
    room = limits.KEYS_LOCKED_MAX
    for claim, checked in outcomes:
        keys = sum(map(enqueue.is_shared, checked.follow_ups)) + (claim.job.dedupe_key is not None)
        if keys > room and parts[-1]:
            parts.append([])
            room = limits.KEYS_LOCKED_MAX
        parts[-1].append((claim, checked))
        room -= keys
    return list(parts)


async def _settle_plain_successes(
    tx: StoreTransaction, outcomes: Sequence[tuple[Claim, CheckedOutcome]], indexes: dict[int, int] | None
) -> dict[int, Settlement]:
    """Settle plain successes whose lease is held; return their settlements by index.

    Settle none if an outcome has follow-ups: whether a follow-up is a duplicate depends on the order of settling. Nor
    if a job is in the call twice: the order of its settlements decides which is accepted.
    """
    if not indexes:
        return {}
    plain = outcomes if len(indexes) == len(outcomes) else [outcomes[index] for index in indexes.values()]
    return await accept_finished(tx, outcomes, indexes, await tx.finish_held(plain))


def plain_indexes(outcomes: Sequence[tuple[Claim, CheckedOutcome]]) -> dict[int, int] | None:
    """Return the index of each plain success by the number of its job; None if no outcome may be settled as plain."""
    indexes: dict[int, int] = {}
    last: CheckedOutcome | None = None
    plain = False
    for index, (claim, checked) in enumerate(outcomes):
        seq = number_of(claim)
        if checked is not last:
            # Most outcomes of a worker are the same object.
            last, plain = checked, is_plain_success(checked)
        if seq in indexes:
            return None
        if plain:
            indexes[seq] = index
        elif checked.follow_ups:
            return None
    return indexes


def accept_one(
    tx: StoreTransaction, claim: Claim, checked: CheckedOutcome, finished: FinishedJobs
) -> Settlement | None:
    """Return the settlement of a job that a plain form has finished; None if it has not, or others depend on it."""
    now, jobs = finished
    row = jobs.get(number_of(claim))
    if row is None or row[-1]:
        return None
    tx.topics.add(notifications.JOB_TOPIC + job_id_of(claim))
    tx.forms["settle plain"] += 1
    (taken, taken_row), ended, now_ms = taken_with(claim), tx.rollups.ended, now.wall_ms
    if taken is not None:
        ended.append(taken.one_done_at(taken_row, now_ms))
    else:
        ended += ends_if_done((claim,), now_ms)
    if len(ended) > tx.rollups.LONG:
        tx.rollups.fold()
    return accepted(claim, partial(transitions.succeeded_job, row[:-1], checked, now))


async def accept_all(
    tx: StoreTransaction,
    outcomes: Sequence[tuple[Claim, CheckedOutcome]],
    indexes: dict[int, int] | None,
    finished: FinishedJobs,
) -> list[Settlement]:
    """Return the settlements of jobs that a plain form has finished, all of them; a single one needs no indexes."""
    done = await accept_finished(tx, outcomes, indexes or dict.fromkeys(finished.jobs, 0), finished)
    return [done[index] for index in range(len(outcomes))]


async def accept_finished(
    tx: StoreTransaction,
    outcomes: Sequence[tuple[Claim, CheckedOutcome]],
    indexes: dict[int, int],
    finished: FinishedJobs,
) -> dict[int, Settlement]:
    """Return the settlements of jobs that a plain form has finished, by index."""
    now = finished.at
    done: dict[int, Settlement] = {}
    linked: list[transitions.Transition] = []
    claims: list[Claim] = []
    current: tuple[Any, ...] = ()
    last_checked: CheckedOutcome | None = None
    for seq, row in finished.jobs.items():
        index = indexes[seq]
        claim, checked = outcomes[index]
        if row is not current or checked is not last_checked:
            # Jobs that were finished together have the same objects.
            current, last_checked = row, checked
            make_job = partial(transitions.succeeded_job, row[:-1], checked, now)
        if row[-1]:
            linked.append(transitions.succeeded(row_of(claim.job), row[:-1], checked, now))
        done[index] = accepted(claim, make_job)
        claims.append(claim)
    topic = notifications.JOB_TOPIC
    tx.topics.update([topic + job_id for job_id in map(job_id_of, claims)])
    _count(tx, claims, now)
    if linked:
        await finish_transitions(tx, None, linked, now)
    return done


def _count(tx: StoreTransaction, claims: Sequence[Claim], now: clock.Now) -> None:
    """Count jobs that a plain form has finished."""
    tx.forms["settle plain"] += len(claims)
    counted = tx.rollups.ended
    counted += ends_if_done(claims, now.wall_ms)
    if len(counted) > tx.rollups.LONG:
        tx.rollups.fold()


async def _settle_each(
    tx: StoreTransaction, routing: RoutingTable, outcomes: Sequence[tuple[Claim, CheckedOutcome]]
) -> list[Settlement]:
    claims = [claim for claim, _ in outcomes]
    await enqueue.lock_matches(tx, claims, [new for _, checked in outcomes for new in checked.follow_ups])
    jobs = await tx.refresh(claims)
    now = await tx.now()
    call = _SettleCall(routing, now, jobs, [], {})
    used: list[tuple[JobRow, dict[str, int]]] = []
    for claim, checked in outcomes:
        fence, seq = fence_of(claim), claim.job.number
        if seq in call.unwritten:
            # The job is in the call twice: write the first settlement before deciding on the second.
            await _flush(tx, call)
        # Only outcomes that may schedule a retry need a random number.
        chance = 0.0 if type(checked.outcome) is Done else tx.random()
        try:
            transition = transitions.settle(lease.held_job(jobs, fence), fence, checked, now, chance)
        except errors.LeaseLost as lost:
            settled = await find_duplicate_settlement(tx, jobs.get(seq), fence, checked)
            call.settlements.append(Settlement(claim, job_of(settled)) if settled else Settlement(claim, error=lost))
            continue
        await close_gate(tx, routing, checked, transition.after)
        if checked.follow_ups:
            await _flush(tx, call)
            settled_with = await _settle_with_follow_ups(tx, call, claim, checked, transition)
            call.settlements.append(settled_with)
            if settled_with.error is not None:
                continue
        else:
            try:
                await artifacts.write_outputs(tx, transition.after, checked.artifacts, now)
            except _REFUSALS as refusal:
                # Raised before anything is written.
                call.settlements.append(Settlement(claim, error=refusal))
                continue
            call.unwritten[seq] = (len(call.settlements), claim, transition)
            call.settlements.append(_UNWRITTEN)
        if checked.usage and routing.has_weights:
            used.append((transition.after, dict(checked.usage)))
    await _flush(tx, call)
    if used:
        await gates.report_usage(tx, routing, used)
    return call.settlements


async def close_gate(tx: StoreTransaction, routing: RoutingTable, checked: CheckedOutcome, after: JobRow) -> None:
    """Close the key of a job whose deferral asks for it, until the job is due again."""
    if type(checked.outcome) is Deferred and checked.outcome.closes and routing.has_limits:
        await gates.close(tx, routing, after, after.due_at_ms)


class _SettleCall(NamedTuple):
    """The state of one call: its jobs, its settlements so far, and the transitions not yet written."""

    routing: RoutingTable
    now: clock.Now
    jobs: dict[int, JobRow]
    settlements: list[Settlement]
    unwritten: dict[int, tuple[int, Claim, transitions.Transition]]
    """Unwritten transitions by job, each with the index of its settlement and its claim."""


# What is refused because of a follow-up or an artifact.
_REFUSALS = (errors.Refused, errors.Misconfigured)
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


async def _settle_with_follow_ups(
    tx: StoreTransaction, call: _SettleCall, claim: Claim, checked: CheckedOutcome, transition: transitions.Transition
) -> Settlement:
    try:
        async with tx.savepoint():
            # Finish the job before its follow-ups are enqueued: one of them may have its dedupe key.
            [job] = await apply_transitions(tx, call.routing, [transition], call.now)
            await enqueue.enqueue_jobs(tx, children_of(job, checked.follow_ups), "follow_ups")
            await artifacts.write_outputs(tx, job, checked.artifacts, call.now)
    except _REFUSALS as refusal:
        return Settlement(claim, error=refusal)
    call.jobs[job.seq] = job
    return Settlement(claim, job_of(job))


async def _flush(tx: StoreTransaction, call: _SettleCall) -> None:
    """Write the unwritten transitions and fill in their settlements."""
    if not call.unwritten:
        return
    unwritten = list(call.unwritten.values())
    jobs = await apply_transitions(tx, call.routing, [transition for _, _, transition in unwritten], call.now)
    for (index, claim, _), job in zip(unwritten, jobs, strict=True):
        call.settlements[index] = Settlement(claim, job_of(job))
        call.jobs[job.seq] = job
    call.unwritten.clear()
