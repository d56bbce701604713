"""`holdfast doctor` and `holdfast migrate`: check the store, and update its schema."""

import click

from holdfast import json_view, types
from holdfast.cli import errors, formatting, options, tables
from holdfast.cli.terminal import Terminal


@click.command(
    cls=options.Command,
    epilog="""
    Exits with 1 if there is a problem; warnings do not count.

    Examples:
      holdfast doctor
      holdfast doctor --json | jq '.findings[] | select(.status != "ok")'
    """,
)
@options.pass_terminal
def doctor(terminal: Terminal) -> int:
    """Check the store and print remedies."""
    with terminal.queue(over_http=False) as queue, terminal.busy("checking the store"):
        report = queue.admin.report()
    if terminal.json:
        terminal.emit({"healthy": report.healthy, "findings": [json_view.finding(one) for one in report.findings]})
    else:
        _draw(terminal, report.findings)
        warnings = sum(one.status == "warning" for one in report.findings)
        also = f", with {formatting.number(warnings, 'warning')}" if warnings else ""
        terminal.line(f"{'' if report.healthy else 'not '}healthy{also}", "green" if report.healthy else "bold red")
    return errors.OK if report.healthy else errors.REFUSED


def _draw(terminal: Terminal, findings: list[types.Finding]) -> None:
    columns = [
        tables.Column("STATUS", [one.status for one in findings], states=True),
        tables.Column("WHAT", [one.name for one in findings]),
        tables.Column("FOUND", [one.detail for one in findings], min_width=20, wrap=True),
        tables.Column("REMEDY", [one.remedy for one in findings], min_width=20, wrap=True, hide_if=""),
    ]
    terminal.show(tables.table(columns, terminal.out.width))


@click.command(
    cls=options.Command,
    epilog="""
    Opening a queue does the same; this command does it at a time you choose.

    Examples:
      holdfast migrate
      holdfast migrate --url jobs.db --json
    """,
)
@options.pass_terminal
def migrate(terminal: Terminal) -> None:
    """Create the store or update its schema."""
    with terminal.queue(create=True, over_http=False) as queue, terminal.busy("migrating"):
        applied = queue.migrate()
    if terminal.json:
        terminal.emit({"applied": applied})
    elif not applied:
        terminal.line("the schema is up to date")
    for name in () if terminal.json else applied:
        terminal.line(f"applied {name}")
