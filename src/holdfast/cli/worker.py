"""`holdfast worker`: run the tasks of a queue, in this process or in several."""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager, suppress
from typing import Any

import click

from holdfast import ClaimOptions, HoldfastError, Worker, telemetry
from holdfast.cli import params, worker_crew, worker_logs, worker_report
from holdfast.cli.errors import CommandError
from holdfast.cli.options import Command, pass_terminal
from holdfast.cli.terminal import Terminal
from holdfast.cli.worker_report import About
from holdfast.cli.worker_target import AnyQueue, find_function, find_queue
from holdfast.client import ids
from holdfast.domain import limits
from holdfast.telemetry import HOST_DEFAULT
from holdfast.worker.supervisor import end_with_parent
from holdfast.worker.worker import CONCURRENCY_DEFAULT, GRACE_SECONDS_DEFAULT

_DEFAULT_LEASE = limits.LEASE_MS_DEFAULT / 1000
# How long the store may take to be closed at the end.
_CLOSING_SECONDS = 0.5


@click.command(
    cls=Command,
    epilog="""
    SIGTERM or SIGINT: take no more jobs, wait for those that run, give back what
    is left after --grace. A second one: give back at once. It exits with 0.

    Examples:
      holdfast worker app.jobs:queue
      holdfast worker app.jobs:queue --concurrency 50 --lane default --lane mail
      holdfast worker app.jobs:queue --processes 4 --retention 7d
    """,
)
@click.argument("target", metavar="MODULE:QUEUE")
@click.option(
    "--concurrency",
    type=click.IntRange(1, limits.CONCURRENCY_MAX),
    default=CONCURRENCY_DEFAULT,
    show_default=True,
    metavar="N",
    help="How many jobs a process runs at once.",
)
@click.option(
    "--processes", type=click.IntRange(1, limits.PROCESSES_MAX), default=1, metavar="N", help="How many processes."
)
@click.option("--lane", multiple=True, help="Take from this lane. Repeatable. Default: the lanes of the tasks.")
@click.option("--kind", multiple=True, help="Take this kind. Repeatable. Default: every task of the queue.")
@click.option("--tenant", help="Take only this tenant's jobs.")
@click.option("--capability", multiple=True, help="What this worker has, for jobs that require it. Repeatable.")
@click.option("--affinity", multiple=True, help="What it has loaded: jobs beside it go first. Repeatable.")
@click.option("--load", metavar="MODULE:FUNCTION", help="Called with an affinity that is to be loaded.")
@click.option("--unload", metavar="MODULE:FUNCTION", help="Called with one that makes room for another.")
@click.option(
    "--residents",
    type=click.IntRange(1, limits.AFFINITIES_MAX),
    metavar="N",
    help="How many affinities are loaded at once. Default: 1 where any are.",
)
@click.option("--residence", type=params.DURATION, metavar="TIME", help="How long they go first while others wait.")
@click.option("--drain", type=click.Choice(["oldest", "listed"]), help="listed: kinds in the order given.")
@click.option("--exclusive", is_flag=True, help="Take back at once what an earlier start of this name held.")
@click.option("--lease", type=params.DURATION, metavar="TIME", default=_DEFAULT_LEASE, help="Length of a lease: 30s.")
@click.option(
    "--grace", type=params.DURATION, metavar="TIME", default=GRACE_SECONDS_DEFAULT, help="Patience at the end: 30s."
)
@click.option("--name", help="The worker's name. Default: host and process.")
@click.option("--retention", type=params.DURATION, metavar="TIME", help="Delete what finished so long ago: 7d.")
@click.option("--isolate", is_flag=True, help="Run every handler in a process of its own.")
@click.option("--memory-limit", type=params.SIZE, metavar="SIZE", help="Memory of an isolated process: 512M, 2G.")
@click.option(
    "--recycle-after",
    type=click.IntRange(1, limits.RECYCLE_AFTER_MAX),
    default=limits.RECYCLE_AFTER_DEFAULT,
    metavar="N",
    help="How many jobs an isolated process runs.",
)
@click.option(
    "--kill-after",
    type=params.DURATION,
    metavar="TIME",
    default=limits.KILL_AFTER_MS_DEFAULT / 1000,
    help="Patience with an isolated handler told to stop: 5s.",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65_535),
    metavar="PORT",
    help="Serve metrics for Prometheus here; with --processes, from here on.",
)
@click.option("--metrics-host", default=HOST_DEFAULT, metavar="HOST", show_default=True, help="Where to serve them.")
@click.option("--log-level", type=click.Choice(worker_logs.LEVELS), default="warning", show_default=True)
@pass_terminal
def worker(terminal: Terminal, /, target: str, processes: int, **words: Any) -> int:
    """Run the tasks of a queue until told to stop.

    MODULE:QUEUE names a variable of a module that can be imported from this folder, as in app.jobs:queue.
    """
    if terminal.given_url is not None:
        raise CommandError(
            "--url does not go with a worker", hint="MODULE:QUEUE names the queue, which knows its store"
        )
    about = About(target, words["concurrency"], processes, words["grace"], os.getpid())
    told_by = os.environ.pop(worker_crew.CHILD_VARIABLE, None)
    if told_by is not None:
        end_with_parent(about.grace_seconds)
    queue = find_queue(target)
    worker_logs.set_up(words["log_level"], as_json=terminal.json)
    made = _worker(queue, target, words)
    about = about._replace(summary=made.summary())
    if processes > 1:
        about = about._replace(summary=f"{about.summary} in each of {processes} processes")
        _refuse_unshared(queue)
        return worker_crew.run_crew(terminal, about, words)
    try:
        with _reporting(terminal, about, made, records=told_by == "records"):
            made.run()
    finally:
        _close(queue)
    return 0


