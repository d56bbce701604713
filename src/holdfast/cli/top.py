"""`holdfast top`: the overview of a queue, live on the whole screen."""

import contextlib
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from holdfast import HoldfastError, Queue, errors as library_errors, json_view
from holdfast.cli import formatting, options, params, tables
from holdfast.cli.terminal import Terminal
from holdfast.domain import limits, overview
from holdfast.types import LaneFlow, Need, Overview, WorkerModels

_BARS: Final = "▁▂▃▄▅▆▇█"
_ASCII_BARS: Final = ".:-=+*#@"
_SENTENCE_STYLES: Final = {"working": "bold green", "idle": "bold", "stopped": "bold red"}
_NEED_STYLES: Final = {"problem": "red", "warning": "yellow"}
_FLOW_STYLES: Final = {"arrived": "cyan", "done": "green", "failed": "red"}
_UNBOUNDED: Final = 10_000
_PLAIN: Final = Console()
# The lines of the sentence, the counts and the flow, and those above the rows of a table.
_FIXED_LINES: Final = 7
_LANES_HEAD: Final = 4
_LANES_LEAST: Final = 3
_MODELS_MOST: Final = 5
_MODELS_LEAST: Final = 1

SORTS: Final[Mapping[str, Callable[[LaneFlow], Any]]] = {
    "oldest": lambda one: (-one.oldest_age_seconds, one.lane),
    "ready": lambda one: (-one.ready, one.lane),
    "failed": lambda one: (-one.failed, one.lane),
    "name": lambda one: one.lane,
}
"""The orders of lanes, of which the key `s` selects the next."""


@click.command(
    cls=options.Command,
    epilog="""
    Keys: q quits, p pauses and continues, s sorts the lanes by the next of oldest,
    ready, failed and name. Without a terminal it prints the overview once, as with
    --once. The numbers of the flow are written by processes every ten seconds.

    Examples:
      holdfast top --once
      holdfast top --once --json
      holdfast top --every 5s --once
    """,
)
@click.option("--once", is_flag=True, help="Print the overview once and exit.")
@click.option(
    "--every", type=params.DURATION, default="2s", show_default=True, metavar="DURATION", help="How often it is read."
)
@options.pass_terminal
def top(terminal: Terminal, once: bool, every: float) -> None:
    """Show what needs you, the flow of jobs, lanes and models."""
    with terminal.queue() as queue:
        if terminal.json:
            terminal.emit(json_view.overview(queue.admin.overview()))
        elif once or not terminal.draws:
            lines = draw(queue.admin.overview(), terminal.out.width, _UNBOUNDED, plain=_is_plain(terminal))
            terminal.show(lines)
        else:
            # An interrupt is how it ends.
            with contextlib.suppress(KeyboardInterrupt):
                _run(terminal, queue, max(every, 0.2))


def _is_plain(terminal: Terminal) -> bool:
    return not terminal.out.encoding.startswith("utf")


def _run(terminal: Terminal, queue: Queue, seconds: float) -> None:
    """Draw the overview until `q` or an interrupt; while the store does not answer, the last one with the error."""
    console = terminal.out
    seen = queue.admin.overview()
    problem, paused, sort = "", False, "oldest"

    def drawn() -> RenderableType:
        height = console.height - 1 - bool(problem)
        screen = draw(seen, console.width, height, plain=_is_plain(terminal), sort=sort)
        above = [Text(formatting.clean(problem, keep=""), "bold red")] if problem else []
        return Group(*above, screen, _keys_line(sort, console.width, paused=paused))

    with _Keys() as keys, Live(console=console, get_renderable=drawn, screen=True, auto_refresh=False) as live:
        while True:
            live.refresh()
            read_at = time.monotonic() + seconds
            while (key := keys.wait(read_at)) is not None:
                if key == "q":
                    return
                if key == "p":
                    paused = not paused
                elif key == "s":
                    sort = _after(sort)
                live.refresh()
            try:
                if not paused:
                    seen, problem = queue.admin.overview(), ""
            except library_errors.Unavailable as error:
                problem = _unavailable(error)


def _after(sort: str) -> str:
    names = list(SORTS)
    return names[(names.index(sort) + 1) % len(names)]


