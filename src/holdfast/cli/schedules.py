"""`holdfast schedules`: jobs at times of a calendar or at intervals."""

from datetime import datetime
from typing import Any

import click

from holdfast import json_view
from holdfast.cli import formatting, kind_names, params, tables
from holdfast.cli.options import Group, pass_terminal
from holdfast.cli.terminal import Terminal
from holdfast.domain import routing, validation
from holdfast.domain.schedules import Schedule

_tenant = click.option(
    "--tenant", default=routing.DEFAULT_NAME, show_default=True, help="The tenant of the schedule."
)


@click.group(
    cls=Group,
    epilog="""
    Examples:
      holdfast schedules set nightly report.write --cron '0 3 * * *'
      holdfast schedules preview nightly
      holdfast schedules pause nightly
      holdfast schedules run nightly
    """,
)
def schedules() -> None:
    """Set, list, preview, pause, run and remove schedules."""


@schedules.command(
    "set",
    epilog="""
    At each tick a job of KIND is enqueued, once, whatever the number of workers.
    Any worker or 'holdfast serve' does it. A schedule of this name is changed.

    Examples:
      holdfast schedules set nightly report.write '{"to": "ada"}' --cron @daily
      holdfast schedules set sweep files.sweep --every 15m --overlap skip
    """,
)
@click.argument("name")
@click.argument("kind")
@click.argument("payload", required=False)
@click.option("--cron", help="Five fields, or @hourly, @daily, @weekly, @monthly, @yearly.")
@click.option("--every", type=params.DURATION, metavar="DURATION", help="An interval, instead of --cron.")
@click.option("--zone", help="The time zone of --cron. Default: UTC.")
@click.option("--missed", type=click.Choice(["one", "skip"]), help="What is done for missed ticks. Default: one.")
@click.option("--overlap", type=click.Choice(["allow", "skip"]), help="While a job is unfinished. Default: allow.")
@click.option("--lane", help="The lane of its jobs.")
@click.option("--priority", type=int, metavar="N", help="The priority of its jobs.")
@_tenant
@pass_terminal
def set_(terminal: Terminal, /, name: str, kind: str, payload: str | None, **given: Any) -> None:
    """Set a schedule, or change the one of this name."""
    options = {option: value for option, value in given.items() if value is not None}
    with terminal.queue(create=True) as queue:
        with kind_names.hint_of_schema(kind):
            one = queue.schedules.set(name, kind=kind, payload=params.payload(payload), **options)
        times = _times(one) if one.cron is None else f"at {_times(one)}"
        terminal.report(json_view.schedule(one), f"schedule {one.name} enqueues {one.kind} {times}{_next(one)}")
        if not terminal.json:
            kind_names.note_unpublished(terminal, queue, [kind])


def _next(one: Schedule) -> str:
    return "; it is paused" if one.next_at is None else f", next at {formatting.timestamp(one.next_at)}"


def _times(one: Schedule) -> str:
    if one.cron is None:
        return f"every {formatting.interval(one.every or 0)}"
    return f"{one.cron} ({one.zone})"


@schedules.command(
    "list",
    epilog="""
    Examples:
      holdfast schedules list
      holdfast schedules list --json | jq '.schedules[].problem'
    """,
)
@click.option("--tenant", help="Only those of this tenant.")
@click.option(
    "--limit", type=int, default=100, show_default=True, metavar="N", help="The maximum number of schedules."
)
@pass_terminal
def list_(terminal: Terminal, tenant: str | None, limit: int) -> None:
    """List the schedules in order of tenant and name."""
    with terminal.queue() as queue:
        found = queue.schedules.list(tenant=tenant, limit=limit)
    if terminal.json:
        terminal.emit({"schedules": [json_view.schedule(one) for one in found]})
    elif found:
        now = terminal.now
        columns = [
            tables.Column("NAME", [one.name for one in found]),
            tables.Column("TENANT", [one.tenant for one in found], rank=1, hide_if=routing.DEFAULT_NAME),
            tables.Column("KIND", [one.kind for one in found]),
            tables.Column("TIMES", [_times(one) for one in found], min_width=12, wrap=True),
            tables.Column("NEXT", [_next_of(one, now) for one in found]),
            tables.Column("LAST", [_relative(one.last_at, now) for one in found], rank=2, hide_if=""),
            tables.Column("OWNER", [one.owner or "" for one in found], rank=3, hide_if=""),
            tables.Column("PROBLEM", [(one.problem or "")[:200] for one in found], rank=1, wrap=True, hide_if=""),
        ]
        terminal.show(tables.table(columns, terminal.out.width))
    else:
        terminal.note("there are no schedules; 'holdfast schedules set' makes one")


