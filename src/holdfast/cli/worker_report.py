"""Report a worker's status: a live screen on a terminal, else lines of text or JSON.

A thread reads `WorkerStatus` periodically; jobs do not wait for it.
"""

import json
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Final, NamedTuple, TypeAlias

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from holdfast import json_view
from holdfast.cli import formatting, tables, worker_output
from holdfast.cli.console import console
from holdfast.cli.terminal import Terminal
from holdfast.types import FailedAttempt, RunningJob, WorkerStatus

GetStatus: TypeAlias = Callable[[], WorkerStatus]

DRAWN_PER_SECOND: Final = 4
SUMMARY_SECONDS: Final = 10.0
# The first character of a child's status records (RFC 7464); other lines are output of handlers.
RECORD: Final = "\x1e"
_RATE_SECONDS: Final = 5.0
_ALWAYS_SHOWN: Final = ("done", "retried", "failed")
# Lines of the screen other than the rows of jobs and failures.
_LINES_AROUND: Final = 9
_ROWS_MIN: Final = 3
_FAILURES_SHOWN: Final = 3


class About(NamedTuple):
    """Properties that do not change while a worker runs."""

    target: str
    concurrency: int
    processes: int
    grace_seconds: float
    process: int
    summary: str = ""
    """The worker's lanes, kinds and store in one line."""


class Meter:
    """Measures how many attempts end per second, over the last seconds."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def record(self, at: float, total: int) -> float:
        """Record that *total* attempts had ended at time *at*; return the rate."""
        self._seen.append((at, total))
        while len(self._seen) > 2 and at - self._seen[0][0] > _RATE_SECONDS:
            self._seen.popleft()
        first_at, first = self._seen[0]
        return (total - first) / (at - first_at) if at > first_at else 0.0


# --- screen ---------------------------------------------------------------------------------------------------------


@contextmanager
def on_screen(terminal: Terminal, about: About, get_status: GetStatus) -> Iterator[None]:
    """Draw the status until the end of the block, then print a summary line."""
    started, meter = time.monotonic(), Meter()
    terminal.show(Text(formatting.clean(about.summary)))

    def drawn(drawing: Console) -> RenderableType:
        now, status = time.monotonic(), get_status()
        rate = meter.record(now, sum(status.ended.values()))
        return draw(about, status, now - started, rate, drawing.width, drawing.height - 1)

    try:
        with live_area(drawn):
            yield
    finally:
        terminal.line(_stopped(get_status(), time.monotonic() - started))


@contextmanager
def live_area(drawn: Callable[[Console], RenderableType]) -> Iterator[None]:
    """Draw below all other output of this process, several times a second, and erase it at the end of the block."""
    # A stream that goes to a file is not redirected.
    redirected = [stream.fileno() for stream in (sys.stdout, sys.stderr) if stream.isatty()]
    with worker_output.terminal_of(sys.stdout) as screen, worker_output.without_echo(screen):
        drawing = console(screen)
        live = Live(
            console=drawing,
            # The cursor stays in an empty line, where the shell of a killed process writes its message.
            get_renderable=lambda: Group(drawn(drawing), Text("")),
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        # `rich` does not serialize drawing and printing from two threads; lines would be erased.
        lock = threading.Lock()

        def refresh() -> None:
            with lock:
                live.refresh()

        def show(lines: list[str]) -> None:
            with lock:
                drawing.print(*map(printed, lines), sep="\n")

        live.start()
        try:
            with _every(1 / DRAWN_PER_SECOND, refresh), worker_output.redirected(redirected, show):
                # If the process is killed, the cursor stays visible.
                drawing.show_cursor(True)
                yield
        finally:
            with lock:
                live.stop()


def printed(line: str) -> Text:
    """Return a line printed by a handler or a logger, with styles but without other control sequences."""
    # A progress bar rewrites its line after each carriage return; keep the last version.
    newest = line.rstrip("\r").rpartition("\r")[2]
    shown = Text.from_ansi(formatting.clean(newest, keep="\t\x1b"))
    shown.plain = formatting.clean(shown.plain, keep="\t")
    return shown


def draw(about: About, status: WorkerStatus, seconds: float, rate: float, width: int, height: int) -> RenderableType:
    """Return the screen of a worker for a terminal of *width* and *height*."""
    newest: dict[int, FailedAttempt] = {}
    for failure in status.failures:
        newest.setdefault(failure.job_number, failure)
    failures = [*newest.values()][: _FAILURES_SHOWN if height > 2 * _LINES_AROUND else 0]
    # A table has a head of two lines and an empty one before it.
    rows = max(height - _LINES_AROUND - (len(failures) + 3 if failures else 0), _ROWS_MIN)
    shown, hidden = status.running[:rows], len(status.running) - rows
    parts: list[RenderableType] = [_heading(about, status, seconds)]
    if status.stopping:
        parts.append(Text(stopping(about, status), "yellow"))
    elif status.draining:
        parts.append(Text("draining: takes no more jobs", "yellow"))
    parts += [_counts(status, rate), Text(_slots(about, status), "dim")]
    if shown:
        parts += [Text(""), tables.table(_columns(shown), width)]
    if hidden > 0:
        parts.append(Text(f"and {hidden:,} more", "dim"))
    if failures:
        parts += [Text(""), tables.table(_failure_columns(failures, datetime.now(UTC)), width)]
    return Group(*(_one_row(part) for part in parts))


def _columns(shown: Sequence[RunningJob]) -> list[tables.Column]:
    return [
        tables.Column("#", [str(job.job_number) for job in shown], rank=4, justify="right", hide_if="0"),
        tables.Column("JOB", [_job_label(job) for job in shown], min_width=8),
        tables.Column("KIND", [job.kind for job in shown], rank=1, min_width=8),
        tables.Column("TRY", [str(job.attempt) for job in shown], rank=3, justify="right"),
        tables.Column("PHASE", [job.phase or "" for job in shown], rank=2, min_width=8, hide_if=""),
        tables.Column("PROGRESS", [_percent(job.percent) for job in shown], rank=1, justify="right", hide_if=""),
        tables.Column("RUNNING", [_running_time(job.seconds) for job in shown], justify="right"),
    ]


def _failure_columns(failures: Sequence[FailedAttempt], now: datetime) -> list[tables.Column]:
    return [
        tables.Column("#", [str(one.job_number) for one in failures], justify="right"),
        tables.Column("FAILED LAST", [one.kind for one in failures], min_width=11),
        tables.Column("TRY", [f"{one.attempt}/{one.max_attempts}" for one in failures], rank=2, justify="right"),
        tables.Column("REASON", [f"{one.reason}: {one.summary}" for one in failures], min_width=10),
        tables.Column("NEXT TRY", [_next_try(one, now) for one in failures], rank=1, justify="right"),
    ]


def _next_try(failure: FailedAttempt, now: datetime) -> str:
    return "none" if failure.next_attempt_at is None else formatting.relative(failure.next_attempt_at, now)


def _percent(percent: float | None) -> str:
    # Round down: only a finished job shows 100 %.
    return "" if percent is None else f"{int(percent)} %"


def _job_label(job: RunningJob) -> str:
    """Return the job's id and, for a session turn, the number of further entries."""
    return job.job_id if job.entries == 1 else f"{job.job_id} +{job.entries - 1}"