def _keys_line(sort: str, width: int, *, paused: bool) -> Text:
    line = Text("paused  ", "bold yellow") if paused else Text("")
    line.append(f"q quit · p {'continue' if paused else 'pause'} · s sort lanes by {_after(sort)}", "dim")
    line.truncate(width)
    return line


class _Keys:
    """The keys that are typed, read one by one and without being shown."""

    def __init__(self) -> None:
        self._file = sys.stdin.fileno() if sys.stdin.isatty() else None
        self._before: list[Any] | None = None

    def __enter__(self) -> "_Keys":
        if self._file is not None:
            self._before = termios.tcgetattr(self._file)
            tty.setcbreak(self._file)
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None and self._before is not None:
            termios.tcsetattr(self._file, termios.TCSADRAIN, self._before)

    def wait(self, until: float) -> str | None:
        """Return the next key, or None at a time of the monotonic clock."""
        seconds = max(0.0, until - time.monotonic())
        if self._file is None:
            time.sleep(seconds)
            return None
        if not select.select([self._file], [], [], seconds)[0]:
            return None
        typed = os.read(self._file, 1)
        if not typed:
            # The terminal is gone.
            return "q"
        return typed.decode("ascii", "replace").lower()


def _unavailable(error: HoldfastError) -> str:
    return f"the store does not answer, this is the last overview: {error}"


# --- drawing -------------------------------------------------------------------------------------------------------


def draw(seen: Overview, width: int, height: int, *, plain: bool = False, sort: str = "oldest") -> Group:
    """Return the overview for a terminal of *width* and *height*: needs and lanes share the lines that are left."""
    lanes = sorted(seen.lanes, key=SORTS[sort])
    lane_lines = _LANES_HEAD + min(len(lanes), _LANES_LEAST) if lanes else 0
    head, flow = (_wrapped(texts, width) for texts in (_head(seen, width), _flow(seen, width, plain=plain)))
    free = height - len(head) - len(flow) - lane_lines
    model_rows = min(len(seen.models), _MODELS_MOST if height >= 2 * _FIXED_LINES + 20 else _MODELS_LEAST)
    models = _models(seen.models, model_rows, width)
    lines = [*head, *_needs(seen, width, free - len(models)), *flow]
    left = height - len(lines) - len(models) - _LANES_HEAD
    parts: list[RenderableType] = list(lines)
    if lanes and left > 0:
        parts += [Text(""), Text("Lanes", "bold"), _lanes(lanes[:left], width)]
    return Group(*parts, *models)


def _head(seen: Overview, width: int) -> Iterator[Text]:
    at = f"{seen.at:%H:%M:%S} UTC"
    gap = width - len(seen.sentence) - len(at)
    line = Text(seen.sentence, _SENTENCE_STYLES[seen.activity])
    if 2 <= gap < _UNBOUNDED // 2:
        line.append(" " * gap + at, "dim")
    yield line
    active = sum(one.state == "active" for one in seen.workers)
    counts = (
        f"{_bounded(seen.ready)} ready",
        f"{_bounded(seen.running)} running",
        f"{_bounded(seen.scheduled)} scheduled" if seen.scheduled else "",
        f"{_bounded(seen.blocked)} blocked" if seen.blocked else "",
        f"{_bounded(seen.dependent)} dependent" if seen.dependent else "",
        f"{_bounded(seen.parked)} parked" if seen.parked else "",
        f"oldest {_seconds(seen.oldest_age_seconds)}" if seen.ready else "",
        formatting.number(active, "active worker"),
    )
    yield Text(" · ".join(filter(None, counts)), "dim")


def _needs(seen: Overview, width: int, lines: int) -> Iterator[Text]:
    """Return what needs an operator, each in two lines, or in one if there is not enough room."""
    if not seen.needs:
        return
    yield Text("")
    yield Text("Needs you", "bold")
    rows = max(lines - 2, 1)
    shown = seen.needs
    whole = [line for need in shown for line in _need(seen, need, width)]
    if len(whole) + (seen.needs_total > len(shown)) > rows:
        if len(shown) + (seen.needs_total > len(shown)) > rows:
            shown = shown[: max(rows - 1, 1)]
        whole = [line for need in shown for line in _need_in_one_line(seen, need, width)]
    yield from whole
    if hidden := seen.needs_total - len(shown):
        yield Text(f"  and {hidden} more", "dim")


