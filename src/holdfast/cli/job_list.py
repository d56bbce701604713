"""The table of jobs."""

from datetime import datetime

from holdfast import Job, types
from holdfast.cli import formatting, tables
from holdfast.cli.terminal import Terminal


def draw(terminal: Terminal, page: types.JobPage) -> None:
    """Print a page of jobs and the option for the next page."""
    if not page.jobs:
        terminal.note("no jobs match")
    else:
        terminal.show(tables.table(columns(page.jobs, terminal.now), terminal.out.width))
    if page.cursor is not None:
        terminal.note(f"there are more: --after {page.cursor}")


def columns(jobs: tuple[Job, ...], now: datetime) -> list[tables.Column]:
    """Return the table's columns. A column is left out if all its cells have the default value.

    A narrow terminal shows the notes, which say why a job failed, rather than the ids: the number identifies the job.
    """
    return [
        tables.Column("#", [str(job.number) for job in jobs], justify="right"),
        tables.Column("ID", [job.id for job in jobs], rank=6),
        tables.Column("STATE", [job.state for job in jobs], states=True),
        tables.Column("KIND", [job.kind for job in jobs], min_width=12),
        tables.Column("LANE", [job.lane for job in jobs], rank=2, min_width=8, hide_if="default"),
        tables.Column("TENANT", [job.tenant for job in jobs], rank=2, min_width=8, hide_if="default"),
        tables.Column("SESSION", [job.session or "" for job in jobs], rank=2, min_width=10, hide_if=""),
        tables.Column("PRIO", [str(job.priority) for job in jobs], rank=4, hide_if="0", justify="right"),
        tables.Column("TRY", [f"{job.attempt}/{job.max_attempts}" for job in jobs], rank=5, justify="right"),
        tables.Column("AGE", [formatting.age(job.enqueued_at, now) for job in jobs], rank=3, justify="right"),
        tables.Column("NOTE", [note(job, now) for job in jobs], rank=1, min_width=40, hide_if="", style="dim"),
    ]


_WAITS = {
    "blocked": "waits for an earlier job",
    "dependent": "waits for the jobs it depends on",
    "parked": "waits for room at a limit",
}


def note(job: Job, now: datetime) -> str:
    """Return a short note about a job, depending on its state."""
    match job.state:
        case "running":
            return _running(job, now)
        case "scheduled":
            return _after_failure(job, f"due {formatting.relative(job.due_at, now)}")
        case "blocked" | "dependent" | "parked":
            return _WAITS[job.state]
        case "ready":
            return _after_failure(job, "lease expired" if job.suspect else "")
        case _:
            return _finished(job, now)


def _running(job: Job, now: datetime) -> str:
    parts = (
        "cancel requested" if job.cancel_requested else None,
        job.phase,
        None if job.percent is None else f"{int(job.percent)} %",
        job.worker,
        None if job.started_at is None else f"started {formatting.relative(job.started_at, now)}",
    )
    return ", ".join(filter(None, parts))


def _after_failure(job: Job, start: str) -> str:
    return ", ".join(filter(None, [start, formatting.failure(job.failure) if job.failure else ""]))


def _finished(job: Job, now: datetime) -> str:
    ended = "" if job.finished_at is None else formatting.relative(job.finished_at, now)
    return f"{formatting.failure(job.failure)} ({ended})" if job.state == "failed" and job.failure else ended
