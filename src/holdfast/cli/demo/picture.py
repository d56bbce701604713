"""The display of the demo: a live screen on a terminal, else plain lines."""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Final, Protocol

import click
from rich.console import Console, Group, RenderableType
from rich.layout import Layout
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from holdfast import Job
from holdfast.cli.demo import processes, story

_STYLES: Final[dict[story.Tone, str]] = {
    "plain": "default",
    "good": "green",
    "warning": "yellow",
    "bad": "bold red",
    "fence": "bold magenta",
    "act": "bold cyan",
}
_STATES: Final = (
    ("ready", "ready", "cyan"),
    ("scheduled", "retry later", "yellow"),
    ("running", "running", "blue"),
    ("done", "done", "green"),
    ("failed", "failed", "red"),
)
_ROW_STYLES: Final = {"up": "default", "killed": "red", "frozen": "yellow"}
_CONDITION_STYLES: Final = {"working": "green", "idle": "dim", "killed": "bold red", "frozen": "bold yellow"}
# Fixed widths keep the layout stable while the numbers change.
_COLUMNS: Final = {"worker": 8, "process": 7, "job": 7, "kind": 16, "epoch": 5, "lease": 6, "progress": 20}
_WIDE: Final = 100
_WIDTH_MIN: Final = 76
_HEIGHT_MIN: Final = 20


class Stage(Protocol):
    """A display of the demo."""

    def open(self) -> AbstractContextManager[object]:
        """Return a context in which `show` may be called."""
        ...

    def show(self, scene: story.Scene) -> None:
        """Show the current state of the scene."""
        ...


class PlainStage:
    """Prints each message once, as a line with its time."""

    def __init__(self) -> None:
        self._printed = 0

    def open(self) -> AbstractContextManager[object]:
        """Return a context without effect."""
        return nullcontext()

    def show(self, scene: story.Scene) -> None:
        """Print new messages."""
        for message in scene.messages[self._printed :]:
            click.echo(f"{message.at:6.1f} s  {message.text}")
        self._printed = len(scene.messages)


class QuietStage:
    """Shows nothing; with `--json` only the result is printed."""

    def open(self) -> AbstractContextManager[object]:
        """Return a context without effect."""
        return nullcontext()

    def show(self, scene: story.Scene) -> None:
        """Do nothing."""


class LiveStage:
    """Draws the scene on the terminal's alternate screen."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, screen=True, auto_refresh=False)

    def open(self) -> AbstractContextManager[object]:
        """Return a context that switches to the alternate screen and restores the terminal."""
        return self._live

    def show(self, scene: story.Scene) -> None:
        """Redraw the scene."""
        self._live.update(Picture(self._console, scene).draw(), refresh=True)


def can_draw(console: Console) -> bool:
    """Return whether the terminal is large enough for the live screen."""
    width, height = console.size
    return console.is_terminal and not console.is_dumb_terminal and width >= _WIDTH_MIN and height >= _HEIGHT_MIN


class Picture:
    """One drawing of a scene, sized for the console."""

    def __init__(self, console: Console, scene: story.Scene) -> None:
        self._scene = scene
        self._width, self._height = console.size
        self._full, self._empty = ("#", ".") if console.options.ascii_only else ("█", "░")

    def draw(self) -> Layout:
        """Return the layout: title, jobs, workers and log."""
        layout = Layout()
        # The parts above the log, borders included.
        jobs_height, workers_height = len(_STATES) + 2, len(self._scene.workers.members) + 3
        layout.split_column(
            Layout(self._title(), size=3),
            Layout(
                Panel(self._jobs(), title=f"jobs: {self._scene.acknowledged} acknowledged", title_align="left"),
                size=jobs_height,
            ),
            Layout(Panel(self._workers(), title="worker processes", title_align="left"), size=workers_height),
            Layout(self._log(self._height - 5 - jobs_height - workers_height)),
        )
        return layout

    def _title(self) -> RenderableType:
        scene = self._scene
        title = Table.grid(expand=True)
        title.add_column()
        title.add_column(justify="right")
        name = Text("Holdfast", "bold").append(": three worker processes on one SQLite file", "not bold")
        title.add_row(name, Text(f"{scene.at:.1f} s", "dim"))
        act = story.ACTS[scene.act - 1]
        played = Text(f"{scene.act} of {len(story.ACTS)}  {act.title}", "bold cyan")
        return Group(title, played, Text(act.why, "cyan", no_wrap=True, overflow="ellipsis"))

    def _jobs(self) -> RenderableType:
        table = Table.grid(padding=(0, 1))
        width = self._width - 4 - 12 - 5
        for state, label, style in _STATES:
            count = self._scene.counts.get(state, 0)
            table.add_row(
                f"{label:<11}", f"{count:>3}", self._bar(count / max(self._scene.acknowledged, 1), width, style)
            )
        return table

    def _workers(self) -> RenderableType:
        table = Table(box=None, expand=True, padding=(0, 1, 0, 0), header_style="dim")
        for name, width in _COLUMNS.items():
            right = name in {"epoch", "lease"}
            table.add_column(name, no_wrap=True, min_width=width, justify="right" if right else "left")
        for worker, member in self._scene.workers.members.items():
            table.add_row(*self._worker(worker, member), style=_ROW_STYLES[member.condition])
        return table

    def _worker(self, worker: str, member: processes.Member) -> Iterable[RenderableType]:
        held = self._scene.running.get(worker)
        condition = member.condition if member.condition != "up" else "working" if held else "idle"
        process = Text(condition, _CONDITION_STYLES[condition])
        if self._width >= _WIDE:
            process.append(f" (pid {member.pid})", "dim")
        if held is not None:
            epoch = Text(str(held.epoch), "bold green" if held.epoch > 1 else "")
            return (worker, process, held.id, held.kind, epoch, self._lease(held), self._progress(held))
        if member.believes is not None:
            believed = member.believes
            lost = Text("lost", "bold red")
            return (worker, process, believed.id, believed.kind, str(believed.epoch), lost, "does not know it yet")
        return (worker, process, "", "", "", "", "")

    def _lease(self, held: Job) -> Text:
        left = self._scene.lease_left.get(held.id, 0.0)
        if left <= 0:
            return Text("expired", "bold red")
        return Text(f"{left:.1f} s", "yellow" if left < self._scene.pace.lease / 2 else "")

    def _progress(self, held: Job) -> Text:
        percent = held.percent or 0.0
        bar = self._bar(percent / 100, 24 if self._width >= _WIDE else 6, "blue")
        return bar.append(f" {percent:>3.0f}% {held.phase or ''}")

    def _log(self, lines: int) -> Panel:
        # The title shows the act.
        messages = [message for message in self._scene.messages if message.tone != "act"]
        text = Text("\n", no_wrap=True, overflow="ellipsis").join(map(_line, messages[-max(lines, 1) :]))
        return Panel(text, title="what happened", title_align="left")

    def _bar(self, share: float, width: int, style: str) -> Text:
        # A positive share fills at least one cell.
        filled = min(max(round(share * width), 1 if share > 0 else 0), width)
        return Text(self._full * filled, style).append(self._empty * (width - filled), "dim")


def _line(message: story.Message) -> Text:
    return Text(f"{message.at:5.1f} s  ", "dim").append(message.text, _STYLES[message.tone])
