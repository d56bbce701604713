"""`holdfast kinds`: take a kind of job out of service, and back."""

from __future__ import annotations

import click

from holdfast.cli import text
from holdfast.cli.shared import Group, pass_terminal
from holdfast.cli.terminal import Terminal


@click.group(
    cls=Group,
    epilog="""
    Examples:
      holdfast kinds retire email.legacy
      holdfast kinds restore email.legacy
    """,
)
def kinds() -> None:
    """Take kinds of jobs out of service, and back."""


@kinds.command(
    epilog="""
    Examples:
      holdfast kinds retire email.legacy
    """
)
@click.argument("kind")
@pass_terminal
def retire(terminal: Terminal, kind: str) -> None:
    """Refuse new jobs of a kind and set its waiting ones aside."""
    with terminal.queue() as queue, terminal.busy(f"retiring {kind}"):
        count = queue.retire(kind)
    if terminal.json:
        terminal.emit({"kind": kind, "retired": True, "jobs": count})
    else:
        terminal.line(f"kind {kind} is retired; {text.number(count, 'waiting job')} set aside")


@kinds.command(
    epilog="""
    Examples:
      holdfast kinds restore email.legacy
    """
)
@click.argument("kind")
@pass_terminal
def restore(terminal: Terminal, kind: str) -> None:
    """Take new jobs of a retired kind again; jobs already set aside stay so."""
    with terminal.queue() as queue:
        queue.restore(kind)
    if terminal.json:
        terminal.emit({"kind": kind, "retired": False})
    else:
        terminal.line(f"kind {kind} takes new jobs again")
