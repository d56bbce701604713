"""`holdfast workers`: who runs, what each holds, and when it last said so."""

from __future__ import annotations

import click

from holdfast import WorkerInfo
from holdfast.cli import formatting, json_view
from holdfast.cli.options import Command, pass_terminal
from holdfast.cli.tables import Column, table
from holdfast.cli.terminal import Terminal
from holdfast.domain import limits


@click.command(
    cls=Command,
    epilog="""
    A worker that ends in good order leaves the list. One that was killed is shown
    as silent after a minute; its jobs are taken over once their leases have expired.

    Examples:
      holdfast workers
      holdfast workers --json
    """,
)
@click.option(
    "--limit",
    type=click.IntRange(1, limits.PAGE_MAX),
    default=limits.PAGE_DEFAULT,
    show_default=True,
    help="How many, those heard of last first.",
)
@pass_terminal
def workers(terminal: Terminal, limit: int) -> None:
    """List the workers of a queue."""
    with terminal.queue() as queue:
        found = queue.workers(limit=limit)
    if terminal.json:
        terminal.emit({"workers": [json_view.worker(one) for one in found]})
    elif found:
        _draw(terminal, found)
    else:
        terminal.note("no worker has said anything")


def _draw(terminal: Terminal, found: list[WorkerInfo]) -> None:
    columns = [
        Column("WORKER", [one.worker for one in found], floor=8),
        Column("STATE", [one.state for one in found], states=True),
        Column("HOLDS", [f"{one.held:,}" for one in found], justify="right"),
        Column("SLOTS", [f"{one.concurrency:,}" for one in found], rank=4, justify="right"),
        Column("LANES", [", ".join(one.lanes) for one in found], rank=2, floor=7),
        Column("KINDS", [", ".join(one.kinds) for one in found], rank=3, floor=10),
        Column("CAPABILITIES", [", ".join(one.capabilities) for one in found], rank=6, floor=12, silent=""),
        Column("LOADED", [", ".join(one.loaded) for one in found], rank=5, floor=8, silent=""),
        Column("SWITCHES", [f"{one.switches:,}" for one in found], rank=6, silent="0", justify="right"),
        Column("HOST", [one.host for one in found], rank=8, floor=8),
        Column("PROCESS", [str(one.process) for one in found], rank=8, justify="right"),
        Column("VERSION", [one.version for one in found], rank=7),
        Column("UP", [formatting.age(one.started_at_ms, terminal.now_ms) for one in found], rank=5, justify="right"),
        Column(
            "HEARD", [formatting.relative(one.beat_at_ms, terminal.now_ms) for one in found], rank=1, justify="right"
        ),
    ]
    terminal.show(table(columns, terminal.out.width))
