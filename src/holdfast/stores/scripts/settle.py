"""Settling attempts: read under the lock, decide in the domain, write behind the fence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from holdfast.domain import lifecycle
from holdfast.domain.claim import Claim, Lease, Settlement
from holdfast.domain.clock import Now
from holdfast.domain.errors import LeaseLost, Misconfigured, Refused
from holdfast.domain.job import Job
from holdfast.domain.lane import Catalog
from holdfast.domain.lifecycle import Step
from holdfast.domain.outcome import CheckedOutcome, Done
from holdfast.stores import script
from holdfast.stores.engine import Engine
from holdfast.stores.script import Script, Statement
from holdfast.stores.scripts.catalog import load_catalog
from holdfast.stores.scripts.enqueue import enqueue_jobs, lock_met
from holdfast.stores.scripts.lease import held_job, stand, write_artifacts
from holdfast.stores.scripts.moves import apply_steps, conclude_steps


def settle_jobs(engine: Engine, wanted: Sequence[tuple[Claim, CheckedOutcome]]) -> Script[list[Settlement]]:
    """Settle each claim by itself and return each one's answer, in order.

    Plain outcomes are written together. One that brings follow-ups or artifacts comes after all before it are
    written, in a savepoint of its own, because those may be refused, and then nothing of it must stay.
    """
    if not wanted:
        return []
    catalog = yield from load_catalog(engine)
    return (yield from settle_under(engine, catalog, wanted))


def settle_under(
    engine: Engine, catalog: Catalog, wanted: Sequence[tuple[Claim, CheckedOutcome]]
) -> Script[list[Settlement]]:
    """Settle as `settle_jobs` does, under the catalog that was just read."""
    done = yield from _succeed_at_once(engine, catalog, wanted)
    if not done:
        return (yield from _settle_each(engine, catalog, wanted))
    rest = [pair for place, pair in enumerate(wanted) if place not in done]
    others = iter((yield from _settle_each(engine, catalog, rest)) if rest else ())
    return [done[place] if place in done else next(others) for place in range(len(wanted))]


def _succeed_at_once(
    engine: Engine, catalog: Catalog, wanted: Sequence[tuple[Claim, CheckedOutcome]]
) -> Script[dict[int, Settlement]]:
    """Settle plain successes in one statement, where the engine has one; return the answers by their place.

    Not where follow-ups come along: whether one of them meets the holder of its key depends on the order.
    """
    if engine.succeed_held is None or any(checked.follow_ups for _, checked in wanted):
        return {}
    # Of a job named twice the first counts here; the second then meets what that has left behind.
    places: dict[int, int] = {}
    for place, (claim, checked) in enumerate(wanted):
        if type(checked.outcome) is Done and checked.digest is None:
            places.setdefault(claim.job.seq, place)
    if not places:
        return {}
    now = yield from script.now()
    steps = yield from engine.succeed_held([wanted[place] for place in places.values()], now)
    jobs = yield from conclude_steps(catalog, list(steps.values()), now)
    return {places[job.seq]: Settlement(wanted[places[job.seq]][0], job) for job in jobs}


def _settle_each(
    engine: Engine, catalog: Catalog, wanted: Sequence[tuple[Claim, CheckedOutcome]]
) -> Script[list[Settlement]]:
    claims = [claim for claim, _ in wanted]
    yield from lock_met(claims, [new for _, checked in wanted for new in checked.follow_ups])
    jobs = yield from stand(claims)
    now = yield from script.now()
    batch = _Batch(catalog, now, jobs, [], {})
    for claim, checked in wanted:
        lease, seq = claim.lease, claim.job.seq
        if seq in batch.plain:
            # Named twice in one call: the second meets what the first has left behind.
            yield from _write_plain(batch)
        # Only an outcome that may be followed by a pause has use for chance.
        chance = 0.0 if type(checked.outcome) is Done else (yield from script.chance())
        try:
            step = lifecycle.settle(held_job(jobs, lease), lease, checked, now, chance)
        except LeaseLost as lost:
            again = yield from sent_again(jobs.get(seq), lease, checked)
            batch.answers.append(Settlement(claim, again) if again else Settlement(claim, error=lost))
            continue
        if checked.follow_ups or checked.artifacts:
            yield from _write_plain(batch)
            batch.answers.append((yield from _settle_with_extras(engine, batch, claim, checked, step)))
        else:
            batch.plain[seq] = (len(batch.answers), claim, step)
            batch.answers.append(_UNWRITTEN)
    yield from _write_plain(batch)
    return batch.answers


class _Batch(NamedTuple):
    """One call's settlements: what they act on, what was answered, and what is decided but not yet written."""

    catalog: Catalog
    now: Now
    jobs: dict[int, Job]
    answers: list[Settlement]
    plain: dict[int, tuple[int, Claim, Step]]
    """Steps by job, each with the place of its answer and the claim that it settles."""


# Stands in the place of an answer until its step is written.
_UNWRITTEN: Any = None


def sent_again(job: Job | None, lease: Lease, checked: CheckedOutcome) -> Script[Job | None]:
    """Return the job if this very outcome was taken already."""
    if job is None:
        return None
    past = None
    if job.epoch != lease.epoch:
        rows = yield Statement("attempt_proof", {"seq": lease.seq, "epoch": lease.epoch})
        past = rows[0] if rows else None
    return job if lifecycle.settled_before(job, past, lease, checked) else None


def _settle_with_extras(
    engine: Engine, batch: _Batch, claim: Claim, checked: CheckedOutcome, step: Step
) -> Script[Settlement]:
    yield Statement("savepoint")
    try:
        # The job has ended when its follow-ups come: one of them may carry on its dedupe key.
        [job] = yield from apply_steps(batch.catalog, [step], batch.now)
        yield from enqueue_jobs(engine, checked.follow_ups, "follow_ups")
        yield from write_artifacts(job, checked.artifacts, batch.now)
    except (Refused, Misconfigured) as refusal:
        yield Statement("savepoint_undo")
        yield Statement("savepoint_keep")
        return Settlement(claim, error=refusal)
    yield Statement("savepoint_keep")
    batch.jobs[job.seq] = job
    return Settlement(claim, job=job)


def _write_plain(batch: _Batch) -> Script[None]:
    """Write what was decided since the last time, and complete the answers."""
    if not batch.plain:
        return
    decided = list(batch.plain.values())
    jobs = yield from apply_steps(batch.catalog, [step for _, _, step in decided], batch.now)
    for (place, claim, _), job in zip(decided, jobs, strict=True):
        batch.answers[place] = Settlement(claim, job)
        batch.jobs[job.seq] = job
    batch.plain.clear()
