"""`holdfast migrate`: create the store or bring its schema up to date."""

from __future__ import annotations

import click

from holdfast.cli.shared import Command, pass_terminal
from holdfast.cli.terminal import Terminal


@click.command(
    cls=Command,
    epilog="""
    Opening a queue does the same; this is for doing it at a time of your choice.

    Examples:
      holdfast migrate
      holdfast migrate --url jobs.db --json
    """,
)
@pass_terminal
def migrate(terminal: Terminal) -> None:
    """Create the store, or bring its schema up to date."""
    with terminal.queue(create=True) as queue, terminal.busy("migrating"):
        applied = queue.migrate()
    if terminal.json:
        terminal.emit({"applied": applied})
    elif not applied:
        terminal.line("the schema is up to date")
    for name in () if terminal.json else applied:
        terminal.line(f"applied {name}")
