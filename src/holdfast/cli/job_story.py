"""The story of a job: when it was enqueued, each attempt with how long it waited and ran, and how it ended."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from rich.table import Table
from rich.text import Text

from holdfast import Job, types
from holdfast.cli import formatting, tables


class Moment(NamedTuple):
    """One line of the story."""

    at: datetime
    what: str
    style: str = ""


def moments(job: Job, attempts: Sequence[types.Attempt], now: datetime) -> Iterator[Moment]:
    """Yield what happened to a job, in order, and what it waits for now."""
    yield Moment(job.enqueued_at, "enqueued" + (f" by {job.parent}" if job.parent else ""))
    ended = job.enqueued_at
    for one in attempts:
        waited = f" after {_length(ended, one.started_at)}" if one.started_at > ended else ""
        yield Moment(one.started_at, f"attempt {one.number} started on {one.worker}{waited}", "yellow")
        if one.ended_at is not None:
            ended = one.ended_at
            why = f": {formatting.failure(one.failure)}" if one.failure else ""
            text = f"{one.outcome or 'ended'} after {_length(one.started_at, ended)}{why}"
            yield Moment(ended, text, tables.STATE_STYLES.get(one.outcome or "", ""))
    if job.finished_at is not None:
        if not attempts or job.state not in {"done", "failed"}:
            yield Moment(job.finished_at, job.state, tables.STATE_STYLES[job.state])
        return
    yield Moment(now, _now(job, now), "bold")


def _now(job: Job, now: datetime) -> str:
    match job.state:
        case "running":
            phase = "".join(f", {part}" for part in (job.phase, _percent(job.percent)) if part)
            return f"running for {_length(job.started_at or now, now)}{phase}"
        case "scheduled":
            return f"scheduled, due {formatting.relative(job.due_at, now)}"
        case "ready":
            return f"ready for {_length(job.due_at, now)}"
        case _:
            return f"still {job.state}"


def _percent(percent: float | None) -> str:
    return "" if percent is None else f"{int(percent)} %"


def _length(start: datetime, end: datetime) -> str:
    return formatting.duration((end - start) / timedelta(milliseconds=1))


def table(job: Job, attempts: Sequence[types.Attempt], now: datetime) -> Table:
    """Return the story as lines: the time since the job was enqueued, and what happened."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True, justify="right")
    grid.add_column(overflow="fold")
    for at, what, style in moments(job, attempts, now):
        grid.add_row(f"+{_length(job.enqueued_at, at)}", Text(formatting.clean(what, keep=""), style))
    return grid
