"""`holdfast worker`: run the tasks of a queue, in this process or in several."""

import os
import threading
from contextlib import AbstractContextManager, suppress
from typing import Any

import click

from holdfast import HoldfastError, WarmResources, Worker, telemetry, types
from holdfast.cli import errors, params, webhooks, worker_logs, worker_processes, worker_report, worker_target
from holdfast.cli.options import Command, pass_terminal
from holdfast.cli.terminal import Terminal
from holdfast.client import ids, queue_state
from holdfast.domain import limits
from holdfast.telemetry import HOST_DEFAULT
from holdfast.worker import garbage, supervisor
from holdfast.worker.worker import CONCURRENCY_DEFAULT, GRACE_SECONDS_DEFAULT

_DEFAULT_LEASE = limits.LEASE_MS_DEFAULT / 1000
# How long to wait for the store to close at exit.
_CLOSING_SECONDS = 0.5


@click.command(
    cls=Command,
    opens_store=False,
    epilog="""
    MODULE:QUEUE determines the store: --url and --schema are refused.

    On SIGTERM or SIGINT the worker takes no more jobs, waits up to --grace for the
    running ones, releases the rest and exits with 0. On a second signal it releases
    them at once.

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
    help="The number of jobs a process runs at once.",
)
@click.option(
    "--processes",
    type=click.IntRange(1, limits.PROCESSES_MAX),
    default=1,
    show_default=True,
    metavar="N",
    help="The number of processes.",
)
@click.option("--lane", multiple=True, help="Take jobs of this lane. Repeatable. Default: the lanes of the tasks.")
@click.option("--kind", multiple=True, help="Take jobs of this kind. Repeatable. Default: every task of the queue.")
@click.option("--tenant", help="Take only this tenant's jobs.")
@click.option("--capability", multiple=True, help="A capability of this worker, which jobs may require. Repeatable.")
@click.option("--affinity", multiple=True, help="An affinity this worker prefers. Repeatable.")
@click.option("--load", metavar="MODULE:FUNCTION", help="The function that loads an affinity.")
@click.option("--unload", metavar="MODULE:FUNCTION", help="The function that unloads an affinity.")
@click.option(
    "--capacity",
    type=click.IntRange(1, limits.AFFINITIES_MAX),
    metavar="N",
    help="The number of affinities loaded at once. Default: 1 if --load is given.",
)
@click.option(
    "--max-hold",
    type=params.DURATION,
    metavar="DURATION",
    help="How long a loaded affinity is preferred while jobs of others wait.",
)
@click.option("--drain", type=click.Choice(["oldest", "listed"]), help="listed: take kinds in the order of --kind.")
@click.option("--exclusive", is_flag=True, help="Take over the jobs of an earlier worker with this name at once.")
@click.option(
    "--lease",
    type=params.DURATION,
    metavar="DURATION",
    default=_DEFAULT_LEASE,
    help="The duration of a lease. Default: 30s.",
)
@click.option(
    "--grace",
    type=params.DURATION,
    metavar="DURATION",
    default=GRACE_SECONDS_DEFAULT,
    help="How long to wait for running jobs on shutdown. Default: 30s.",
)
@click.option("--name", help="The worker's name. Default: host name and process id.")
@click.option(
    "--retention",
    type=params.DURATION,
    metavar="DURATION",
    help="Delete jobs that finished longer ago than this: 7d. Default: keep them.",
)
@webhooks.webhook_allow
@click.option("--isolate", is_flag=True, help="Run every handler in a separate process.")
@click.option(
    "--memory-limit", type=params.SIZE, metavar="SIZE", help="The memory limit of an isolated process: 512M, 2G."
)
@click.option(
    "--recycle-after",
    type=click.IntRange(1, limits.RECYCLE_AFTER_MAX),
    default=limits.RECYCLE_AFTER_DEFAULT,
    show_default=True,
    metavar="N",
    help="The number of jobs after which an isolated process is replaced.",
)
@click.option(
    "--kill-after",
    type=params.DURATION,
    metavar="DURATION",
    default=limits.KILL_AFTER_MS_DEFAULT / 1000,
    help="How long to wait for a cancelled isolated handler before killing it. Default: 5s.",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65_535),
    metavar="PORT",
    help="The port for Prometheus metrics; with --processes, the first port.",
)
@click.option(
    "--metrics-host", default=HOST_DEFAULT, metavar="HOST", show_default=True, help="The address for metrics."
)
@click.option(
    "--log-level",
    type=click.Choice(worker_logs.LEVELS),
    default="warning",
    show_default=True,
    help="The lowest level of the messages to log.",
)
@pass_terminal
def worker(terminal: Terminal, /, target: str, processes: int, **options: Any) -> int:
    """Run the tasks of a queue until stopped.

    MODULE:QUEUE names a variable of a module that can be imported from the current directory, as in app.jobs:queue.
    """
    for option, value in (("--url", terminal.given_url), ("--schema", terminal.given_schema)):
        if value is not None:
            raise errors.CommandError(
                f"a worker does not accept {option}", hint="MODULE:QUEUE names a queue with its own store"
            )
    about = worker_report.About(target, options["concurrency"], processes, options["grace"], os.getpid())
    child_output = os.environ.pop(worker_processes.CHILD_VARIABLE, None)
    if child_output is not None:
        supervisor.end_with_parent(about.grace_seconds)
    queue = worker_target.find_queue(target)
    worker_logs.set_up(options["log_level"], as_json=terminal.json)
    runner = _worker(queue, target, options)
    about = about._replace(summary=runner.summary())
    if processes > 1:
        about = about._replace(summary=f"{about.summary} in each of {processes} processes")
        _refuse_unshared(queue)
        return worker_processes.run_processes(terminal, about, options)
    try:
        with _reporting(terminal, about, runner, records=child_output == "records"), garbage.rare_collections():
            runner.run()
    finally:
        close_store(queue)
    return 0


def close_store(queue: worker_target.AnyQueue) -> None:
    """Close the store. If other writers delay it, the process exits without waiting."""

    def close() -> None:
        with suppress(HoldfastError):
            queue_state.state_of(queue).store.close()

    closing = threading.Thread(target=close, name="holdfast-close", daemon=True)
    closing.start()
    closing.join(_CLOSING_SECONDS)


def _worker(queue: worker_target.AnyQueue, target: str, options: dict[str, Any]) -> Worker:
    # Check before any process starts.
    if not queue.tasks:
        raise errors.CommandError(
            f"{target!r} has no tasks",
            hint="declare some with @queue.task, and import their modules in the module of the queue",
        )
    if options["exclusive"] and not options["name"]:
        raise errors.CommandError(
            "--exclusive requires --name", hint="choose a name that stays the same across restarts"
        )
    for kind in options["kind"]:
        queue.tasks.get(kind)
    # Leave out options that are not set: the worker has its own defaults.
    chosen: Any = {"lanes": options["lane"], "kinds": options["kind"], "drain": options["drain"]}
    claim: types.ClaimOptions = {
        **{name: value for name, value in chosen.items() if value},  # type: ignore[typeddict-item]  # as named above
        "tenant": options["tenant"],
        "capabilities": options["capability"],
        "affinity": options["affinity"],
        "exclusive": options["exclusive"],
        "lease": options["lease"],
        "worker": ids.worker_name() if options["name"] is None else options["name"],
    }
    port = options["metrics_port"]
    return Worker(
        queue,
        concurrency=options["concurrency"],
        grace=options["grace"],
        retention=options["retention"],
        isolate="process" if options["isolate"] else None,
        memory_limit=options["memory_limit"],
        recycle_after=options["recycle_after"],
        kill_after=options["kill_after"],
        metrics=None if port is None else telemetry.metrics(queue, port=port, host=options["metrics_host"]),
        warm=_warm_resources(options),
        **claim,
    )


def _warm_resources(options: dict[str, Any]) -> WarmResources | None:
    """Return what the worker keeps loaded; None if no option for it is given."""
    if all(options[name] is None for name in ("load", "unload", "capacity", "max_hold")):
        return None
    return WarmResources(
        load=worker_target.find_function(options["load"], "--load"),
        unload=worker_target.find_function(options["unload"], "--unload"),
        capacity=options["capacity"] or 1,
        max_hold=options["max_hold"],
    )


def _refuse_unshared(queue: worker_target.AnyQueue) -> None:
    store = queue_state.state_of(queue).store
    if store.clone() is store:
        raise errors.CommandError("processes cannot share an in-memory queue", hint="leave out --processes")


def _reporting(
    terminal: Terminal, about: worker_report.About, runner: Worker, *, records: bool
) -> AbstractContextManager[None]:
    if records:
        return worker_report.in_records(runner.status)
    if terminal.draws:
        return worker_report.on_screen(terminal, about, runner.status)
    return worker_report.in_lines(terminal, about, runner.status)
