"""`holdfast demo`: kill a worker and freeze another, and show that no job is lost and stale writes are refused.

This module contains the command: it creates the store, runs the scenario and prints the summary.
"""

import asyncio
import logging
import shlex
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

import click
from rich.table import Table
from rich.text import Text

import holdfast
from holdfast.cli import errors, options, serving
from holdfast.cli.demo import picture, plan, processes
from holdfast.cli.demo.checks import Check, Record, collect, examine
from holdfast.cli.demo.story import GaveUp, Story
from holdfast.cli.terminal import Terminal

_NORMAL_SECONDS: Final = 30.0
_WEB_SECONDS: Final = 90.0
_FAST_SECONDS: Final = 7.0
_STOP_SECONDS: Final = 15.0
"""How long the dashboard may take to stop."""

EPILOG = """
Examples:
  holdfast demo
  holdfast demo --keep demo.db
  holdfast demo --fast --plain
  holdfast demo --web

The demo uses a temporary queue, which is deleted at the end unless --keep is
given. It ignores --url. With --web it prints lines, and the dashboard and the
workers stay until Ctrl-C.
"""


@click.command(cls=options.Command, opens_store=False, epilog=EPILOG)
@click.option(
    "--seconds",
    type=click.FloatRange(5, 300),
    metavar="SECONDS",
    help=f"The approximate duration; {_NORMAL_SECONDS:g} by default, {_WEB_SECONDS:g} with --web.",
)
@click.option("--fast", is_flag=True, help=f"The same as --seconds {_FAST_SECONDS:g}.")
@click.option(
    "--keep",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Use this file, which must not exist, and keep it.",
)
@click.option("--plain", is_flag=True, help="Print lines instead of a live screen; the default without a terminal.")
@click.option("--web", is_flag=True, help="Show it in the dashboard too; needs the extra `server`.")
@options.pass_terminal
def demo(terminal: Terminal, seconds: float | None, fast: bool, keep: Path | None, plain: bool, web: bool) -> None:
    """Show with real processes what happens when workers die.

    Three workers share one SQLite file. One is killed in the middle of a job, one is frozen past its lease and
    resumed. At the end the results are checked against the store; the exit code is 1 if a check fails.
    """
    if keep is not None and keep.exists():
        raise click.BadParameter(f"{str(keep)!r} exists; name a file that does not", param_hint="'--keep'")
    if web and terminal.json:
        raise click.UsageError("--web shows pages until Ctrl-C; leave out --json")
    normal = _WEB_SECONDS if web else _NORMAL_SECONDS
    pace = plan.Pace.lasting(_FAST_SECONDS if fast else seconds or normal)
    with _clean_up_on_signals(), tempfile.TemporaryDirectory(prefix="holdfast-demo-") as folder, ExitStack() as stack:
        url = str(keep or Path(folder) / "demo.db")
        queue = stack.enter_context(holdfast.connect(url))
        address = stack.enter_context(_dashboard(url)) if web else None
        if address is not None:
            terminal.line(f"Open {address}/ in a browser.", "bold")
            sys.stdout.flush()
        workers = stack.enter_context(processes.DemoWorkers(url, Path(folder), pace))
        story = Story(queue, workers, pace, address)
        record = _play(queue, story, _stage(terminal, plain=plain or web))
        checks = examine(record)
        _report(terminal, record, checks, keep)
        if address is not None:
            _stay(terminal, address)
    click.get_current_context().exit(0 if all(check.holds for check in checks) else 1)


def _stay(terminal: Terminal, address: str) -> None:
    """Keep the dashboard and the workers until an interrupt."""
    terminal.line()
    terminal.line(f"{address}/ stays until Ctrl-C.", "bold")
    sys.stdout.flush()
    with suppress(KeyboardInterrupt):
        while True:
            # Not signal.pause(): it does not return if another thread receives the signal.
            time.sleep(1)


def _report(terminal: Terminal, record: Record, checks: list[Check], keep: Path | None) -> None:
    if terminal.json:
        terminal.emit(_document(record, checks))
    else:
        _summarize(terminal, record, checks)
        _suggest(terminal, record, keep)


