"""`holdfast prune`: delete finished jobs and old events."""

from __future__ import annotations

import sys

import click

from holdfast.cli import complaints, text, values, wire
from holdfast.cli.complaints import Complaint
from holdfast.cli.shared import Command, pass_terminal
from holdfast.cli.terminal import Terminal
from holdfast.domain.job import FINISHED, State
from holdfast.domain.masking import mask_url


@click.command(
    cls=Command,
    epilog="""
    On a terminal it asks first, unless --yes is given.

    Examples:
      holdfast prune --older-than 7d
      holdfast prune --older-than 30d --state failed --events-older-than 90d --yes
    """,
)
@click.option(
    "--older-than", type=values.DURATION, required=True, metavar="TIME", help="Finished so long ago: 7d, 12h."
)
@click.option("--state", "states", type=click.Choice(FINISHED), multiple=True, help="Only this state. Repeatable.")
@click.option(
    "--events-older-than", type=values.DURATION, metavar="TIME", help="Another age for events. Default: as for jobs."
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@pass_terminal
def prune(
    terminal: Terminal, older_than: float, states: tuple[State, ...], events_older_than: float | None, yes: bool
) -> None:
    """Delete finished jobs and old events.

    Attempts and artifacts go with their jobs. Events are deleted from the start of the log.
    """
    chosen = states or FINISHED
    with terminal.queue() as queue:
        if not yes and sys.stdin.isatty() and terminal.err.is_terminal:
            _confirm(terminal, chosen, older_than, events_older_than)
        with terminal.busy("deleting"):
            pruned = queue.prune(older_than=older_than, states=chosen, events_older_than=events_older_than)
    if terminal.json:
        terminal.emit(wire.pruned(pruned))
    else:
        terminal.line(f"deleted {text.number(pruned.jobs, 'job')} and {text.number(pruned.events, 'event')}")


def _confirm(
    terminal: Terminal, states: tuple[State, ...], older_than: float, events_older_than: float | None
) -> None:
    jobs_age = text.duration(older_than * 1000)
    events_age = jobs_age if events_older_than is None else text.duration(events_older_than * 1000)
    terminal.note(
        f"this deletes {', '.join(states)} jobs finished more than {jobs_age} ago, with attempts and artifacts, "
        f"and events older than {events_age}"
    )
    if not click.confirm(f"Delete them from {text.clean(mask_url(terminal.url), keep='')}?", err=True):
        raise Complaint("nothing was deleted", code="refused", exit_code=complaints.REFUSED)
