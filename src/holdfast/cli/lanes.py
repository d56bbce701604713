"""`holdfast lanes`: list lanes and change their settings."""

from typing import Any

import click

from holdfast import json_view, types
from holdfast.cli import errors, formatting, options, params, tables
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
    With --max-waiting, enqueueing fails while a tenant has so many ready and parked
    jobs in the lane. Lanes above their target age are reported by doctor and top,
    and by the event `late` of their oldest job.

    Examples:
      holdfast lanes set bulk --state paused
      holdfast lanes set bulk --state draining --dry-run
      holdfast lanes set audit --order strict --events all
      holdfast lanes set mail --max-waiting 10000 --target-age 1m
    """,
)
@click.argument("lane")
@click.option("--state", type=click.Choice(["active", "paused", "draining"]), help="The state of the lane.")
@click.option("--order", type=click.Choice(["fair", "strict"]), help="The claim order.")
@click.option("--events", type=click.Choice(["terminal", "all"]), help="The transitions to record as events.")
@click.option("--backoff", type=click.Choice(["block", "skip"]), help="Whether a retry delays its session.")
@click.option("--max-waiting", type=int, metavar="N", help="How many jobs of each tenant may wait; 0: any number.")
@click.option("--target-age", type=params.DURATION, help="How old ready jobs should be at most; 0s: no target.")
@options.destructive
@options.pass_terminal
def set_(terminal: Terminal, /, lane: str, *, dry_run: bool, yes: bool, **changes: Any) -> None:
    """Change the settings of a lane.

    Settings whose option is not given stay unchanged.
    """
    if all(value is None for value in changes.values()):
        raise errors.CommandError(
            "nothing to change: give --state, --order, --events, --backoff, --max-waiting or --target-age"
        )
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


def _age(lane: types.Lane) -> str:
    if lane.target_age is None:
        return ""
    return formatting.duration(lane.target_age * 1000) + (" late" if lane.late else "")


def _draw(terminal: Terminal, found: list[types.Lane], counts: dict[str, dict[str, int]]) -> None:
    columns = [
        tables.Column("LANE", [lane.name for lane in found]),
        tables.Column("STATE", [lane.state for lane in found], states=True),
        tables.Column("ORDER", [lane.order for lane in found]),
        tables.Column("EVENTS", [lane.events for lane in found]),
        tables.Column("BACKOFF", [lane.backoff for lane in found], hide_if="block"),
        tables.Column(
            "MAX WAITING", ["" if one.max_waiting is None else f"{one.max_waiting:,}" for one in found], hide_if=""
        ),
        tables.Column("TARGET AGE", [_age(lane) for lane in found], hide_if=""),
        *tables.counts_columns([counts.get(lane.name, {}) for lane in found]),
    ]
    terminal.show(tables.table(columns, terminal.out.width))
