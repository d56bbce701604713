"""`holdfast stats`: count jobs by state, kind, lane, tenant or failure class."""

import click

from holdfast import json_view
from holdfast.cli import options, tables
from holdfast.cli.terminal import Terminal
from holdfast.domain import job, results

_BAR_WIDTH = 40
_EIGHTHS = " ▏▎▍▌▋▊▉"


@click.command(
    cls=options.Command,
    epilog="""
    This reads every job; do not call it often.

    Examples:
      holdfast stats
      holdfast stats --by kind --json
    """,
)
@click.option(
    "--by", type=click.Choice(results.COUNT_BY), default="state", show_default=True, help="The property to count by."
)
@click.option("--tenant", help="Only jobs of this tenant.")
@options.pass_terminal
def stats(terminal: Terminal, by: results.CountBy, tenant: str | None) -> None:
    """Count jobs."""
    with terminal.queue() as queue:
        counts = queue.counts(by=by, tenant=tenant)
        # Unserved jobs are not counted by tenant.
        unserved = queue.admin.unserved() if tenant is None else []
    if terminal.json:
        found = [json_view.unserved(one) for one in unserved]
        terminal.emit({"by": by, "counts": counts, "total": sum(counts.values()), "unserved": found})
    elif counts:
        _draw(terminal, by, counts)
        for one in unserved:
            terminal.note(one.text())
    else:
        terminal.note("there are no jobs to count")


def _draw(terminal: Terminal, by: results.CountBy, counts: dict[str, int]) -> None:
    names = _ordered(by, counts)
    numbers = [counts[name] for name in names]
    total = sum(numbers)
    solid = not terminal.out.encoding.startswith("utf")
    columns = [
        tables.Column(by.replace("_", " ").upper(), [*names, "total"], states=by == "state"),
        tables.Column("JOBS", [*(f"{number:,}" for number in numbers), f"{total:,}"], justify="right"),
        tables.Column("SHARE", [*(_share(number, total) for number in numbers), ""], rank=1, justify="right"),
        tables.Column(
            "", [*(bar(number, max(numbers), ascii_only=solid) for number in numbers), ""], rank=2, style="cyan"
        ),
    ]
    terminal.show(tables.table(columns, terminal.out.width))


def _ordered(by: results.CountBy, counts: dict[str, int]) -> list[str]:
    """Return states in the order of a job's life cycle, other names by descending count."""
    if by == "state":
        return [state for state in job.STATES if state in counts]
    return sorted(counts, key=lambda name: (-counts[name], name))


def _share(number: int, total: int) -> str:
    return f"{100 * number / total:.0f} %" if total else ""


def bar(number: int, largest: int, *, ascii_only: bool = False) -> str:
    """Return a bar proportional to *number* / *largest*; it is never empty if *number* is positive."""
    if not number or not largest:
        return ""
    eighths = max(round(8 * _BAR_WIDTH * number / largest), 1)
    if ascii_only:
        return "#" * max(eighths // 8, 1)
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip()
