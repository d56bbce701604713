"""`holdfast workers`: list workers with their jobs and last heartbeat, drain and stop them."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import click

from holdfast import json_view, types
from holdfast.cli import errors, formatting, options, tables
from holdfast.cli.terminal import Terminal
from holdfast.domain import limits, results
from holdfast.errors import WorkerNotFound

F = TypeVar("F", bound=Callable[..., Any])


@click.group(
    cls=options.Group,
    epilog="""
    Examples:
      holdfast workers list
      holdfast workers drain web-1
      holdfast workers stop web-1
    """,
)
def workers() -> None:
    """List workers, drain and stop them, from any machine."""


@workers.command(
    "list",
    epilog="""
    A worker that shuts down leaves the list. A killed worker is shown as silent
    after a minute; other workers take its jobs once the leases have expired.

    Examples:
      holdfast workers list
      holdfast workers list --json
    """,
)
@click.option(
    "--limit",
    type=click.IntRange(1, limits.PAGE_MAX),
    default=limits.PAGE_DEFAULT,
    show_default=True,
    metavar="N",
    help="The maximum number of workers, most recent heartbeat first.",
)
@options.pass_terminal
def list_(terminal: Terminal, limit: int) -> None:
    """List the workers of a queue."""
    with terminal.queue() as queue:
        found = queue.admin.workers(limit=limit)
    if terminal.json:
        terminal.emit({"workers": [json_view.worker(one) for one in found]})
    elif found:
        _draw(terminal, found)
    else:
        terminal.note("no worker has registered")


def _selecting_workers(command: F) -> F:
    every = click.option("--all", "every", is_flag=True, help="Select every worker; asks for confirmation.")
    return click.argument("names", metavar="[NAME]...", nargs=-1)(every(options.destructive(command)))


@workers.command(
    epilog="""
    A draining worker takes no more jobs, finishes those it holds, and stays in the
    list until it is stopped. A worker that starts again under this name is not
    drained. 'workers list' shows when the worker has received the request, which
    takes at most ten seconds.

    Examples:
      holdfast workers drain web-1
      holdfast workers drain web-1 web-2 --json
      holdfast workers drain --all --yes
    """
)
@_selecting_workers
@options.pass_terminal
def drain(terminal: Terminal, names: tuple[str, ...], every: bool, dry_run: bool, yes: bool) -> None:
    """Let workers finish their jobs and take no more."""
    _request(terminal, "drain", names, every=every, dry_run=dry_run, yes=yes)


@workers.command(
    epilog="""
    The worker shuts down as on SIGTERM: it takes no more jobs, waits up to its
    grace period for running ones, releases the rest and exits. A supervisor, such
    as that of 'holdfast worker --processes' or systemd, starts a new worker.

    Examples:
      holdfast workers stop web-1
      holdfast workers stop --all --dry-run
    """
)
@_selecting_workers
@options.pass_terminal
def stop(terminal: Terminal, names: tuple[str, ...], every: bool, dry_run: bool, yes: bool) -> None:
    """Shut workers down."""
    _request(terminal, "stop", names, every=every, dry_run=dry_run, yes=yes)


def _request(
    terminal: Terminal,
    requested: results.WorkerRequest,
    names: tuple[str, ...],
    *,
    every: bool,
    dry_run: bool,
    yes: bool,
) -> None:
    if bool(names) == every:
        raise errors.CommandError(
            "give the names of workers, or --all", hint="'holdfast workers list' shows the names"
        )
    terminal.require_confirmation(allowed=dry_run or yes or not every)
    with terminal.queue() as queue:
        registered = {one.worker: None for one in queue.admin.workers(limit=limits.PAGE_MAX)}
        chosen = list(registered) if every else list(dict.fromkeys(names))
        if not chosen and not terminal.json:
            terminal.note("no worker has registered")
            return
        about = formatting.number(len(chosen), "worker")
        if dry_run:
            terminal.report({"workers": chosen, "requested": requested}, f"would request {about} to {requested}")
            return
        if every and not yes:
            terminal.confirm(f"Request {about} to {requested}?")
        found = []
        for name in chosen:
            queue.admin.record_action(f"workers.{requested}", name)
            # With --all, a worker that has left since is not an error.
            with suppress(*([WorkerNotFound] if every else [])):
                found += queue.admin.drain_worker(name) if requested == "drain" else queue.admin.stop_worker(name)
    if terminal.json:
        terminal.emit({"workers": [json_view.worker(one) for one in found], "requested": requested})
    else:
        _draw(terminal, found)


def _draw(terminal: Terminal, found: list[types.WorkerInfo]) -> None:
    columns = [
        tables.Column("WORKER", [one.worker for one in found], min_width=8),
        tables.Column("STATE", [one.state for one in found], states=True),
        tables.Column("REQUESTED", [one.requested or "" for one in found], rank=1, hide_if=""),
        tables.Column("HOLDS", [f"{one.held:,}" for one in found], justify="right"),
        tables.Column("SLOTS", [f"{one.concurrency:,}" for one in found], rank=4, justify="right"),
        tables.Column("LANES", [", ".join(one.lanes) for one in found], rank=2, min_width=7),
        tables.Column("KINDS", [", ".join(one.kinds) for one in found], rank=3, min_width=10),
        tables.Column(
            "CAPABILITIES", [", ".join(one.capabilities) for one in found], rank=6, min_width=12, hide_if=""
        ),
        tables.Column("LOADED", [", ".join(one.loaded) for one in found], rank=5, min_width=8, hide_if=""),
        tables.Column("SWITCHES", [f"{one.switches:,}" for one in found], rank=6, hide_if="0", justify="right"),
        tables.Column("SAVED", [f"{one.switches_saved:,}" for one in found], rank=7, hide_if="0", justify="right"),
        tables.Column("HOST", [one.host for one in found], rank=8, min_width=8),
        tables.Column("PROCESS", [str(one.process) for one in found], rank=8, justify="right"),
        tables.Column("VERSION", [one.version for one in found], rank=7),
        tables.Column("UP", [formatting.age(one.started_at, terminal.now) for one in found], rank=5, justify="right"),
        tables.Column(
            "HEARD", [formatting.relative(one.beat_at, terminal.now) for one in found], rank=1, justify="right"
        ),
    ]
    terminal.show(tables.table(columns, terminal.out.width))
