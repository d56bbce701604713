"""`holdfast failures`: failed jobs by the pattern in which they failed."""

import click

from holdfast import json_view
from holdfast.cli import errors, formatting, job_list, tables
from holdfast.cli.options import Group, pass_terminal
from holdfast.cli.terminal import Terminal
from holdfast.domain import limits, routing
from holdfast.types import FailurePattern

_JOBS = 10


@click.group(
    cls=Group,
    epilog="""
    Examples:
      holdfast failures list
      holdfast failures show 06792346f17d00c0
      holdfast jobs list --fingerprint 06792346f17d00c0
    """,
)
def failures() -> None:
    """Show failed jobs by the pattern in which they failed."""


@failures.command(
    "list",
    epilog="""
    Failures are the same if kind, exception, place in your code and message are,
    up to the numbers and ids in the message. COUNT includes jobs that were
    requeued since; HOUR is the number within the last hour.

    Examples:
      holdfast failures list
      holdfast failures list --kind email.send --json
    """,
)
@click.option("--kind", help="Only failures of this kind.")
@click.option("--tenant", help="Only failures of this tenant's jobs.")
@click.option("--limit", type=int, metavar="N", default=50, show_default=True, help="The maximum number of patterns.")
@pass_terminal
def list_(terminal: Terminal, kind: str | None, tenant: str | None, limit: int) -> None:
    """List patterns of failed jobs, those with the newest failure first."""
    with terminal.queue() as queue:
        found = queue.admin.failures(kind=kind, tenant=tenant, limit=limit)
    if terminal.json:
        terminal.emit({"failures": [json_view.failure_pattern(one) for one in found]})
    elif found:
        terminal.show(tables.table(_columns(terminal, found), terminal.out.width))
    else:
        terminal.note("no jobs have failed")


def _columns(terminal: Terminal, found: list[FailurePattern]) -> list[tables.Column]:
    return [
        tables.Column("FINGERPRINT", [one.fingerprint for one in found], style="dim"),
        tables.Column("COUNT", [count(one.count) for one in found], justify="right"),
        tables.Column("HOUR", [count(one.this_hour) for one in found], rank=2, justify="right"),
        tables.Column("LAST", [formatting.age(one.last_at, terminal.now) for one in found], justify="right"),
        tables.Column(
            "FIRST", [formatting.age(one.first_at, terminal.now) for one in found], rank=3, justify="right"
        ),
        tables.Column("KIND", [one.kind for one in found], min_width=10),
        tables.Column("TENANTS", [", ".join(one.tenants) for one in found], 4, 8, hide_if=routing.DEFAULT_NAME),
        tables.Column("WHY", [f"{one.error}: {one.message}" for one in found], min_width=20),
    ]


def count(number: int) -> str:
    """Return a number of failures; counting stops at a limit."""
    return f"{number:,}{'+' if number >= limits.FAILURES_COUNTED_MAX else ''}"


@failures.command(
    epilog="""
    Examples:
      holdfast failures show 06792346f17d00c0
    """
)
@click.argument("fingerprint")
@click.option("--tenant", help="Only failures of this tenant's jobs.")
@pass_terminal
def show(terminal: Terminal, fingerprint: str, tenant: str | None) -> None:
    """Show one pattern, the newest failure and the newest jobs."""
    with terminal.queue() as queue:
        found = queue.admin.failures(fingerprint=fingerprint, tenant=tenant, limit=limits.PAGE_MAX)
        page = queue.jobs(fingerprint=fingerprint, tenant=tenant, limit=_JOBS)
    if not found:
        raise errors.CommandError(
            f"there are no failures with fingerprint {fingerprint!r}",
            hint="'holdfast failures list' shows the fingerprints; old failures may have been pruned",
            code="failure_not_found",
            exit_code=errors.REFUSED,
        )
    if terminal.json:
        terminal.emit({"failure": json_view.failure_pattern(found[0]), "jobs": [json_view.job(job) for job in page]})
        return
    _draw(terminal, found[0])
    newest = next((job.failure for job in page if job.failure is not None), None)
    if newest is not None and newest.traceback:
        terminal.line()
        terminal.line("The newest", "bold")
        for line in newest.traceback.rstrip().splitlines():
            terminal.line(f"  {line}", "red")
    terminal.line()
    terminal.line("Failed now" if page.jobs else "No job is failed so now", "bold")
    if page.jobs:
        terminal.show(tables.table(job_list.columns(page.jobs, terminal.now), terminal.out.width))
    if page.cursor is not None:
        terminal.note(f"there are more: holdfast jobs list --fingerprint {fingerprint}")


def _draw(terminal: Terminal, one: FailurePattern) -> None:
    terminal.paragraph(f"{one.error}: {one.message}")
    rows = (
        ("kind", one.kind),
        ("where", " > ".join(one.frames)),
        ("lanes", ", ".join(one.lanes)),
        ("tenants", ", ".join(one.tenants)),
        ("count", f"{count(one.count)}, {count(one.this_hour)} in the last hour, {count(one.hour_before)} before it"),
        ("first", formatting.both(one.first_at, terminal.now)),
        ("last", formatting.both(one.last_at, terminal.now)),
        ("example", one.example or ""),
    )
    for name, value in rows:
        if value:
            terminal.line(f"{name:<8} {value}")
