"""Settling attempts: read under the lock, decide in the domain, write behind the fence."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.domain import lifecycle
from holdfast.domain.claim import Claim, Lease, Settlement
from holdfast.domain.clock import Now
from holdfast.domain.errors import Misconfigured, Refused
from holdfast.domain.job import Job
from holdfast.domain.lane import Catalog
from holdfast.domain.lifecycle import Step
from holdfast.domain.outcome import CheckedOutcome
from holdfast.stores import script
from holdfast.stores.engine import Engine
from holdfast.stores.script import Script, Statement
from holdfast.stores.scripts.catalog import load_catalog
from holdfast.stores.scripts.enqueue import enqueue_jobs
from holdfast.stores.scripts.lease import held_job, lock_held, write_artifacts
from holdfast.stores.scripts.moves import apply_steps


def settle_jobs(engine: Engine, wanted: Sequence[tuple[Claim, CheckedOutcome]]) -> Script[list[Settlement]]:
    """Settle each claim by itself and return each one's answer, in order.

    Plain outcomes are written together. One that brings follow-ups or artifacts stands in a savepoint of its own,
    because those may be refused, and then nothing of it must stay.
    """
    if not wanted:
        return []
    catalog = yield from load_catalog(engine)
    jobs = yield from lock_held([claim.lease for claim, _ in wanted])
    now = yield from script.now()
    answers: list[Settlement | None] = []
    plain: list[tuple[int, Step]] = []
    for claim, checked in wanted:
        try:
            step = yield from _decide(jobs, claim.lease, checked, now)
        except Refused as refusal:
            answers.append(Settlement(claim, error=refusal))
            continue
        if step is None:
            answers.append(Settlement(claim, job=jobs[claim.job.seq]))
            continue
        # What was decided counts for the rest of the batch: a claim named twice is settled once.
        jobs[claim.job.seq] = step.after
        if checked.follow_ups or checked.artifacts:
            answers.append((yield from _settle_with_extras(engine, claim, checked, step, now)))
            if answers[-1] is not None and not answers[-1].ok:
                jobs[claim.job.seq] = step.before
        else:
            plain.append((len(answers), step))
            answers.append(None)
    return (yield from _write_plain(catalog, wanted, answers, plain, now))


def _decide(jobs: dict[int, Job], lease: Lease, checked: CheckedOutcome, now: Now) -> Script[Step | None]:
    """Return the step this outcome means, None if it was taken already, or raise `LeaseLost`."""
    job = held_job(jobs, lease)
    chance = yield from script.chance()
    if lifecycle.holds(job, lease, now):
        return lifecycle.settle(job, lease, checked, now, chance)
    past = None
    if job.epoch != lease.epoch:
        rows = yield Statement("attempt_proof", {"seq": lease.seq, "epoch": lease.epoch})
        past = rows[0] if rows else None
    if lifecycle.settled_before(job, past, lease, checked):
        return None
    return lifecycle.settle(job, lease, checked, now, chance)


def _settle_with_extras(
    engine: Engine, claim: Claim, checked: CheckedOutcome, step: Step, now: Now
) -> Script[Settlement]:
    yield Statement("savepoint")
    try:
        yield from enqueue_jobs(engine, checked.follow_ups)
        yield from write_artifacts(step.before, checked.artifacts, now)
        catalog = yield from load_catalog(engine)
        [job] = yield from apply_steps(catalog, [step], now)
    except (Refused, Misconfigured) as refusal:
        yield Statement("savepoint_undo")
        return Settlement(claim, error=refusal)
    yield Statement("savepoint_keep")
    return Settlement(claim, job=job)


def _write_plain(
    catalog: Catalog,
    wanted: Sequence[tuple[Claim, CheckedOutcome]],
    answers: list[Settlement | None],
    plain: list[tuple[int, Step]],
    now: Now,
) -> Script[list[Settlement]]:
    jobs = yield from apply_steps(catalog, [step for _, step in plain], now)
    for (place, _), job in zip(plain, jobs, strict=True):
        answers[place] = Settlement(wanted[place][0], job=job)
    return [answer for answer in answers if answer is not None]
