"""`holdfast limits`: how many jobs of one key run at once, or start per time."""

from typing import Any

import click

from holdfast import json_view
from holdfast.cli import formatting, kind_names, params, tables
from holdfast.cli.options import Group, pass_terminal
from holdfast.cli.terminal import Terminal
from holdfast.domain.gates import KeyUse, Limit


@click.group(
    cls=Group,
    epilog="""
    Examples:
      holdfast limits set llm --kind llm.call --key tenant --concurrency 2
      holdfast limits show acme
      holdfast limits remove llm
    """,
)
def limits() -> None:
    """Set, list, show and remove limits by key."""


@limits.command(
    "set",
    epilog="""
    A limit concerns the jobs of its kinds or lanes and counts them by key: tenant,
    affinity, tag:NAME, given (the limit_key of a job), or all of them together. It
    applies to every claim from now on. A limit of this name is changed.

    Examples:
      holdfast limits set llm --kind llm.call --key tenant --concurrency 2
      holdfast limits set api --lane partner --rate 60 --per 1m --burst 10
      holdfast limits set tokens --kind llm.call --rate 90000 --weight tokens
    """,
)
@click.argument("name")
@click.option("--kind", "kinds", multiple=True, help="A kind of its jobs. Repeatable.")
@click.option("--lane", "lanes", multiple=True, help="A lane of its jobs. Repeatable.")
@click.option("--key", default="all", show_default=True, help="What its jobs are counted by.")
@click.option("--concurrency", type=int, metavar="N", help="How many jobs of one key run at once.")
@click.option("--rate", type=int, metavar="N", help="How many jobs of one key start in --per.")
@click.option("--per", type=params.DURATION, metavar="DURATION", help="The time of --rate. Default: 1m.")
@click.option("--burst", type=int, metavar="N", help="How many may start at once. Default: --rate.")
@click.option("--weight", metavar="NAME", help="What --rate counts instead of starts, such as tokens.")
@pass_terminal
def set_(terminal: Terminal, /, name: str, **given: Any) -> None:
    """Set a limit, or change the one of this name."""
    options = {option: value for option, value in given.items() if value not in (None, ())}
    with terminal.queue(create=True) as queue:
        one = queue.limits.set(name, **options)
        terminal.report(json_view.limit(one), f"limit {one.name} for {_jobs(one)}{_by(one)}: {_amount(one)}")
        if not terminal.json:
            kind_names.note_unpublished(terminal, queue, one.kinds or ())


def _amount(one: Limit) -> str:
    parts = []
    if one.concurrency is not None:
        parts.append(f"{one.concurrency} at once")
    if one.rate is not None:
        per = formatting.interval(one.per or 0)
        parts.append(
            f"{one.rate} {one.weight or 'starts'} in {per}"
            + ("" if one.burst == one.rate else f", burst {one.burst}")
        )
    return "; ".join(parts)


def _jobs(one: Limit) -> str:
    kinds = "any kind" if one.kinds is None else ", ".join(one.kinds)
    return kinds if one.lanes is None else f"{kinds} in lane {' or '.join(one.lanes)}"


def _by(one: Limit) -> str:
    return ", all together" if one.key == "all" else f" by {one.key}"


@limits.command(
    "list",
    epilog="""
    Examples:
      holdfast limits list
      holdfast limits list --json | jq '.limits[].name'
    """,
)
@pass_terminal
def list_(terminal: Terminal) -> None:
    """List the limits in order of their names."""
    with terminal.queue() as queue:
        found = queue.limits.list()
    if terminal.json:
        terminal.emit({"limits": [json_view.limit(one) for one in found]})
    elif found:
        columns = [
            tables.Column("NAME", [one.name for one in found]),
            tables.Column("JOBS", [_jobs(one) for one in found], wrap=True, min_width=12),
            tables.Column("KEY", [one.key for one in found]),
            tables.Column("LIMIT", [_amount(one) for one in found], wrap=True, min_width=12),
        ]
        terminal.show(tables.table(columns, terminal.out.width))
    else:
        terminal.note("there are no limits; 'holdfast limits set' makes one")


@limits.command(
    epilog="""
    Examples:
      holdfast limits show acme
      holdfast limits show acme --json
    """
)
@click.argument("key")
@pass_terminal
def show(terminal: Terminal, key: str) -> None:
    """Show how a key uses each limit."""
    with terminal.queue() as queue:
        found = queue.limits.show(key)
    if terminal.json:
        terminal.emit({"limits": [json_view.key_use(one) for one in found]})
    elif found:
        columns = [
            tables.Column("LIMIT", [one.limit for one in found]),
            tables.Column("RUNNING", [_running(one) for one in found], justify="right"),
            tables.Column("PARKED", [f"{one.parked:,}" for one in found], justify="right"),
            tables.Column(
                "LEFT", ["" if one.left is None else f"{one.left:,}" for one in found], hide_if="", justify="right"
            ),
            tables.Column("OPENS", [_opens(one, terminal) for one in found], hide_if=""),
        ]
        terminal.show(tables.table(columns, terminal.out.width))
    else:
        terminal.note("no limit is in use by this key")


def _running(one: KeyUse) -> str:
    if one.running is None:
        return "-"
    return str(one.running) if one.concurrency is None else f"{one.running} of {one.concurrency}"


def _opens(one: KeyUse, terminal: Terminal) -> str:
    return "" if one.opens_at is None else formatting.relative(one.opens_at, terminal.now)


@limits.command(
    epilog="""
    Examples:
      holdfast limits remove llm
    """
)
@click.argument("name")
@pass_terminal
def remove(terminal: Terminal, name: str) -> None:
    """Delete a limit; jobs that wait for room become ready."""
    with terminal.queue() as queue:
        one = queue.limits.remove(name)
    terminal.report(json_view.limit(one), f"limit {one.name} is removed")
