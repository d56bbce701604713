"""`holdfast enqueue`: enqueue one job from the command line, or many from a file of JSON lines."""

from datetime import datetime
from typing import Any

import click

from holdfast import json_view, types
from holdfast.cli import bulk, errors, job_names, kind_names, params
from holdfast.cli.options import Command, pass_terminal
from holdfast.cli.terminal import Terminal

EPILOG = """
PAYLOAD is JSON; @FILE reads it from a file, - from standard input.
Each line of --many is an object with the options of a job, such as
  {"kind": "email.send", "payload": {"to": "ada"}, "job_id": "order-42"}
Options on the command line are the defaults of every line. If a worker has
published the task, its options and schema apply: holdfast kinds show KIND.

Examples:
  holdfast enqueue email.send '{"to": "ada@example.org"}'
  holdfast enqueue report.build @report.json --delay 5m --tag customer=acme
  date +'"%F"' | holdfast enqueue day.close - --dedupe-key day
  holdfast enqueue --many jobs.jsonl --lane bulk
"""


@click.command(cls=Command, epilog=EPILOG)
@click.argument("kind", required=False)
@click.argument("payload", required=False)
@click.option("--many", metavar="FILE", help="Enqueue every line of a file of JSON lines (- for standard input).")
@click.option("--lane", help="The job's lane. Default: the task's lane.")
@click.option("--tenant", help="The job's tenant. Default: default.")
@click.option("--priority", type=int, metavar="N", help="Higher priorities run first. Default: 0.")
@click.option("--delay", type=params.DURATION, metavar="DURATION", help="Wait this long first: 30s, 5m, 2h, 7d.")
@click.option(
    "--run-at", type=params.TIMESTAMP, metavar="TIMESTAMP", help="Start at this time: 2030-01-31T09:00:00Z."
)
@click.option(
    "--deadline",
    type=params.DEADLINE,
    metavar="DURATION|TIMESTAMP",
    help="Fail the job if no attempt started by then.",
)
@click.option(
    "--require",
    "requires",
    multiple=True,
    metavar="CAPABILITY",
    help="A capability the worker must have. Repeatable.",
)
@click.option("--affinity", metavar="NAME", help="The resource the job uses; workers that have it loaded go first.")
@click.option(
    "--header", "headers", type=params.PAIR, multiple=True, metavar="K=V", help="A header for middleware. Repeatable."
)
@click.option("--tag", "tags", type=params.PAIR, multiple=True, metavar="K=V", help="A tag. Repeatable.")
@click.option("--max-attempts", type=int, metavar="N", help="The maximum number of attempts. Default: the task's.")
@click.option("--id", "job_id", metavar="ID", help="The job's id; enqueueing the same id again adds no second job.")
@click.option("--dedupe-key", metavar="KEY", help="Add no second job while one with this key is unfinished.")
@click.option(
    "--dedupe-scope",
    type=click.Choice(["kind", "tenant"]),
    help="The scope in which the key is unique. Default: kind.",
)
@click.option(
    "--dedupe-for",
    type=params.DURATION,
    metavar="DURATION",
    help="Also add no second job for this long after the first one, even if it has finished.",
)
@click.option(
    "--debounce",
    type=params.DURATION,
    metavar="DURATION",
    help="Run so long after the last enqueue of the key, with its payload.",
)
@click.option(
    "--max-wait",
    type=params.DURATION,
    metavar="DURATION",
    help="With --debounce: at the latest so long after the first enqueue.",
)
@click.option(
    "--on-duplicate",
    type=click.Choice(["keep", "replace", "run_again"]),
    help="What to do if the key exists. Default: keep.",
)
@click.option("--session", metavar="ID", help="The session of which the job is an entry; for session tasks.")
@click.option("--after", multiple=True, metavar="ID", help="Run after this job has ended. Repeatable.")
@click.option(
    "--on-failed",
    type=click.Choice(["cancel", "run"]),
    help="If a job of --after is not done. Default: cancel.",
)
@click.option("--limit-key", metavar="KEY", help="Its key for limits by key whose key is 'given'.")
@click.option("--webhook-url", metavar="URL", help="Where each event of the job is sent.")
@click.option("--events", type=click.Choice(["terminal", "all"]), help="The transitions to record as events.")
@pass_terminal
def enqueue(terminal: Terminal, /, kind: str | None, payload: str | None, many: str | None, **given: Any) -> None:
    """Enqueue a job. The job is durable when the command returns."""
    options = _options(given)
    if many is not None:
        _check_many(payload, options)
        bulk.enqueue_lines(terminal, many, options if kind is None else {"kind": kind, **options})
        return
    if kind is None:
        raise errors.CommandError(
            "KIND is missing", hint="holdfast enqueue KIND [PAYLOAD], or holdfast enqueue --many FILE"
        )
    content = params.payload(payload)
    with terminal.queue(create=True) as queue:
        if "after" in options:
            options["after"] = [job_names.find_job(queue, job_id).id for job_id in options["after"]]
        with kind_names.hint_of_schema(kind):
            enqueued = queue.enqueue(kind, content, **options)
        if terminal.json:
            terminal.emit(json_view.enqueued(enqueued))
            return
        terminal.line(_summary(enqueued))
        kind_names.note_unpublished(terminal, queue, [kind])


def _options(given: dict[str, Any]) -> dict[str, Any]:
    """Return the options that are set, converted for `Queue.enqueue`."""
    options = {name: value for name, value in given.items() if value is not None and value != ()}
    for name in ("headers", "tags"):
        if name in options:
            options[name] = params.pairs(f"--{name[:-1]}", options[name])
    return options


def _check_many(payload: str | None, options: dict[str, Any]) -> None:
    if payload is not None:
        raise errors.CommandError("PAYLOAD and --many exclude each other: each line of the file has its own payload")
    for name, option in (("job_id", "--id"), ("dedupe_key", "--dedupe-key")):
        if name in options:
            raise errors.CommandError(f"{option} and --many exclude each other: write {name!r} into the lines")


def _summary(enqueued: types.Enqueued[Any]) -> str:
    job = enqueued.job
    if not enqueued.created:
        return f"exists already: {job.id} ({job.kind}, {job.state})"
    due = f", due {_utc(job.due_at)}" if job.state == "scheduled" else ""
    return f"enqueued {job.id} ({job.kind}, {job.state}{due})"


def _utc(time: datetime) -> str:
    return f"{time:%Y-%m-%dT%H:%M:%SZ}"