def _need(seen: Overview, need: Need, width: int) -> list[Text]:
    room = width - len(need.command) - 4
    detail = _shortened(f"  {need.cause}", room, "dim").append("  ") if need.cause and room > 20 else Text("  ")
    what = Text(formatting.clean(_what(seen, need), keep=""), _NEED_STYLES[need.severity])
    return _wrapped([what, _with_command(detail, need)], width)


def _need_in_one_line(seen: Overview, need: Need, width: int) -> Iterator[Text]:
    what = _what(seen, need)
    if len(what) + len(need.command) + 4 > width:
        # What is the matter comes first; the command is shown where there is more room.
        yield _shortened(what, width, _NEED_STYLES[need.severity])
        return
    yield _with_command(_shortened(what, width, _NEED_STYLES[need.severity]).append("  "), need)


def _what(seen: Overview, need: Need) -> str:
    since = f", since {formatting.relative(need.since_at, seen.at)}" if need.since_at else ""
    whose = f" ({', '.join(need.whose[:3])})" if need.whose not in {(), ("default",)} else ""
    return f"! {need.what}{whose}{since}"


def _with_command(line: Text, need: Need) -> Text:
    return Text.assemble(line, ("$ ", "dim"), (formatting.clean(need.command, keep=""), "cyan"))


def _flow(seen: Overview, width: int, *, plain: bool) -> Iterator[Text]:
    yield Text("")
    minutes = seen.flow[-max(min(width - 30, 60), 10) :]
    yield Text(f"Flow, jobs per minute in the last {len(minutes)} minutes", "bold")
    largest = max((max(one.arrived, one.done, one.failed) for one in minutes), default=0)
    for name, style in _FLOW_STYLES.items():
        values = [getattr(one, name) for one in minutes]
        line = Text(f"{name:<8}")
        line.append(spark(values, largest, plain=plain), style)
        yield line.append(f"  {sum(values):,} in total", "dim")


def spark(values: Sequence[int], largest: int, *, plain: bool = False) -> str:
    """Return one bar for each value, at most one line high; none for zero."""
    bars = _ASCII_BARS if plain else _BARS
    if not largest:
        return " " * len(values)
    return "".join(" " if not value else bars[min(value * len(bars) // (largest + 1), 7)] for value in values)


def _lanes(lanes: Sequence[LaneFlow], width: int) -> RenderableType:
    columns = [
        tables.Column("LANE", [one.lane for one in lanes], min_width=10),
        tables.Column("STATE", [one.state for one in lanes], rank=3, states=True, hide_if="active"),
        tables.Column("READY", [_bounded(one.ready) for one in lanes], justify="right"),
        tables.Column(
            "OLDEST", [_seconds(one.oldest_age_seconds) if one.ready else "" for one in lanes], 1, justify="right"
        ),
        tables.Column("NEW/10m", [f"{one.arrived:,}" for one in lanes], 2, justify="right"),
        tables.Column("DONE/10m", [f"{one.done:,}" for one in lanes], 2, justify="right"),
        tables.Column("FAILED/10m", [f"{one.failed:,}" for one in lanes], 2, justify="right"),
        tables.Column("WAITS p95", [_seconds(one.waited_seconds) for one in lanes], 4, justify="right"),
        tables.Column("RUNS p95", [_seconds(one.ran_seconds) for one in lanes], 4, justify="right"),
    ]
    return tables.table(columns, width)


def _models(models: Sequence[WorkerModels], rows: int, width: int) -> list[Text]:
    if not models:
        return []
    lines = []
    for one in models[:rows]:
        about = ", ".join(filter(None, (", ".join(one.loaded) or "nothing loaded", overview.models_text(one))))
        lines.append(_shortened(f"{one.worker}: {about}", width, ""))
    return [Text(""), Text("Models", "bold"), *lines]


def _bounded(number: int) -> str:
    return f"{number:,}{'+' if number >= limits.BACKLOG_COUNTED_MAX else ''}"


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else formatting.duration(1000 * seconds)


def _wrapped(texts: Iterable[Text], width: int) -> list[Text]:
    """Return the lines that *texts* take on a terminal of *width*: nothing is cut off."""
    return [line for text in texts for line in text.wrap(_PLAIN, max(width, 10), overflow="fold")]


def _shortened(text: str, width: int, style: str) -> Text:
    line = Text(formatting.clean(text, keep=""), style)
    line.truncate(max(width, 10), overflow="ellipsis")
    return line