def _one_row(part: RenderableType) -> RenderableType:
    if isinstance(part, Text):
        part.no_wrap, part.overflow = True, "ellipsis"
    return part


def _heading(about: About, status: WorkerStatus, seconds: float) -> Text:
    heading = Text.assemble("worker ", (formatting.clean(status.worker, keep=""), "bold"), f"  {about.target}")
    heading.append(f"  process {about.process}")
    if about.processes > 1:
        heading.append(f" and {formatting.number(about.processes, 'child', 'children')}")
    return heading.append(f"  up {formatting.duration(seconds * 1000)}", "dim")


def stopping(about: About, status: WorkerStatus) -> str:
    """Return a line about a stopping worker and the effect of a second signal."""
    if not status.running:
        return "stopping: takes no more jobs"
    jobs = formatting.number(len(status.running), "job")
    wait = formatting.duration(about.grace_seconds * 1000)
    them = "it" if len(status.running) == 1 else "them"
    return f"stopping: waits up to {wait} for {jobs}; Ctrl-C again releases {them} at once"


def _counts(status: WorkerStatus, rate: float) -> Text:
    counts = Text()
    for outcome, count in _shown_counts(status).items():
        style = tables.STATE_STYLES.get("expired" if outcome == "lost" else outcome, "")
        counts.append(f"{outcome} ").append(f"{count:,}", style if count else "dim").append("   ")
    return counts.append(f"{rate:,.1f}/s")