def _stage(terminal: Terminal, *, plain: bool) -> picture.Stage:
    if terminal.json:
        return picture.QuietStage()
    return picture.LiveStage(terminal.out) if not plain and picture.can_draw(terminal.out) else picture.PlainStage()


def _play(queue: holdfast.Queue, story: Story, stage: picture.Stage) -> Record:
    try:
        with stage.open():
            for _ in story.play():
                stage.show(story.scene)
    except GaveUp as problem:
        raise errors.CommandError(
            f"the demo failed: {problem}", code="demo_failed", exit_code=errors.REFUSED
        ) from None
    return collect(
        queue,
        acknowledged=story.acknowledged,
        refusals=story.refusals,
        killed=story.killed,
        frozen=story.frozen,
    )


@contextmanager
def _clean_up_on_signals() -> Iterator[None]:
    """Clean up on SIGTERM and SIGHUP as on Ctrl-C."""
    before = {number: signal.signal(number, _interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


# --- the end -------------------------------------------------------------------------------------------------------


def _document(record: Record, checks: list[Check]) -> dict[str, object]:
    return {
        "acknowledged": len(record.acknowledged),
        "finished": record.finished,
        "settled_once": record.settled_once,
        "expired": record.ended("expired"),
        "refusals": len(record.refusals),
        "retries": record.retries,
        "checks": [check._asdict() for check in checks],
    }


def _summarize(terminal: Terminal, record: Record, checks: list[Check]) -> None:
    terminal.line()
    terminal.line("Checked against the store:", "bold")
    table = Table.grid(padding=(0, 2))
    for check in checks:
        verdict = Text("ok", "bold green") if check.holds else Text("WRONG", "bold red")
        table.add_row("", verdict, check.claim, Text(check.evidence, "default" if check.holds else "red"))
    terminal.show(table)
    terminal.line()
    numbers = {name: value for name, value in _document(record, []).items() if isinstance(value, int)}
    terminal.line("  ".join(f"{name.replace('_', ' ')} {value}" for name, value in numbers.items()), "bold")


def _suggest(terminal: Terminal, record: Record, keep: Path | None) -> None:
    terminal.line()
    terminal.line("What to try next:", "bold")
    program = _program()
    if keep is None:
        commands = [f"{program} demo --keep demo.db", f"{program} --url demo.db stats", f"{program} --help"]
    else:
        url = f"{program} --url {shlex.quote(str(keep))}"
        struck = record.killed.job_id if record.killed else record.acknowledged[0]
        commands = [f"{url} stats", f"{url} jobs show {struck}", f"{url} jobs list --state failed", f"{url} events"]
    for command in commands:
        terminal.line(f"  {command}")
    terminal.line("  The README has an example in 20 lines; docs/ explains the details")


def _program() -> str:
    """Return the command that starts this program from the current directory."""
    if shutil.which("holdfast"):
        return "holdfast"
    started = Path(sys.argv[0]).absolute()
    if started.name != "holdfast":
        return "python -m holdfast.cli"
    here = Path.cwd()
    return shlex.quote(str(started.relative_to(here) if started.is_relative_to(here) else started))


@contextmanager
def _dashboard(url: str) -> Iterator[str]:
    """Serve the dashboard of a queue on a free port of this machine, without tokens; return its address."""
    try:
        from holdfast.dashboard import application  # noqa: PLC0415
        from holdfast.service import server  # noqa: PLC0415
        from holdfast.service.settings import ServiceSettings  # noqa: PLC0415
    except ImportError as error:
        raise serving.missing_extra("dashboard", "server", error) from None
    # Each request would be a line between those of the demo.
    logging.getLogger("holdfast").setLevel(logging.WARNING)
    listener = server.listen("127.0.0.1", 0)
    started: Future[Callable[[], object]] = Future()

    async def serve() -> None:
        queue = holdfast.connect_async(url)
        settings = ServiceSettings(tokens=False)
        await server.serve(queue, listener, settings, started.set_result, application.mounted())

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)

    thread = threading.Thread(target=run, name="dashboard", daemon=True)
    thread.start()
    stop = started.result()
    try:
        yield f"{server.url_of(listener)}/dashboard"
    finally:
        stop()
        thread.join(_STOP_SECONDS)
