"""`holdfast enqueue`: one job from the command line, or many from a file of JSON lines."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from holdfast import Enqueued
from holdfast.cli import bulk, json_view, params
from holdfast.cli.errors import CommandError
from holdfast.cli.options import Command, pass_terminal
from holdfast.cli.terminal import Terminal

EPILOG = """
PAYLOAD is JSON; @FILE reads it from a file, - from standard input.
Each line of --many is an object with the words of enqueue, such as
  {"kind": "email.send", "payload": {"to": "ada"}, "job_id": "order-42"}
and the options given beside it count for every line that says nothing else.

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
@click.option("--lane", help="The stream of jobs it joins. Default: default.")
@click.option("--tenant", help="Whom it belongs to. Default: default.")
@click.option("--priority", type=int, metavar="N", help="Higher goes first. Default: 0.")
@click.option("--delay", type=params.DURATION, metavar="TIME", help="Wait before it may be claimed: 30s, 5m, 2h, 7d.")
@click.option("--run-at", type=params.MOMENT, metavar="MOMENT", help="Wait until a moment: 2030-01-31T09:00:00Z.")
@click.option(
    "--deadline", type=params.DEADLINE, metavar="TIME|MOMENT", help="Fail it unless it was started by then."
)
@click.option(
    "--require", "requires", multiple=True, metavar="CAPABILITY", help="What a worker must have. Repeatable."
)
@click.option("--affinity", metavar="NAME", help="The resource it is cheap to run beside.")
@click.option(
    "--header", "headers", type=params.PAIR, multiple=True, metavar="K=V", help="For machinery. Repeatable."
)
@click.option("--tag", "tags", type=params.PAIR, multiple=True, metavar="K=V", help="For people. Repeatable.")
@click.option("--max-attempts", type=int, metavar="N", help="How often it is tried. Default: 5.")
@click.option("--id", "job_id", metavar="ID", help="An id of your choice; sending the same again is harmless.")
@click.option("--dedupe-key", metavar="KEY", help="While a job with this key is unfinished, add no other.")
@click.option("--dedupe-scope", type=click.Choice(["kind", "tenant"]), help="Where the key counts. Default: kind.")
@click.option(
    "--on-duplicate",
    type=click.Choice(["keep", "replace", "run_again"]),
    help="What a second job with the key does. Default: keep.",
)
@click.option("--events", type=click.Choice(["terminal", "all"]), help="Which of its transitions to record.")
@pass_terminal
def enqueue(terminal: Terminal, /, kind: str | None, payload: str | None, many: str | None, **words: Any) -> None:
    """Store a job; when this returns, it is durable."""
    options = _options(words)
    if many is not None:
        _check_many(payload, options)
        bulk.enqueue_lines(terminal, many, options if kind is None else {"kind": kind, **options})
        return
    if kind is None:
        raise CommandError("KIND is missing", hint="holdfast enqueue KIND [PAYLOAD], or holdfast enqueue --many FILE")
    content = params.payload(payload)
    with terminal.queue(create=True) as queue:
        made = queue.enqueue(kind, content, **options)
    if terminal.json:
        terminal.emit(json_view.enqueued(made))
    else:
        terminal.line(_said(made))


def _options(words: dict[str, Any]) -> dict[str, Any]:
    """Return the words that were given, in the form in which the library takes them."""
    given = {word: value for word, value in words.items() if value is not None and value != ()}
    for word in ("headers", "tags"):
        if word in given:
            given[word] = _pairs(word, given[word])
    return given


def _pairs(word: str, pairs: tuple[tuple[str, str], ...]) -> dict[str, str]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise CommandError(f"--{word[:-1]} names the same key twice")
    return found


def _check_many(payload: str | None, options: dict[str, Any]) -> None:
    if payload is not None:
        raise CommandError("PAYLOAD and --many exclude each other: each line of the file has its own payload")
    for word, option in (("job_id", "--id"), ("dedupe_key", "--dedupe-key")):
        if word in options:
            raise CommandError(f"{option} and --many exclude each other: write {word!r} into the lines")


def _said(made: Enqueued) -> str:
    job = made.job
    if not made.created:
        return f"exists already: {job.id} ({job.kind}, {job.state})"
    due = f", due {_utc(job.due_at)}" if job.state == "scheduled" else ""
    return f"enqueued {job.id} ({job.kind}, {job.state}{due})"


def _utc(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"