def _slots(about: About, status: WorkerStatus) -> str:
    busy = sum(job.seconds is not None for job in status.running)
    waiting = len(status.running) - busy
    slots = f"{busy:,} of {formatting.number(about.concurrency * about.processes, 'slot')} busy"
    parts = [slots]
    if waiting:
        parts.append(f"{formatting.number(waiting, 'job')} {'waiting' if status.loading else 'taken ahead'}")
    if status.abandoned:
        parts.append(f"{formatting.number(status.abandoned, 'handler')} abandoned")
    return ", ".join([*parts, *_affinities(status)])


def _affinities(status: WorkerStatus) -> list[str]:
    groups = [(status.loaded, "loaded"), (status.loading, "loading")]
    parts = [f"{formatting.clean(', '.join(names), keep='')} {state}" for names, state in groups if names]
    return parts + ([formatting.number(status.switches, "switch", "switches")] if status.switches else [])


def _running_time(seconds: float | None) -> str:
    return "" if seconds is None else formatting.duration(seconds * 1000)


# --- lines ----------------------------------------------------------------------------------------------------------


@contextmanager
def in_lines(terminal: Terminal, about: About, get_status: GetStatus) -> Iterator[None]:
    """Print a line at start, stop request and end, and a summary line periodically if counts have changed."""
    started = time.monotonic()
    seen = get_status()
    _write(terminal, "started", about.summary, _about(about, seen))

    def write_summary() -> None:
        nonlocal seen
        now = get_status()
        if now.ended != seen.ended:
            seconds = time.monotonic() - started
            _write(
                terminal, "summary", f"worker {now.worker}: {_summary(now)}", json_view.worker_status(now, seconds)
            )
        seen = now

    reported = False

    def report_stop() -> None:
        nonlocal reported
        now = get_status()
        if now.stopping and not reported:
            reported = True
            line = f"worker {now.worker} {stopping(about, now)}"
            _write(terminal, "stopping", line, json_view.worker_status(now, time.monotonic() - started))

    try:
        with _every(SUMMARY_SECONDS, write_summary), _every(1 / DRAWN_PER_SECOND, report_stop):
            yield
    finally:
        status, seconds = get_status(), time.monotonic() - started
        _write(terminal, "stopped", _stopped(status, seconds), json_view.worker_status(status, seconds))


def _write(terminal: Terminal, event: str, line: str, document: json_view.Document) -> None:
    if terminal.json:
        terminal.emit({"event": event, **document})
    else:
        terminal.line(line)


def _about(about: About, status: WorkerStatus) -> json_view.Document:
    return {
        "worker": status.worker,
        "process": about.process,
        "target": about.target,
        "concurrency": about.concurrency,
        "summary": about.summary,
    }


def _stopped(status: WorkerStatus, seconds: float) -> str:
    left = f", {len(status.running):,} not settled" if status.running else ""
    return f"worker {status.worker} stopped after {formatting.duration(seconds * 1000)}: {_totals(status)}{left}"


def _summary(status: WorkerStatus) -> str:
    counts = _totals(status)
    return f"{counts}, {len(status.running):,} running" if status.running else counts


def _totals(status: WorkerStatus) -> str:
    return ", ".join(f"{count:,} {outcome}" for outcome, count in _shown_counts(status).items())


def _shown_counts(status: WorkerStatus) -> dict[str, int]:
    """Return the counts by outcome; rare outcomes only if they are not zero."""
    counts = {outcome: status.ended.get(outcome, 0) for outcome in _ALWAYS_SHOWN}
    return counts | {outcome: count for outcome, count in sorted(status.ended.items()) if count}


# --- records for the supervisor's screen ----------------------------------------------------------------------------


@contextmanager
def in_records(get_status: GetStatus) -> Iterator[None]:
    """Write this child's status for the supervisor's screen, as often as the screen is drawn."""

    def write() -> None:
        sys.stdout.write(f"{RECORD}{json.dumps(asdict(get_status()), default=datetime.isoformat)}\n")
        sys.stdout.flush()

    try:
        with _every(1 / DRAWN_PER_SECOND, write):
            yield
    finally:
        write()


@contextmanager
def _every(seconds: float, work: Callable[[], None]) -> Iterator[None]:
    """Call *work* periodically in a thread until the end of the block."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(seconds):
            # The terminal or the pipe may be closed; jobs go on.
            with suppress(OSError):
                work()

    thread = threading.Thread(target=repeat, name="holdfast-report", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
