"""`holdfast lanes`: see how lanes are set, and set them."""

from __future__ import annotations

from typing import Any

import click

from holdfast import Lane
from holdfast.cli import wire
from holdfast.cli.complaints import Complaint
from holdfast.cli.shared import Group, pass_terminal
from holdfast.cli.tables import Column, table
from holdfast.cli.terminal import Terminal


@click.group(
    cls=Group,
    epilog="""
    Examples:
      holdfast lanes list
      holdfast lanes set bulk --state paused
    """,
)
def lanes() -> None:
    """Look at lanes, pause and drain them."""


@lanes.command(
    "list",
    epilog="""
    Examples:
      holdfast lanes list
      holdfast lanes list --json
    """,
)
@pass_terminal
def list_(terminal: Terminal) -> None:
    """List every lane that was configured or has ever been used."""
    with terminal.queue() as queue:
        found = queue.lanes()
    if terminal.json:
        terminal.emit({"lanes": [wire.lane(lane) for lane in found]})
    elif found:
        _draw(terminal, found)
    else:
        terminal.note("no lane has been used yet")


@lanes.command(
    "set",
    epilog="""
    active: jobs come and go. paused: none is claimed. draining: none is added.
    fair: tenants take turns. strict: priority, due time and enqueue order alone.
    block: in a session, a batch in backoff holds up the rest. skip: it does not.

    Examples:
      holdfast lanes set bulk --state paused
      holdfast lanes set audit --order strict --events all
    """,
)
@click.argument("lane")
@click.option("--state", type=click.Choice(["active", "paused", "draining"]), help="Whether jobs come and go.")
@click.option("--order", type=click.Choice(["fair", "strict"]), help="Whether tenants take turns.")
@click.option("--events", type=click.Choice(["terminal", "all"]), help="Which transitions are recorded.")
@click.option("--backoff", type=click.Choice(["block", "skip"]), help="Whether a retry holds up its session.")
@pass_terminal
def set_(terminal: Terminal, /, lane: str, **changes: Any) -> None:
    """Change a lane; what is not named stays as it is."""
    if not any(changes.values()):
        raise Complaint("nothing to change: give --state, --order, --events or --backoff")
    with terminal.queue() as queue:
        changed = queue.set_lane(lane, **changes)
    if terminal.json:
        terminal.emit(wire.lane(changed))
    else:
        _draw(terminal, [changed])


def _draw(terminal: Terminal, found: list[Lane]) -> None:
    columns = [
        Column("LANE", [lane.name for lane in found]),
        Column("STATE", [lane.state for lane in found], states=True),
        Column("ORDER", [lane.order for lane in found]),
        Column("EVENTS", [lane.events for lane in found]),
        Column("BACKOFF", [lane.backoff for lane in found], silent="block"),
    ]
    terminal.show(table(columns, terminal.out.width))
