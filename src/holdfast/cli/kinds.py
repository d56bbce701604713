"""`holdfast kinds`: list the kinds of jobs, show one with its schema, retire a kind, and restore it."""

from __future__ import annotations

import json
from datetime import datetime

import click

from holdfast import json_view
from holdfast.cli import formatting
from holdfast.cli.options import Group, destructive, pass_terminal
from holdfast.cli.tables import Column, by_state, counts_columns, table
from holdfast.cli.terminal import Terminal
from holdfast.domain.job import WAITING
from holdfast.types import Kind


@click.group(
    cls=Group,
    epilog="""
    Examples:
      holdfast kinds list
      holdfast kinds show email.send
      holdfast kinds retire email.legacy --yes
      holdfast kinds restore email.legacy
    """,
)
def kinds() -> None:
    """List and show kinds of jobs, retire and restore them."""


@kinds.command(
    "list",
    epilog="""
    Lane, attempts and timeout are those of the task, as its worker published them.
    This reads every job; do not call it often.

    Examples:
      holdfast kinds list
      holdfast kinds list --json
    """,
)
@pass_terminal
def list_(terminal: Terminal) -> None:
    """List every used, published or retired kind, with its jobs by state."""
    with terminal.queue() as queue:
        found, counts = queue.kinds.list(), by_state((one.kind, one) for one in queue.admin.tally())
    if terminal.json:
        terminal.emit({"kinds": [{**json_view.kind(one), "jobs": counts.get(one.name, {})} for one in found]})
    elif found:
        _draw(terminal, found, counts)
    else:
        terminal.note("no kind has been used yet")


def _draw(terminal: Terminal, found: list[Kind], counts: dict[str, dict[str, int]]) -> None:
    columns = [
        Column("KIND", [one.name for one in found], min_width=12),
        Column("STATE", ["retired" if one.retired else "active" for one in found], states=True),
        Column("LANE", [one.lane or "" for one in found], rank=1, min_width=7, hide_if=""),
        Column("ATTEMPTS", [_text(one.max_attempts) for one in found], rank=4, hide_if="", justify="right"),
        Column("TIMEOUT", [_timeout(one) for one in found], rank=4, hide_if="", justify="right"),
        *counts_columns([counts.get(one.name, {}) for one in found]),
        Column("PUBLISHED", [_published(one, terminal.now) for one in found], rank=2, hide_if="", justify="right"),
        Column("BY", [one.published_by or "" for one in found], rank=5, min_width=8, hide_if=""),
    ]
    terminal.show(table(columns, terminal.out.width))


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _timeout(one: Kind) -> str:
    return "" if one.timeout is None else formatting.duration(one.timeout * 1000)


def _published(one: Kind, now: datetime) -> str:
    return "" if one.published_at is None else formatting.relative(one.published_at, now)


@kinds.command(
    epilog="""
    The schema is that of the payload, or of one message of a session task.

    Examples:
      holdfast kinds show email.send
      holdfast kinds show email.send --json | jq .schema
    """
)
@click.argument("kind")
@pass_terminal
def show(terminal: Terminal, kind: str) -> None:
    """Show the published options and schema of a kind."""
    with terminal.queue() as queue:
        found = queue.kinds.get(kind)
    if terminal.json:
        terminal.emit(json_view.kind(found))
        return
    rows = {"kind": found.name, "state": "retired" if found.retired else "active"}
    if found.published_at is None:
        rows["published"] = "never: no worker has served its task"
    else:
        rows["published"] = f"{formatting.both(found.published_at, terminal.now)} by {found.published_by}"
        rows["timeout"] = _timeout(found)
        rows |= {name: json.dumps(value, ensure_ascii=False) for name, value in (found.options or {}).items()}
        rows["takes"] = "messages of sessions" if found.session else "a payload"
    width = max(map(len, rows))
    for name, value in rows.items():
        terminal.line(f"{name:<{width}}  {value}")
    if found.schema is not None:
        terminal.line(json.dumps(found.schema, indent=2, ensure_ascii=False))


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
            waiting = sum(one.jobs for one in queue.admin.tally(kind=kind, state=tuple(WAITING)))
            about = formatting.number(waiting, "waiting job")
            if dry_run:
                terminal.report({"kind": kind, "jobs": waiting}, f"would retire kind {kind} and {about}")
                return
            terminal.confirm(f"Retire kind {kind}, and permanently retire {about}?")
        queue.admin.record_action("kinds.retire", kind)
        with terminal.busy(f"retiring {kind}"):
            count = queue.kinds.retire(kind)
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
        queue.admin.record_action("kinds.restore", kind)
        queue.kinds.restore(kind)
    if terminal.json:
        terminal.emit({"kind": kind, "retired": False})
    else:
        terminal.line(f"kind {kind} accepts new jobs again")
