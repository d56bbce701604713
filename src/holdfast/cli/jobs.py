"""`holdfast jobs`: list, show, cancel, requeue and wait for jobs, change priorities, read output, fetch artifacts."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, get_args

import click

from holdfast import HoldfastError, Job, Queue, Refused, json_view
from holdfast.cli import errors, formatting, job_bulk, job_list, job_names, job_show, options, params
from holdfast.cli.terminal import Terminal
from holdfast.domain import failures, limits, serving
from holdfast.domain.job import FINISHED, STATES
from holdfast.types import CancelReport, OutputChunk, Requeued, Skipped

FAILURE_CLASSES = get_args(failures.FailureClass)
# The limit of one call of `Queue.admin.requeue_many`.
_REQUEUE_BATCH = 1_000
_UNFINISHED = tuple(state for state in STATES if state not in FINISHED)
_REQUEUED = ("failed", "cancelled")


def _filters(states: tuple[str, ...]) -> Callable[[options.F], options.F]:
    """Return a decorator that adds the filter options to a command."""

    def decorate(command: options.F) -> options.F:
        for option in (
            click.option(
                "--older-than", type=params.DURATION, metavar="DURATION", help="Only jobs older than this: 1h, 7d."
            ),
            click.option("--tenant", help="Only jobs of this tenant."),
            click.option("--lane", help="Only jobs of this lane."),
            click.option("--kind", help="Only jobs of this kind."),
            click.option(
                "--state",
                type=click.Choice(states),
                multiple=True,
                metavar="STATE",
                help=f"Only jobs in this state: {', '.join(states)}. Repeatable.",
            ),
        ):
            command = option(command)
        return command

    return decorate


def _audit_target(job_ids: tuple[str, ...]) -> str:
    return job_ids[0] if len(job_ids) == 1 else formatting.number(len(job_ids), "job")


@click.group(
    cls=options.Group,
    epilog="""
    Examples:
      holdfast jobs list --state failed
      holdfast jobs show order-42
      holdfast jobs requeue --state failed --dry-run
    """,
)
def jobs() -> None:
    """Inspect and control jobs."""


@jobs.command(
    "list",
    epilog="""
    If --state names one finished state, jobs are listed by finish time, else by
    enqueue order. A job's age counts from its finish time, or from its enqueueing
    if it has not finished.

    FILTER is one line of state:, kind:, lane:, tenant:, session:, root:, group:,
    tag:, class:, fingerprint: and age>, as in the dashboard. Quote it.

    Examples:
      holdfast jobs list 'state:failed kind:email.send tag:order=42 age>1h'
      holdfast jobs list --state failed --failure-class transient
      holdfast jobs list --state ready --state running --older-than 1h
      holdfast jobs list --kind email.send --limit 20 --json
      holdfast jobs list --tag order=42 --tag customer=acme
      holdfast jobs list --group import-7 --state failed
    """,
)
@click.argument("filter_line", metavar="[FILTER]", required=False)
@_filters(STATES)
@click.option("--failure-class", type=click.Choice(FAILURE_CLASSES), help="Only jobs with this failure class.")
@click.option("--session", help="Only entries of this session, of --tenant or the default tenant.")
@click.option(
    "--tag", "tags", type=params.PAIR, multiple=True, metavar="K=V", help="Only jobs with this tag. Repeatable."
)
@click.option("--fingerprint", metavar="F", help="Only jobs that failed in one way; see 'holdfast failures'.")
@click.option("--root", metavar="ID", help="Only this job and the jobs of its tree: follow-ups, and theirs.")
@click.option("--group", metavar="NAME", help="Only members of this group, of --tenant or the default tenant.")
@click.option(
    "--limit", type=int, metavar="N", default=50, show_default=True, help="The maximum number of jobs, up to 1000."
)
@click.option("--after", metavar="CURSOR", help="Start after the last page; its output names the cursor.")
@options.pass_terminal
def list_(terminal: Terminal, /, filter_line: str | None, **filters: Any) -> None:
    """List jobs, newest first."""
    filters["tags"] = params.pairs("--tag", filters["tags"])
    chosen = job_bulk.with_line(job_bulk.given_filters(filters), filter_line or "")
    with terminal.queue() as queue:
        if "root" in chosen:
            chosen["root"] = job_names.id_of(queue, chosen["root"])
        page = queue.jobs(**chosen)
    if terminal.json:
        terminal.emit({"jobs": [json_view.job(job) for job in page], "cursor": page.cursor})
    else:
        job_list.draw(terminal, page)


@jobs.command(
    epilog="""
    Examples:
      holdfast jobs show order-42
      holdfast jobs show 1
      holdfast jobs show order-42 --json | jq .job.result
    """
)
@click.argument("job_id", metavar="ID")
@options.pass_terminal
def show(terminal: Terminal, job_id: str) -> None:
    """Show one job.

    Prints its properties, payload, result, failure with traceback, attempts and artifacts.
    """
    with terminal.queue() as queue:
        job = job_names.find_job(queue, job_id)
        attempts, artifacts = queue.attempts(job.id), queue.artifacts(job.id)
        unserved = _unserved_reason(queue, job)
        full = queue.why(job.id).reasons if job.state == "parked" else ()
        full = tuple(reason for reason in full if reason.code == "limit" and reason.blocks)
    if terminal.json:
        rest = {
            "attempts": [json_view.attempt(one) for one in attempts],
            "artifacts": [json_view.artifact(a) for a in artifacts],
            "limits": [reason.detail for reason in full],
        }
        terminal.emit({"job": json_view.job(job), **rest, "unserved": unserved})
    else:
        job_show.draw(terminal, job, attempts, artifacts, unserved, [reason.text for reason in full])


@jobs.command(
    epilog="""
    Reasons that keep the job from starting are marked with an arrow.

    Examples:
      holdfast jobs why order-42
      holdfast jobs why order-42 --json | jq .summary
    """
)
@click.argument("job_id", metavar="ID")
@options.pass_terminal
def why(terminal: Terminal, job_id: str) -> None:
    """Explain why a job is in its state.

    Prints what it waits for, who serves it, its place among others, and where it comes from.
    """
    with terminal.queue() as queue:
        found = queue.why(job_names.find_job(queue, job_id).id)
    if terminal.json:
        terminal.emit(json_view.why(found))
        return
    terminal.line(f"{found.job_id} is {found.state}:")
    for reason in found.reasons:
        terminal.item(reason.text, "->" if reason.blocks else "  ", "yellow" if reason.blocks else "")


def _unserved_reason(queue: Queue, job: Job) -> serving.UnservedReason | None:
    """Return why no live worker takes a waiting job, or None."""
    if job.state not in {"ready", "scheduled", "parked"}:
        return None
    paused = {lane.name for lane in queue.lanes.list() if lane.state == "paused"}
    workers = queue.admin.workers(limit=limits.PAGE_MAX)
    return serving.unserved_reason(job.lane, job.kind, job.requires, workers, paused)


@jobs.command(
    epilog="""
    Name jobs, or select them with filters; filters ask for confirmation first.

    Examples:
      holdfast jobs cancel order-42 order-43
      holdfast jobs cancel --force order-42
      holdfast jobs cancel --kind email.send --state scheduled --dry-run
      holdfast jobs cancel --lane bulk --older-than 2d --yes
      holdfast jobs cancel --tree order-42
    """
)
@click.argument("job_ids", metavar="[ID...]", nargs=-1)
@click.option("--tree", is_flag=True, help="Also the jobs of its tree: follow-ups, and theirs.")
@_filters(_UNFINISHED)
@click.option(
    "--force", is_flag=True, help="Cancel running jobs at once instead of requesting it from their workers."
)
@options.destructive
@options.pass_terminal
def cancel(
    terminal: Terminal, /, job_ids: tuple[str, ...], tree: bool, force: bool, dry_run: bool, yes: bool, **filters: Any
) -> None:
    """Cancel waiting jobs, and tell running ones to stop."""
    if tree and len(job_ids) != 1:
        raise click.UsageError("--tree needs the ID of one job")
    chosen = job_bulk.given_filters(filters)
    job_bulk.check_choice(job_ids, chosen, "cancel", dry_run=dry_run)
    if tree:
        _cancel_tree(terminal, job_ids[0], force=force)
        return
    if job_ids:
        _cancel_named(terminal, job_ids, force=force)
        return
    terminal.require_confirmation(allowed=dry_run or yes)
    chosen.setdefault("state", _UNFINISHED)
    with terminal.queue() as queue:
        total = job_bulk.confirm(terminal, queue, chosen, "cancel", dry_run=dry_run, yes=yes)
        if total is not None:
            queue.admin.record_action("jobs.cancel", "filter", detail={**chosen, "force": force})
            with terminal.progress("cancelling", total) as advance:
                report = job_bulk.cancel(queue, chosen, advance, force=force)
            _print_cancelled_many(terminal, report)


def _cancel_tree(terminal: Terminal, job_id: str, *, force: bool) -> None:
    with terminal.queue() as queue, terminal.busy("cancelling"):
        root = job_names.find_job(queue, job_id).id
        queue.admin.record_action("jobs.cancel", root, detail={"force": force, "tree": True})
        report = queue.cancel(root=root, force=force)
    _print_cancelled_many(terminal, report)


def _print_cancelled_many(terminal: Terminal, report: CancelReport) -> None:
    if terminal.json:
        terminal.emit(json_view.cancel_report(report))
        return
    stopping = ""
    if report.stop_requested:
        stopping = f"; asked {formatting.number(len(report.stop_requested), 'running job')} to stop"
    terminal.line(f"cancelled {formatting.number(len(report.cancelled), 'job')}{stopping}")
    for skipped in report.skipped:
        terminal.item(f"{skipped.job_id}: {skipped.why}", "skipped", "yellow")


def _cancel_named(terminal: Terminal, job_ids: tuple[str, ...], *, force: bool) -> None:
    cancelled: list[Job] = []
    refused: list[tuple[str, HoldfastError]] = []
    with terminal.queue() as queue:
        detail = {"jobs": list(job_ids), "force": force}
        queue.admin.record_action("jobs.cancel", _audit_target(job_ids), detail=detail)
        for job_id in job_ids:
            try:
                cancelled.append(queue.cancel(job_names.find_job(queue, job_id).id, force=force))
            except Refused as error:
                if len(job_ids) == 1:
                    raise
                refused.append((job_id, error))
    _print_cancelled(terminal, cancelled, refused)
    if refused:
        raise _partial_failure("cancelled", len(refused), len(job_ids))


def _print_cancelled(terminal: Terminal, cancelled: list[Job], refused: list[tuple[str, HoldfastError]]) -> None:
    if terminal.json:
        ended = [job.id for job in cancelled if job.state == "cancelled"]
        requested = [job.id for job in cancelled if job.state != "cancelled"]
        skipped = [Skipped(job_id, str(error), error.code) for job_id, error in refused]
        terminal.emit(json_view.cancel_report(CancelReport(ended, requested, skipped)))
        return
    for job in cancelled:
        if job.state == "cancelled":
            terminal.line(f"cancelled {job.id}")
        else:
            terminal.line(f"asked {job.id} to stop; {job.worker} is running it (--force cancels it at once)")
    for job_id, error in refused:
        terminal.item(f"{job_id}: {error}", "skipped", "yellow")


@jobs.command(
    epilog="""
    Name jobs, or select them with filters; filters ask for confirmation first.
    A requeued job starts again with attempt 1 and without a deadline.

    Examples:
      holdfast jobs requeue order-42 order-43
      holdfast jobs requeue --kind email.send --transient-only --dry-run
      holdfast jobs requeue --state failed --state cancelled --older-than 1h --yes
    """
)
@click.argument("job_ids", metavar="[ID...]", nargs=-1)
@click.option("--failed", is_flag=True, help="The same as --state failed.")
@click.option("--transient-only", is_flag=True, help="Only jobs with a transient failure.")
@click.option("--with-children", is_flag=True, help="Also the jobs that its end has cancelled.")
@_filters(_REQUEUED)
@options.destructive
@options.pass_terminal
def requeue(
    terminal: Terminal,
    /,
    job_ids: tuple[str, ...],
    *,
    failed: bool,
    transient_only: bool,
    with_children: bool,
    dry_run: bool,
    yes: bool,
    **filters: Any,
) -> None:
    """Make failed or cancelled jobs ready again."""
    if with_children and len(job_ids) != 1:
        raise click.UsageError("--with-children needs the ID of one job")
    chosen = job_bulk.given_filters(filters)
    if failed:
        chosen["state"] = ("failed", *chosen.get("state", ()))
    if transient_only:
        chosen["failure_class"] = "transient"
    job_bulk.check_choice(job_ids, chosen, "requeue", dry_run=dry_run)
    if job_ids:
        _requeue_named(terminal, job_ids, with_children=with_children)
        return
    terminal.require_confirmation(allowed=dry_run or yes)
    chosen.setdefault("state", ("failed",))
    with terminal.queue() as queue:
        total = job_bulk.confirm(terminal, queue, chosen, "requeue", dry_run=dry_run, yes=yes)
        if total is not None:
            queue.admin.record_action("jobs.requeue", "filter", detail=chosen)
            with terminal.progress("requeueing", total) as advance:
                requeued = job_bulk.requeue(queue, chosen, advance)
            _print_requeued(terminal, requeued, each=False)


def _requeue_named(terminal: Terminal, job_ids: tuple[str, ...], *, with_children: bool) -> None:
    with terminal.queue() as queue:
        queue.admin.record_action("jobs.requeue", _audit_target(job_ids), detail={"jobs": list(job_ids)})
        if len(job_ids) == 1:
            job = queue.requeue(job_names.find_job(queue, job_ids[0]).id, with_children=with_children)
            requeued = Requeued([job.id], [])
        else:
            ids = [job_names.id_of(queue, job_id) for job_id in job_ids]
            parts = range(0, len(ids), _REQUEUE_BATCH)
            requeued = _merge([queue.admin.requeue_many(ids[at : at + _REQUEUE_BATCH]) for at in parts])
    _print_requeued(terminal, requeued, each=True)
    if requeued.skipped:
        raise _partial_failure("requeued", len(requeued.skipped), len(job_ids))


def _merge(parts: list[Requeued]) -> Requeued:
    requeued = [job_id for part in parts for job_id in part.requeued]
    skipped: list[Skipped] = [one for part in parts for one in part.skipped]
    return Requeued(requeued, skipped)


def _print_requeued(terminal: Terminal, requeued: Requeued, *, each: bool) -> None:
    if terminal.json:
        terminal.emit(json_view.requeued(requeued))
        return
    for job_id in requeued.requeued if each else ():
        terminal.line(f"requeued {job_id}")
    if not each:
        terminal.line(f"requeued {formatting.number(len(requeued.requeued), 'job')}")
    for skipped in requeued.skipped:
        terminal.item(f"{skipped.job_id}: {skipped.why}", "skipped", "yellow")


@jobs.command(
    context_settings={"ignore_unknown_options": True},  # accept a negative number as an argument
    epilog="""
    Examples:
      holdfast jobs priority order-42 10
      holdfast jobs priority order-42 -5
    """,
)
@click.argument("job_id", metavar="ID")
@click.argument("priority", metavar="N", type=int)
@options.pass_terminal
def priority(terminal: Terminal, job_id: str, priority: int) -> None:
    """Change the priority of an unfinished job.

    Higher priorities run first.
    """
    with terminal.queue() as queue:
        queue.admin.record_action("jobs.priority", job_id, detail={"priority": priority})
        job = queue.reprioritize(job_names.find_job(queue, job_id).id, priority)
    if terminal.json:
        terminal.emit({"job": json_view.job(job)})
    else:
        terminal.line(f"{job.id} now has priority {job.priority}")


@jobs.command(
    epilog="""
    Prints the job's result as JSON. Exits with 0 if the job is done, 1 if it ended
    otherwise, 4 on a timeout.

    Examples:
      holdfast jobs wait order-42 --timeout 5m
      holdfast jobs wait order-42 && echo shipped
    """
)
@click.argument("job_id", metavar="ID")
@click.option(
    "--timeout", type=params.DURATION, default="1m", show_default=True, metavar="DURATION", help="How long to wait."
)
@options.pass_terminal
def wait(terminal: Terminal, job_id: str, timeout: float) -> int:
    """Wait until a job has finished and print its result."""
    with terminal.queue() as queue, terminal.busy(f"waiting for {job_id}"):
        job = queue.wait(job_names.find_job(queue, job_id).id, timeout=timeout)
    if terminal.json:
        terminal.emit({"job": json_view.job(job)})
    else:
        why = f": {formatting.failure(job.failure)}" if job.state == "failed" and job.failure else ""
        terminal.line(f"{job.id} is {job.state}{why}")
        result = json_view.job(job)["result"]
        if job.state == "done" and result is not None:
            terminal.line(json.dumps(result, indent=2, ensure_ascii=False))
    return errors.OK if job.state == "done" else errors.REFUSED


@jobs.command(
    epilog="""
    With --json every chunk is one line, with its number and attempt.

    Examples:
      holdfast jobs output order-42
      holdfast jobs output order-42 --follow
    """
)
@click.argument("job_id", metavar="ID")
@click.option("--after", type=click.IntRange(min=0), default=0, metavar="N", help="Only chunks after this number.")
@click.option("--follow", is_flag=True, help="Wait for more output until the job has finished.")
@options.pass_terminal
def output(terminal: Terminal, job_id: str, after: int, follow: bool) -> None:
    """Print the text that a job has emitted."""
    with terminal.queue() as queue:
        found = job_names.find_job(queue, job_id).id
        chunks = queue.stream(found, after=after) if follow else _read_output(queue, found, after)
        _write_output(terminal, chunks)


@jobs.command(
    epilog="""
    With --json and without -o, data_base64 holds the content as base64.

    Examples:
      holdfast jobs artifact order-42 invoice.pdf -o invoice.pdf
      holdfast jobs artifact order-42 log.txt | less
    """
)
@click.argument("job_id", metavar="ID")
@click.argument("name")
@click.option(
    "-o", "--output", metavar="FILE", default="-", help="The file to write; - is standard output (default)."
)
@options.pass_terminal
def artifact(terminal: Terminal, job_id: str, name: str, output: str) -> None:
    """Fetch one artifact of a job."""
    with terminal.queue() as queue:
        fetched = queue.artifact(job_names.find_job(queue, job_id).id, name)
    job_show.write_artifact(terminal, fetched, output)


def _partial_failure(verb: str, failed: int, total: int) -> errors.CommandError:
    return errors.CommandError(
        f"{failed} of {formatting.number(total, 'job')} could not be {verb}", code="refused", exit_code=errors.REFUSED
    )


def _read_output(queue: Queue, job_id: str, after: int) -> Iterator[OutputChunk]:
    """Yield the chunks that are stored now."""
    while page := queue.output(job_id, after=after):
        yield from page
        after = page[-1].number


def _write_output(terminal: Terminal, chunks: Iterable[OutputChunk]) -> None:
    """Write the text of *chunks*, with unsafe characters replaced on a terminal; with `--json` one line for each."""
    text, ends_line = "", True
    for chunk in chunks:
        if terminal.json:
            terminal.emit(json_view.output_chunk(chunk))
            continue
        text = formatting.clean(chunk.text, keep="\n\t\r") if terminal.out.is_terminal else chunk.text
        sys.stdout.write(text)
        sys.stdout.flush()
        ends_line = text.endswith("\n")
    if not text and not terminal.json:
        terminal.note("the job has emitted no text")
    if not ends_line and terminal.out.is_terminal:
        terminal.line()
