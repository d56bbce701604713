"""`holdfast lanes`: list lanes and change their settings."""

from typing import Any

import click

from holdfast import json_view, types
from holdfast.cli import errors, formatting, options, tables
from holdfast.cli.terminal import Terminal
from holdfast.domain import job


@click.group(
    cls=options.Group,
    epilog="""
    Examples:
      holdfast lanes list
      holdfast lanes set bulk --state paused
    """,
)
def lanes() -> None:
    """List lanes, and pause or drain them."""


@lanes.command(
    "list",
    epilog="""
    This reads every job; do not call it often.

    Examples:
      holdfast lanes list
      holdfast lanes list --json
    """,
)
@options.pass_terminal
def list_(terminal: Terminal) -> None:
    """List every configured or used lane, with its jobs by state."""
    with terminal.queue() as queue:
        found, counts = queue.lanes.list(), tables.by_state((one.lane, one) for one in tables.tally_of(queue))
    if terminal.json:
        terminal.emit({"lanes": [{**json_view.lane(lane), "jobs": counts.get(lane.name, {})} for lane in found]})
    elif found:
        _draw(terminal, found, counts)
    else:
        terminal.note("no lane has been used yet")


@lanes.command(
    "set",
    epilog="""
    State: active; paused: jobs are not claimed; draining: enqueueing fails.
    Order: fair alternates between tenants; strict uses only priority, due time and
    enqueue order. Backoff: with block, a session entry in backoff delays the later
    entries; with skip it does not. --state draining asks for confirmation.

    Examples:
      holdfast lanes set bulk --state paused
      holdfast lanes set bulk --state draining --dry-run
      holdfast lanes set audit --order strict --events all
    """,
)
@click.argument("lane")
@click.option("--state", type=click.Choice(["active", "paused", "draining"]), help="The state of the lane.")
@click.option("--order", type=click.Choice(["fair", "strict"]), help="The claim order.")
@click.option("--events", type=click.Choice(["terminal", "all"]), help="The transitions to record as events.")
@click.option("--backoff", type=click.Choice(["block", "skip"]), help="Whether a retry delays its session.")
@options.destructive
@options.pass_terminal
def set_(terminal: Terminal, /, lane: str, *, dry_run: bool, yes: bool, **changes: Any) -> None:
    """Change the settings of a lane.

    Settings whose option is not given stay unchanged.
    """
    if not any(changes.values()):
        raise errors.CommandError("nothing to change: give --state, --order, --events or --backoff")
    drains = changes["state"] == "draining"
    terminal.require_confirmation(allowed=dry_run or yes or not drains)
    with terminal.queue() as queue:
        if dry_run or (drains and not yes):
            unfinished = [state for state in job.STATES if state not in job.FINISHED]
            count = sum(one.jobs for one in queue.admin.tally(lane=lane, state=unfinished))
            about = f"lane {lane} with {formatting.number(count, 'unfinished job')}"
            if dry_run:
                terminal.report({"lane": lane, "jobs": count}, f"would change {about}")
                return
            terminal.confirm(f"Drain {about}, and refuse new jobs in it?")
        given = {name: value for name, value in changes.items() if value is not None}
        queue.admin.record_action("lanes.set", lane, detail=given)
        changed = queue.lanes.set(lane, **changes)
    if terminal.json:
        terminal.emit(json_view.lane(changed))
    else:
        _draw(terminal, [changed], {})


def _draw(terminal: Terminal, found: list[types.Lane], counts: dict[str, dict[str, int]]) -> None:
    columns = [
        tables.Column("LANE", [lane.name for lane in found]),
        tables.Column("STATE", [lane.state for lane in found], states=True),
        tables.Column("ORDER", [lane.order for lane in found]),
        tables.Column("EVENTS", [lane.events for lane in found]),
        tables.Column("BACKOFF", [lane.backoff for lane in found], hide_if="block"),
        *tables.counts_columns([counts.get(lane.name, {}) for lane in found]),
    ]
    terminal.show(tables.table(columns, terminal.out.width))