def _close(queue: AnyQueue) -> None:
    """Close the store, unless other writers keep it from being closed: then the end of the process does."""

    def close() -> None:
        with suppress(HoldfastError):
            queue.store.close()

    closing = threading.Thread(target=close, name="holdfast-close", daemon=True)
    closing.start()
    closing.join(_CLOSING_SECONDS)


def _worker(queue: AnyQueue, target: str, words: dict[str, Any]) -> Worker:
    # Asked now, so that nothing is started that could only fail.
    if not queue.tasks:
        raise CommandError(
            f"{target!r} has no tasks",
            hint="declare some with @queue.task, and import their modules where the queue is made",
        )
    for kind in words["kind"]:
        queue.tasks.get(kind)
    # A word that is not given leaves the choice to the worker.
    chosen: Any = {"lanes": words["lane"], "kinds": words["kind"], "drain": words["drain"]}
    claim: ClaimOptions = {
        **{word: value for word, value in chosen.items() if value},  # type: ignore[typeddict-item]  # as named above
        "tenant": words["tenant"],
        "capabilities": words["capability"],
        "affinity": words["affinity"],
        "exclusive": words["exclusive"],
        "lease": words["lease"],
        "worker": words["name"] or ids.worker_name(),
    }
    port = words["metrics_port"]
    return Worker(
        queue,
        concurrency=words["concurrency"],
        grace=words["grace"],
        retention=words["retention"],
        isolate="process" if words["isolate"] else None,
        memory_limit=words["memory_limit"],
        recycle_after=words["recycle_after"],
        kill_after=words["kill_after"],
        metrics=None if port is None else telemetry.metrics(queue, port=port, host=words["metrics_host"]),
        load=find_function(words["load"], "--load"),
        unload=find_function(words["unload"], "--unload"),
        residents=words["residents"],
        residence=words["residence"],
        **claim,
    )


def _refuse_unshared(queue: AnyQueue) -> None:
    # Only a store in memory has no twin.
    if queue.store.twin() is queue.store:
        raise CommandError("a queue in memory cannot be shared by processes", hint="leave out --processes")


def _reporting(terminal: Terminal, about: About, made: Worker, *, records: bool) -> AbstractContextManager[None]:
    if records:
        return worker_report.in_records(made.status)
    if terminal.out.is_terminal and not terminal.json:
        return worker_report.on_screen(terminal, about, made.status)
    return worker_report.in_lines(terminal, about, made.status)
