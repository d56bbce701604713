"""What a running attempt writes before it settles: heartbeats, progress, artifacts. All behind the fence."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from operator import attrgetter

from holdfast.domain import lifecycle, limits
from holdfast.domain.checks import datetime_of
from holdfast.domain.claim import Claim, Lease, Note, Renewal
from holdfast.domain.clock import Now
from holdfast.domain.errors import HoldfastError, InvalidInput, LeaseLost
from holdfast.domain.job import Job
from holdfast.domain.outcome import Artifact
from holdfast.stores import script
from holdfast.stores.script import Script, Statement
from holdfast.stores.scripts.moves import write_rows

# The columns of `jobs_standing` after number, epoch and state.
_STANDING = (
    "lease_token",
    "lease_until_ms",
    "priority",
    "phase",
    "percent",
    "cancel_requested",
    "event_count",
)
_standing = attrgetter(*_STANDING)


def lock_held(leases: Sequence[Lease]) -> Script[dict[int, Job]]:
    """Return the jobs of *leases* by number, locked; one that was deleted is missing."""
    rows = yield Statement("jobs_by_seq", {"seqs": [lease.seq for lease in leases]})
    return {job.seq: job for job in map(Job._make, rows)}


def stand(claims: Sequence[Claim]) -> Script[dict[int, Job]]:
    """Return the jobs of *claims* by number as they stand now, locked; one that was deleted is missing.

    A job that still runs under its claim is what it was when claimed but for a few columns, so that only these are
    read of it; any other is read whole.
    """
    rows = yield Statement("jobs_standing", {"seqs": [claim.job.seq for claim in claims]})
    changed = {row[0]: row for row in rows}
    jobs: dict[int, Job] = {}
    moved: list[int] = []
    for claim in claims:
        job = claim.job
        row = changed.get(job.seq)
        if row is None:
            continue
        if row[1] == job.epoch and row[2] == job.state == "running":
            jobs[job.seq] = (
                job if row[3:] == _standing(job) else job._replace(**dict(zip(_STANDING, row[3:], strict=True)))
            )
        else:
            moved.append(job.seq)
    if moved:
        whole = yield Statement("jobs_by_seq", {"seqs": moved})
        jobs.update((job.seq, job) for job in map(Job._make, whole))
    return jobs


def held_job(jobs: dict[int, Job], lease: Lease) -> Job:
    """Return the job of *lease*, or raise `LeaseLost` if it is gone."""
    job = jobs.get(lease.seq)
    if job is None:
        raise LeaseLost(lease.job_id, lease.epoch, "the job was deleted")
    return job


def heartbeat(
    held: Sequence[tuple[Lease, int]],
    notes: Mapping[int, Note] | None = None,
    started: Collection[int] = (),
) -> Script[list[Renewal | HoldfastError]]:
    """Extend each lease by its length and write the note of its job, if there is one, or answer with its error.

    The claims of jobs whose numbers are in *started* are acknowledged.
    """
    if not held:
        return []
    jobs = yield from lock_held([lease for lease, _ in held])
    now = yield from script.now()
    answers = [_renew(jobs, lease, lease_ms, now, started) for lease, lease_ms in held]
    renewed = {answer.seq: answer for answer in answers if isinstance(answer, Job)}
    rows = [(job.lease_until_ms, job.unacknowledged, job.seq, job.epoch) for job in renewed.values()]
    yield from write_rows("job_lease", rows)
    for lease, _ in held if notes else ():
        if notes and lease.seq in notes and lease.seq in renewed:
            yield from _write_note(renewed[lease.seq], lease, notes[lease.seq], now)
    return [answer if isinstance(answer, HoldfastError) else _renewal(answer) for answer in answers]


def acknowledge_held(leases: Sequence[Lease]) -> Script[None]:
    """Acknowledge those of *leases* that are still held; the next heartbeat tells of the others."""
    if leases:
        now = yield from script.now()
        rows = [(lease.seq, lease.epoch, lease.lease_token, now.lease_ms) for lease in leases]
        yield Statement("job_acknowledge", many=sorted(rows))


def _renew(
    jobs: dict[int, Job], lease: Lease, lease_ms: int, now: Now, started: Collection[int]
) -> Job | HoldfastError:
    try:
        return lifecycle.heartbeat(held_job(jobs, lease), lease, lease_ms, now, acknowledges=lease.seq in started)
    except LeaseLost as lost:
        return lost


def _renewal(job: Job) -> Renewal:
    return Renewal(datetime_of(job.lease_until_ms or 0), bool(job.cancel_requested))


def progress(lease: Lease, phase: str | None, percent: float | None) -> Script[Job]:
    """Write what the attempt says of itself."""
    jobs = yield from lock_held([lease])
    now = yield from script.now()
    return (yield from _write_note(held_job(jobs, lease), lease, Note(phase, percent), now))


def _write_note(job: Job, lease: Lease, note: Note, now: Now) -> Script[Job]:
    noted = lifecycle.progress(job, lease, note.phase, note.percent, now)
    values = {"phase": noted.phase, "percent": noted.percent, "seq": noted.seq, "epoch": noted.epoch}
    yield Statement("job_progress", values)
    return noted


def attach(lease: Lease, artifacts: Sequence[Artifact]) -> Script[None]:
    """Store artifacts of the attempt."""
    jobs = yield from lock_held([lease])
    now = yield from script.now()
    job = held_job(jobs, lease)
    lifecycle.check_fence(job, lease, now)
    yield from write_artifacts(job, artifacts, now)


def write_artifacts(job: Job, artifacts: Sequence[Artifact], now: Now) -> Script[None]:
    """Store *artifacts* beside those the job has, within its limit."""
    if not artifacts:
        return
    stored = yield Statement("artifacts_of_job", {"seq": job.seq})
    together = {row[0] for row in stored} | {artifact.name for artifact in artifacts}
    if len(together) > limits.ARTIFACTS_MAX:
        raise InvalidInput(
            "artifacts", f"would make {len(together)} for this job; the limit is {limits.ARTIFACTS_MAX}"
        )
    yield from write_rows(
        "artifact_write",
        [
            (job.seq, artifact.name, artifact.media_type, len(artifact.data), job.epoch, now.wall_ms, artifact.data)
            for artifact in artifacts
        ],
    )
