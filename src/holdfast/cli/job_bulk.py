"""Cancel or requeue all jobs that match filters: count them, ask for confirmation, then process them in pages."""

from collections.abc import Callable
from typing import Any

from holdfast import Queue, json_view, types
from holdfast.cli import errors, formatting, tables
from holdfast.cli.terminal import Terminal
from holdfast.client.sync_api import bulk
from holdfast.domain import filter_line


def given_filters(filters: dict[str, Any]) -> dict[str, Any]:
    """Return the filters that are set, as arguments of `Queue.jobs` and `Queue.admin.tally`."""
    return {name: value for name, value in filters.items() if value not in (None, (), {})}


def with_line(filters: dict[str, Any], line: str) -> dict[str, Any]:
    """Return *filters* with those of a filter line; raise if an option and the line give the same one."""
    named = filter_line.arguments(line)
    if twice := sorted(filters.keys() & named.keys()):
        raise errors.CommandError(f"{twice[0]} is in the filter and in an option", hint="leave one of them out")
    return {**filters, **named}


def check_choice(job_ids: tuple[str, ...], filters: dict[str, Any], verb: str, *, dry_run: bool) -> None:
    """Raise unless the command names either jobs or filters."""
    hint = "give ids or numbers, or filters such as --kind KIND and --older-than 7d"
    if job_ids and filters:
        raise errors.CommandError("name jobs or filters, not both", hint=hint)
    if job_ids and dry_run:
        raise errors.CommandError("--dry-run goes with filters, not with named jobs", hint=hint)
    if not job_ids and not filters:
        raise errors.CommandError(f"name the jobs to {verb}, or filters that choose them", hint=hint)


def confirm(
    terminal: Terminal, queue: Queue, filters: dict[str, Any], verb: str, *, dry_run: bool, yes: bool
) -> int | None:
    """Return how many jobs to change, or None. Counts the jobs, prints the counts and asks, unless *yes*.

    With *yes* they are counted only if progress is drawn; otherwise 0 is returned.
    """
    if yes and not dry_run and not terminal.shows_progress:
        return 0
    with terminal.busy("counting"):
        found = queue.admin.tally(**filters)
    total = formatting.number(sum(one.jobs for one in found), "job")
    if dry_run:
        _show(terminal, found, f"would {verb} {total}")
    elif not found:
        terminal.note("no jobs match")
    elif not yes:
        terminal.note("\n".join(f"{one.jobs:,} {one.state} {one.kind} in lane {one.lane}" for one in found))
        terminal.confirm(f"{verb.capitalize()} {total}?")
    return sum(one.jobs for one in found) if found and not dry_run else None


def cancel(
    queue: Queue, filters: dict[str, Any], advance: Callable[[int], None], *, force: bool
) -> types.CancelReport:
    """Cancel all jobs that match; call *advance* with the number of jobs of each page."""
    total, after = types.CancelReport([], [], []), None
    while True:
        report, after = bulk.cancel_page(queue, filters, after, force=force)
        total.cancelled.extend(report.cancelled)
        total.stop_requested.extend(report.stop_requested)
        total.skipped.extend(report.skipped)
        advance(len(report.cancelled) + len(report.stop_requested) + len(report.skipped))
        if after is None:
            return total


def requeue(queue: Queue, filters: dict[str, Any], advance: Callable[[int], None]) -> types.Requeued:
    """Requeue all jobs that match; call *advance* with the number of jobs of each page."""
    total, after = types.Requeued([], []), None
    while True:
        report, after = bulk.requeue_page(queue, filters, after)
        total.requeued.extend(report.requeued)
        total.skipped.extend(report.skipped)
        advance(len(report.requeued) + len(report.skipped))
        if after is None:
            return total


def _show(terminal: Terminal, found: list[types.Tally], summary: str) -> None:
    if terminal.json:
        terminal.emit({"jobs": sum(one.jobs for one in found), "tally": [json_view.tally(one) for one in found]})
        return
    if found:
        columns = [
            tables.Column("LANE", [one.lane for one in found], min_width=8),
            tables.Column("KIND", [one.kind for one in found], min_width=12),
            tables.Column("STATE", [one.state for one in found], states=True),
            tables.Column("JOBS", [f"{one.jobs:,}" for one in found], justify="right"),
        ]
        terminal.show(tables.table(columns, terminal.out.width))
    terminal.line(summary)
