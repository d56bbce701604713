"""`holdfast kinds`: list the kinds of jobs, retire a kind, and restore it."""

from __future__ import annotations

import click

from holdfast import Kind
from holdfast.cli import formatting
from holdfast.cli.options import Group, destructive, pass_terminal
from holdfast.cli.tables import Column, by_state, counts_columns, table
from holdfast.cli.terminal import Terminal
from holdfast.domain.job import WAITING


@click.group(
    cls=Group,
    epilog="""
    Examples:
      holdfast kinds list
      holdfast kinds retire email.legacy --yes
      holdfast kinds restore email.legacy
    """,
)
def kinds() -> None:
    """List kinds of jobs, retire and restore them."""


@kinds.command(
    "list",
    epilog="""
    This reads every job; do not call it often.

    Examples:
      holdfast kinds list
      holdfast kinds list --json
    """,
)
@pass_terminal
def list_(terminal: Terminal) -> None:
    """List every used or retired kind, with its jobs by state."""
    with terminal.queue() as queue:
        found, counts = queue.kinds(), by_state((one.kind, one) for one in queue.tally())
    if terminal.json:
        terminal.emit({"kinds": [{**one._asdict(), "jobs": counts.get(one.name, {})} for one in found]})
    elif found:
        _draw(terminal, found, counts)
    else:
        terminal.note("no kind has been used yet")


def _draw(terminal: Terminal, found: list[Kind], counts: dict[str, dict[str, int]]) -> None:
    columns = [
        Column("KIND", [one.name for one in found], min_width=12),
        Column("STATE", ["retired" if one.retired else "active" for one in found], states=True),
        *counts_columns([counts.get(one.name, {}) for one in found]),
    ]
    terminal.show(table(columns, terminal.out.width))


@kinds.command(
    epilog="""
    On a terminal the command shows the number of waiting jobs and asks; without one
    it requires --yes. Retired jobs stay retired when the kind is restored.

    Examples:
      holdfast kinds retire email.legacy --dry-run
      holdfast kinds retire email.legacy --yes
    """
)
@click.argument("kind")
@destructive
@pass_terminal
def retire(terminal: Terminal, kind: str, dry_run: bool, yes: bool) -> None:
    """Refuse new jobs of a kind and retire the waiting ones."""
    terminal.require_confirmation(allowed=dry_run or yes)
    with terminal.queue() as queue:
        if dry_run or not yes:
            waiting = sum(one.jobs for one in queue.tally(kind=kind, state=tuple(WAITING)))
            about = formatting.number(waiting, "waiting job")
            if dry_run:
                terminal.report({"kind": kind, "jobs": waiting}, f"would retire kind {kind} and {about}")
                return
            terminal.confirm(f"Retire kind {kind}, and permanently retire {about}?")
        with terminal.busy(f"retiring {kind}"):
            count = queue.retire(kind)
    if terminal.json:
        terminal.emit({"kind": kind, "retired": True, "jobs": count})
    else:
        terminal.line(f"kind {kind} is retired; {formatting.number(count, 'waiting job')} retired")


@kinds.command(
    epilog="""
    Examples:
      holdfast kinds restore email.legacy
    """
)
@click.argument("kind")
@pass_terminal
def restore(terminal: Terminal, kind: str) -> None:
    """Accept new jobs of a retired kind again.

    Retired jobs stay retired.
    """
    with terminal.queue() as queue:
        queue.restore(kind)
    if terminal.json:
        terminal.emit({"kind": kind, "retired": False})
    else:
        terminal.line(f"kind {kind} accepts new jobs again")
