"""`holdfast workers`: list workers, their number of jobs, and their last heartbeat."""

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
    A worker that shuts down leaves the list. A killed worker is shown as silent
    after a minute; other workers take its jobs once the leases have expired.

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
    metavar="N",
    help="The maximum number of workers, most recent heartbeat first.",
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
        terminal.note("no worker has registered")


def _draw(terminal: Terminal, found: list[WorkerInfo]) -> None:
    columns = [
        Column("WORKER", [one.worker for one in found], min_width=8),
        Column("STATE", [one.state for one in found], states=True),
        Column("HOLDS", [f"{one.held:,}" for one in found], justify="right"),
        Column("SLOTS", [f"{one.concurrency:,}" for one in found], rank=4, justify="right"),
        Column("LANES", [", ".join(one.lanes) for one in found], rank=2, min_width=7),
        Column("KINDS", [", ".join(one.kinds) for one in found], rank=3, min_width=10),
        Column("CAPABILITIES", [", ".join(one.capabilities) for one in found], rank=6, min_width=12, hide_if=""),
        Column("LOADED", [", ".join(one.loaded) for one in found], rank=5, min_width=8, hide_if=""),
        Column("SWITCHES", [f"{one.switches:,}" for one in found], rank=6, hide_if="0", justify="right"),
        Column("HOST", [one.host for one in found], rank=8, min_width=8),
        Column("PROCESS", [str(one.process) for one in found], rank=8, justify="right"),
        Column("VERSION", [one.version for one in found], rank=7),
        Column("UP", [formatting.age(one.started_at_ms, terminal.now_ms) for one in found], rank=5, justify="right"),
        Column(
            "HEARD", [formatting.relative(one.beat_at_ms, terminal.now_ms) for one in found], rank=1, justify="right"
        ),
    ]
    terminal.show(table(columns, terminal.out.width))
