"""Looking at jobs: one, many, their attempts and artifacts, and counts."""

from __future__ import annotations

from holdfast.domain import lifecycle, serving
from holdfast.domain.errors import ArtifactNotFound, InvalidInput, JobNotFound
from holdfast.domain.job import FINISHED, Attempt, Job
from holdfast.domain.lane import DEFAULT_NAME
from holdfast.domain.outcome import Artifact
from holdfast.domain.records import ArtifactInfo, CountBy, Finding, JobFilter, JobPage, StoreReport, Tally
from holdfast.stores import script
from holdfast.stores.engine import Engine
from holdfast.stores.script import Script, Statement
from holdfast.stores.scripts import backlog

_BEYOND = 1 << 62


def get(job_id: str | int, tenant: str | None) -> Script[Job]:
    """Return the job of this id or number, locked if the transaction writes; another tenant's is not found."""
    if isinstance(job_id, int):
        rows = yield Statement("jobs_by_seq", {"seqs": [job_id]})
    else:
        rows = yield Statement("job_by_id", {"id": job_id})
    if not rows or (tenant is not None and Job._make(rows[0]).tenant != tenant):
        raise JobNotFound(str(job_id))
    return Job._make(rows[0])


def look(job_id: str, tenant: str | None) -> Script[tuple[Job, bool]]:
    """Return the job and whether it waits past its deadline."""
    job = yield from get(job_id, tenant)
    now = yield from script.now()
    return job, not job.finished and lifecycle.overdue(job, now)


def attempts(job_id: str, tenant: str | None) -> Script[list[Attempt]]:
    """Return the attempts that are kept and the one the job's row tells of."""
    job = yield from get(job_id, tenant)
    rows = yield Statement("attempts_of_job", {"seq": job.seq})
    past = [Attempt(*row) for row in rows]
    if job.epoch == 0 or (past and past[-1].epoch == job.epoch):
        return past
    return [*past, lifecycle.newest_attempt(job)]


def artifacts(job_id: str, tenant: str | None) -> Script[list[ArtifactInfo]]:
    """Return what artifacts the job has."""
    job = yield from get(job_id, tenant)
    rows = yield Statement("artifacts_of_job", {"seq": job.seq})
    return [ArtifactInfo(*row) for row in rows]


def artifact(job_id: str, name: str, tenant: str | None) -> Script[Artifact]:
    """Return one artifact of the job."""
    job = yield from get(job_id, tenant)
    rows = yield Statement("artifact_read", {"seq": job.seq, "name": name})
    if not rows:
        raise ArtifactNotFound(job_id, name)
    return Artifact(*rows[0])


def counts(by: CountBy, tenant: str | None) -> Script[dict[str, int]]:
    """Count jobs by one property."""
    rows = yield Statement(f"counts_by_{by}", {"tenant": tenant})
    return dict(sorted(rows))


def tally(wanted: JobFilter) -> Script[list[Tally]]:
    """Count the jobs that match by lane, kind and state."""
    rows = yield Statement("jobs_tally", (yield from _conditions(wanted)))
    return [Tally(*row) for row in sorted(rows)]


def jobs(wanted: JobFilter, after: str | None, limit: int) -> Script[JobPage]:
    """Return a page of jobs, newest first."""
    by_finish = len(wanted.states) == 1 and wanted.states[0] in FINISHED and wanted.session is None
    finished_before, before = _position(after, by_finish=by_finish)
    values = {**(yield from _conditions(wanted)), "before": before, "limit": limit + 1}
    if wanted.session is not None:
        of_session = {"session": wanted.session, "tenant": wanted.tenant or DEFAULT_NAME}
        rows = yield Statement("jobs_by_session", {**values, **of_session})
    elif by_finish:
        del values["states"]
        state = {"state": wanted.states[0], "finished_before": finished_before}
        rows = yield Statement("jobs_by_finish", {**values, **state})
    else:
        rows = yield Statement("jobs_by_order", values)
    found = [Job._make(row) for row in rows]
    page = tuple(found[:limit])
    return JobPage(page, _cursor(page[-1], by_finish=by_finish) if len(found) > limit else None)


def _conditions(wanted: JobFilter) -> Script[dict[str, object]]:
    """Return what the statements that list and count bind for *wanted*."""
    aged_before = None
    if wanted.age_ms is not None:
        aged_before = (yield from script.now()).wall_ms - wanted.age_ms
    return {
        "states": list(wanted.states) or None,
        "kind": wanted.kind,
        "lane": wanted.lane,
        "tenant": wanted.tenant,
        "failure_class": wanted.failure_class,
        "aged_before": aged_before,
    }


def _cursor(job: Job, *, by_finish: bool) -> str:
    return f"f1-{job.finished_at_ms}-{job.seq}" if by_finish else f"o1-{job.seq}"


def _position(after: str | None, *, by_finish: bool) -> tuple[int, int]:
    """Return where a page starts: the end and number of the last job of the page before."""
    if after is None:
        return _BEYOND, _BEYOND
    scheme, *numbers = after.split("-")
    usable = all(number.isascii() and number.isdigit() and len(number) < 19 for number in numbers)
    if usable and by_finish and scheme == "f1" and len(numbers) == 2:
        return int(numbers[0]), int(numbers[1])
    if usable and not by_finish and scheme == "o1" and len(numbers) == 1:
        return _BEYOND, int(numbers[0])
    raise InvalidInput("after", f"{after!r} is not a cursor that this list gave")


def report(engine: Engine) -> Script[StoreReport]:
    """Return what the engine says of itself and what the jobs say of their workers."""
    findings = yield from engine.examine()
    return StoreReport([*findings, *(yield from troubles())])


def troubles() -> Script[list[Finding]]:
    """Return what the jobs say of their workers: leases not taken back, suspects, jobs that no worker takes."""
    now = yield from script.now()
    [found] = yield Statement("report_troubles", {"wall_now": now.wall_ms, "lease_now": now.lease_ms})
    lapsed, suspect, due = found
    return [
        _trouble(lapsed, "lapsed leases", "lapsed and not yet taken back", "is a worker claiming in their lane?"),
        _trouble(
            suspect,
            "suspect jobs",
            "lost their worker in the last attempt",
            "run them isolated, or look at `holdfast jobs show`",
        ),
        _trouble(due, "due jobs", "due and not yet promoted", "is a worker claiming at all?"),
        *serving.unserved_findings((yield from backlog.unserved())),
    ]


def _trouble(count: int, name: str, says: str, remedy: str) -> Finding:
    if not count:
        return Finding(name, "ok", "none")
    return Finding(name, "warning", f"{count} {says}", remedy)
