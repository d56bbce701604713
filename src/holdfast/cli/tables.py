"""Tables that fit the terminal: columns with only default values and columns of low importance are left out."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rich import box
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from holdfast import Queue, types
from holdfast.cli import formatting
from holdfast.domain import job, webhooks

STATE_STYLES = {
    "scheduled": "blue",
    "blocked": "magenta",
    "dependent": "magenta",
    "parked": "magenta",
    "ready": "cyan",
    "running": "yellow",
    "done": "green",
    "failed": "red",
    "cancelled": "dim",
    "retired": "dim",
    "deferred": "blue",
    "released": "cyan",
    "expired": "red",
    "active": "green",
    "paused": "yellow",
    "draining": "magenta",
    "stopping": "yellow",
    "silent": "red",
    "ok": "green",
    "warning": "yellow",
    "problem": "bold red",
}
_GAP = 2


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its title, its cells, and how it is shortened or left out."""

    title: str
    cells: Sequence[str]
    rank: int = 0
    """Columns of a higher rank are left out first; columns of rank 0 are always shown."""
    min_width: int | None = None
    """The width to which cells may be shortened; None if they are never shortened."""
    hide_if: str | None = None
    """The column is left out if all its cells have this value."""
    style: str = ""
    states: bool = False
    """Whether the cells are states and use their styles."""
    wrap: bool = False
    justify: Literal["left", "right"] = "left"

    @property
    def shown(self) -> list[str]:
        """The cells, safe to print."""
        return [formatting.clean(cell, keep="") for cell in self.cells]

    @property
    def natural(self) -> int:
        """The width of the widest cell."""
        return max(map(cell_len, (self.title, *self.shown)))

    @property
    def narrowest(self) -> int:
        """The smallest width at which the column is shown."""
        if self.min_width is None:
            return self.natural
        return min(self.natural, max(self.min_width, cell_len(self.title)))


def table(columns: Sequence[Column], width: int) -> Table:
    """Return *columns* as a table for a terminal of *width* columns."""
    chosen = fitting(columns, width)
    # The header's line takes one character of each gap.
    drawn = Table(
        box=box.SIMPLE_HEAD, show_edge=False, padding=(0, _GAP - 1, 0, 0), pad_edge=False, header_style="bold"
    )
    for column, cells_wide in zip(chosen, widths(chosen, width), strict=True):
        drawn.add_column(
            column.title,
            style=column.style,
            justify=column.justify,
            no_wrap=not column.wrap,
            overflow="fold" if column.wrap else "ellipsis",
            width=cells_wide,
        )
    for row in zip(*(column.shown for column in chosen), strict=True):
        drawn.add_row(*(_cell(column, value) for column, value in zip(chosen, row, strict=True)))
    return drawn


def tally_of(queue: Queue) -> list[types.Tally]:
    """Count all jobs of *queue*, also those of the lane of deliveries, which other counts leave out."""
    return [*queue.admin.tally(), *queue.admin.tally(lane=webhooks.LANE)]


def by_state(tally: Iterable[tuple[str, types.Tally]]) -> dict[str, dict[str, int]]:
    """Return the numbers of jobs by name and state."""
    counts: dict[str, dict[str, int]] = {}
    for name, one in tally:
        states = counts.setdefault(name, {})
        states[one.state] = states.get(one.state, 0) + one.jobs
    return counts


def counts_columns(counts: Sequence[Mapping[str, int]]) -> list[Column]:
    """Return one column per state, with the numbers of jobs in *counts*."""
    return [
        Column(state.upper(), [f"{row.get(state, 0):,}" for row in counts], rank=3, hide_if="0", justify="right")
        for state in job.STATES
    ]


def fitting(columns: Sequence[Column], width: int) -> list[Column]:
    """Return the columns to show in *width*."""
    chosen = [column for column in columns if not _is_hidden(column)]
    while _total(column.narrowest for column in chosen) > width:
        dispensable = max(chosen, key=lambda column: column.rank)
        if dispensable.rank == 0:
            break
        chosen.remove(dispensable)
    return chosen


def widths(columns: Sequence[Column], width: int) -> list[int]:
    """Return the width of each column; the widest columns are shortened until all fit into *width*."""
    found = [column.natural for column in columns]
    least = [column.narrowest for column in columns]
    for _ in range(_total(found) - width):
        spare = [index for index, narrowest in enumerate(least) if found[index] > narrowest]
        if not spare:
            break
        found[max(spare, key=found.__getitem__)] -= 1
    return found


def _total(cells_wide: Iterable[int]) -> int:
    parts = list(cells_wide)
    return sum(parts) + _GAP * (len(parts) - 1)


def _is_hidden(column: Column) -> bool:
    return column.hide_if is not None and all(cell == column.hide_if for cell in column.cells)


def _cell(column: Column, value: str) -> Text:
    return Text(value, STATE_STYLES.get(value, "") if column.states else "")