def _next_of(one: Schedule, now: datetime) -> str:
    return "paused" if one.paused else _relative(one.next_at, now) or "never"


def _relative(at: datetime | None, now: datetime) -> str:
    return "" if at is None else formatting.relative(at, now)


@schedules.command(
    epilog="""
    Times are in the time zone of the schedule, with their offset from UTC. On the
    nights when clocks change, a fixed time that does not exist runs at the first
    moment after the gap; one that occurs twice runs the first time.

    Examples:
      holdfast schedules preview nightly
      holdfast schedules preview nightly --count 30 --json
    """
)
@click.argument("name")
@click.option("--count", type=int, default=5, show_default=True, metavar="N", help="How many ticks to show.")
@_tenant
@pass_terminal
def preview(terminal: Terminal, name: str, count: int, tenant: str) -> None:
    """Show the next ticks of a schedule."""
    with terminal.queue() as queue:
        ticks = queue.schedules.preview(name, count=count, tenant=tenant)
    if terminal.json:
        terminal.emit({"name": name, "ticks_ms": [validation.milliseconds_of(tick) for tick in ticks]})
        return
    for tick in ticks:
        terminal.line(f"{tick:%a %Y-%m-%d %H:%M:%S %z}")


@schedules.command(
    epilog="""
    Ticks in the meantime are not made up for.

    Examples:
      holdfast schedules pause nightly
    """
)
@click.argument("name")
@_tenant
@pass_terminal
def pause(terminal: Terminal, name: str, tenant: str) -> None:
    """Enqueue no jobs of a schedule until it is resumed."""
    with terminal.queue() as queue:
        one = queue.schedules.pause(name, tenant=tenant)
    terminal.report(json_view.schedule(one), f"schedule {one.name} is paused")


@schedules.command(
    epilog="""
    Examples:
      holdfast schedules resume nightly
    """
)
@click.argument("name")
@_tenant
@pass_terminal
def resume(terminal: Terminal, name: str, tenant: str) -> None:
    """Continue a paused schedule with its next tick."""
    with terminal.queue() as queue:
        one = queue.schedules.resume(name, tenant=tenant)
    terminal.report(json_view.schedule(one), f"schedule {one.name} goes on{_next(one)}")


@schedules.command(
    epilog="""
    Its ticks stay as they are.

    Examples:
      holdfast schedules run nightly
    """
)
@click.argument("name")
@_tenant
@pass_terminal
def run(terminal: Terminal, name: str, tenant: str) -> None:
    """Enqueue a job of a schedule now."""
    with terminal.queue() as queue:
        job = queue.schedules.run(name, tenant=tenant)
    terminal.report(json_view.job(job), f"enqueued {job.id} ({job.kind}, {job.state})")


@schedules.command(
    epilog="""
    A schedule that a program declares is set again when a worker of that program
    starts; pause it instead.

    Examples:
      holdfast schedules remove nightly
    """
)
@click.argument("name")
@_tenant
@pass_terminal
def remove(terminal: Terminal, name: str, tenant: str) -> None:
    """Delete a schedule; its jobs stay."""
    with terminal.queue() as queue:
        one = queue.schedules.remove(name, tenant=tenant)
    again = "" if one.owner is None else f"; a worker that starts with module {one.owner} sets it again"
    terminal.report(json_view.schedule(one), f"schedule {one.name} is removed{again}")
