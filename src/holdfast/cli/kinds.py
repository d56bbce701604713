"""`holdfast kinds`: list the kinds of jobs, show one with its schema, retire a kind, and restore it."""

import json
from datetime import datetime

import click

from holdfast import json_view, types
from holdfast.cli import formatting, kind_names, options, tables
from holdfast.cli.terminal import Terminal
from holdfast.domain import job


@click.group(
    cls=options.Group,
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
@options.pass_terminal
def list_(terminal: Terminal) -> None:
    """List every kind with its jobs by state.

    A kind is listed if it has jobs, is published or is retired.
    """
    with terminal.queue() as queue:
        found, counts = queue.kinds.list(), tables.by_state((one.kind, one) for one in tables.tally_of(queue))
    if terminal.json:
        terminal.emit({"kinds": [{**json_view.kind(one), "jobs": counts.get(one.name, {})} for one in found]})
    elif found:
        _draw(terminal, found, counts)
    else:
        terminal.note("no kind has been used yet")


def _draw(terminal: Terminal, found: list[types.Kind], counts: dict[str, dict[str, int]]) -> None:
    columns = [
        tables.Column("KIND", [one.name for one in found], min_width=12),
        tables.Column("STATE", ["retired" if one.retired else "active" for one in found], states=True),
        tables.Column("LANE", [one.lane or "" for one in found], rank=1, min_width=7, hide_if=""),
        tables.Column("ATTEMPTS", [_text(one.max_attempts) for one in found], rank=4, hide_if="", justify="right"),
        tables.Column("TIMEOUT", [_timeout(one) for one in found], rank=4, hide_if="", justify="right"),
        *tables.counts_columns([counts.get(one.name, {}) for one in found]),
        tables.Column(
            "PUBLISHED", [_published(one, terminal.now) for one in found], rank=4, hide_if="", justify="right"
        ),
        tables.Column("BY", [one.published_by or "" for one in found], rank=5, min_width=8, hide_if=""),
    ]
    terminal.show(tables.table(columns, terminal.out.width))


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _timeout(one: types.Kind) -> str:
    return "" if one.timeout is None else formatting.duration(one.timeout * 1000)


def _published(one: types.Kind, now: datetime) -> str:
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
@options.pass_terminal
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
        for name, value in (found.options or {}).items():
            rows[name] = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
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
@options.destructive
@options.pass_terminal
def retire(terminal: Terminal, kind: str, dry_run: bool, yes: bool) -> None:
    """Refuse new jobs of a kind and retire the waiting ones."""
    terminal.require_confirmation(allowed=dry_run or yes)
    with terminal.queue() as queue:
        if dry_run or not yes:
            if not terminal.json:
                kind_names.note_unpublished(terminal, queue, [kind])
            waiting = sum(one.jobs for one in queue.admin.tally(kind=kind, state=tuple(job.WAITING)))
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
@options.pass_terminal
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
