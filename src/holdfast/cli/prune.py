"""`holdfast prune`: delete finished jobs and old events."""

import click

from holdfast import json_view, types
from holdfast.cli import formatting, options, params
from holdfast.cli.terminal import Terminal
from holdfast.domain import job


@click.command(
    cls=options.Command,
    epilog="""
    On a terminal the command shows the counts and asks; without one it requires
    --yes.

    Examples:
      holdfast prune --older-than 7d --dry-run
      holdfast prune --older-than 30d --state failed --events-older-than 90d --yes
    """,
)
@click.option(
    "--older-than",
    type=params.DURATION,
    required=True,
    metavar="DURATION",
    help="Jobs that finished longer ago than this: 7d, 12h.",
)
@click.option(
    "--state", "states", type=click.Choice(job.FINISHED), multiple=True, help="Only this state. Repeatable."
)
@click.option(
    "--events-older-than", type=params.DURATION, metavar="DURATION", help="The age of events. Default: as for jobs."
)
@options.destructive
@options.pass_terminal
def prune(
    terminal: Terminal,
    *,
    older_than: float,
    states: tuple[job.State, ...],
    events_older_than: float | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Delete finished jobs and old events.

    Deletes the attempts and artifacts of these jobs too. Events are deleted from the start of the log.
    """
    terminal.require_confirmation(allowed=dry_run or yes)
    chosen = states or job.FINISHED
    with terminal.queue() as queue:
        if dry_run or not yes:
            with terminal.busy("counting"):
                found = queue.admin.prune(
                    older_than=older_than, states=chosen, events_older_than=events_older_than, dry_run=True
                )
        if dry_run:
            _print(terminal, found, "would delete")
            return
        if not yes:
            if not (found.jobs or found.events):
                _print(terminal, found, "deleted")
                return
            terminal.confirm(f"Delete {_summary(found)} from {terminal.url}, jobs with their attempts and artifacts?")
        detail = {"older_than": older_than, "states": list(chosen), "events_older_than": events_older_than}
        queue.admin.record_action("prune", "jobs", detail=detail)
        with terminal.busy("deleting"):
            pruned = queue.admin.prune(older_than=older_than, states=chosen, events_older_than=events_older_than)
    _print(terminal, pruned, "deleted")


def _print(terminal: Terminal, pruned: types.Pruned, verb: str) -> None:
    if terminal.json:
        terminal.emit(json_view.pruned(pruned))
    else:
        terminal.line(f"{verb} {_summary(pruned)}")


def _summary(pruned: types.Pruned) -> str:
    return f"{formatting.number(pruned.jobs, 'job')} and {formatting.number(pruned.events, 'event')}"
