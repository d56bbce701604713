"""Tables that fit: a column that says nothing is left out, the least telling ones give way where space is short."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rich import box
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from holdfast import Tally
from holdfast.cli.formatting import clean
from holdfast.domain.job import STATES

STATE_STYLES = {
    "scheduled": "blue",
    "blocked": "magenta",
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
    """One column: its title, its cells from top to bottom, and how it behaves where space is short."""

    title: str
    cells: Sequence[str]
    rank: int = 0
    """Columns of a higher rank are left out first; those of rank 0 always stay."""
    floor: int | None = None
    """The width down to which it may be shortened; without one it is never shortened."""
    silent: str | None = None
    """The value that says nothing: a column of nothing else is left out."""
    style: str = ""
    states: bool = False
    """Whether its cells are states and take their colours."""
    wrap: bool = False
    justify: Literal["left", "right"] = "left"

    @property
    def shown(self) -> list[str]:
        """The cells, safe to show."""
        return [clean(cell, keep="") for cell in self.cells]

    @property
    def natural(self) -> int:
        """The width at which nothing is shortened."""
        return max(map(cell_len, (self.title, *self.shown)))

    @property
    def narrowest(self) -> int:
        """The least width at which it is worth showing."""
        return self.natural if self.floor is None else min(self.natural, max(self.floor, cell_len(self.title)))


def table(columns: Sequence[Column], width: int) -> Table:
    """Return *columns* as a table for a terminal of *width* columns."""
    chosen = fitting(columns, width)
    # The line of the head takes one column of each gap.
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


def by_state(tally: Iterable[tuple[str, Tally]]) -> dict[str, dict[str, int]]:
    """Return the numbers of jobs by state for each name that *tally* pairs them with."""
    counts: dict[str, dict[str, int]] = {}
    for name, one in tally:
        states = counts.setdefault(name, {})
        states[one.state] = states.get(one.state, 0) + one.jobs
    return counts


def counts_columns(counts: Sequence[Mapping[str, int]]) -> list[Column]:
    """Return a column for each state that any row of *counts*, numbers of jobs by state, has."""
    return [
        Column(state.upper(), [f"{row.get(state, 0):,}" for row in counts], rank=3, silent="0", justify="right")
        for state in STATES
    ]


def fitting(columns: Sequence[Column], width: int) -> list[Column]:
    """Return the columns that are worth showing and fit into *width*."""
    chosen = [column for column in columns if not _says_nothing(column)]
    while _total(column.narrowest for column in chosen) > width:
        dispensable = max(chosen, key=lambda column: column.rank)
        if dispensable.rank == 0:
            break
        chosen.remove(dispensable)
    return chosen


def widths(columns: Sequence[Column], width: int) -> list[int]:
    """Return how wide each column is: as wide as its cells, or the widest of them cut until all fit into *width*."""
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


def _says_nothing(column: Column) -> bool:
    return column.silent is not None and all(cell == column.silent for cell in column.cells)


def _cell(column: Column, value: str) -> Text:
    return Text(value, STATE_STYLES.get(value, "") if column.states else "")
