"""`holdfast jobs`: list, show, cancel, requeue, change the priority of, wait for, and fetch the artifacts of jobs."""

from __future__ import annotations

from typing import Any, get_args

import click

from holdfast import HoldfastError, Job, Queue, Refused, Requeued, Skipped
from holdfast.cli import complaints, job_artifact, job_list, job_show, text, values, wire
from holdfast.cli.complaints import Complaint
from holdfast.cli.shared import Group, pass_terminal
from holdfast.cli.terminal import Terminal
from holdfast.domain import limits
from holdfast.domain.failure import FailureClass
from holdfast.domain.job import STATES
from holdfast.domain.serving import UnservedReason, unserved_reason

FAILURE_CLASSES = get_args(FailureClass)
# As many ids as one call of the library takes.
_REQUEUE_AT_ONCE = 1_000


@click.group(
    cls=Group,
    epilog="""
    Examples:
      holdfast jobs list --state failed
      holdfast jobs show order-42
      holdfast jobs requeue --failed
    """,
)
def jobs() -> None:
    """Look at jobs and steer them."""


@jobs.command(
    "list",
    epilog="""
    With --state, finished jobs are listed by their end; all else by enqueue order.

    Examples:
      holdfast jobs list --state failed --failure-class transient
      holdfast jobs list --kind email.send --limit 20 --json
    """,
)
@click.option("--state", type=click.Choice(STATES), help="Only jobs in this state.")
@click.option("--kind", help="Only jobs of this kind.")
@click.option("--lane", help="Only jobs of this lane.")
@click.option("--tenant", help="Only jobs of this tenant.")
@click.option("--failure-class", type=click.Choice(FAILURE_CLASSES), help="Only jobs that failed in this way.")
@click.option("--session", help="Only batches of this session, of --tenant or the default tenant.")
@click.option("--limit", type=int, default=50, show_default=True, help="How many at most, up to 1000.")
@click.option("--after", metavar="CURSOR", help="Go on from where the last page ended.")
@pass_terminal
def list_(terminal: Terminal, /, **filters: Any) -> None:
    """List jobs, newest first."""
    with terminal.queue() as queue:
        page = queue.jobs(**filters)
    if terminal.json:
        terminal.emit({"jobs": [wire.job(job) for job in page], "cursor": page.cursor})
    else:
        job_list.draw(terminal, page)


@jobs.command(
    epilog="""
    Examples:
      holdfast jobs show order-42
      holdfast jobs show order-42 --json | jq .result
    """
)
@click.argument("job_id", metavar="ID")
@pass_terminal
def show(terminal: Terminal, job_id: str) -> None:
    """Show everything about one job.

    Its properties, payload, result, failure with traceback, attempts and artifacts.
    """
    with terminal.queue() as queue:
        job, attempts, artifacts = queue.get(job_id), queue.attempts(job_id), queue.artifacts(job_id)
        waits = _unserved_reason(queue, job)
    if terminal.json:
        found = {
            "attempts": [wire.attempt(one) for one in attempts],
            "artifacts": [wire.artifact(a) for a in artifacts],
        }
        terminal.emit({"job": wire.job(job), **found, "unserved": waits})
    else:
        job_show.draw(terminal, job, attempts, artifacts, waits)


def _unserved_reason(queue: Queue, job: Job) -> UnservedReason | None:
    """Return why no live worker takes a job that waits, if none does."""
    if job.state not in {"ready", "scheduled"}:
        return None
    paused = {lane.name for lane in queue.lanes() if lane.state == "paused"}
    workers = queue.workers(limit=limits.PAGE_MAX)
    return unserved_reason(job.lane, job.kind, job.requires, workers, paused)


@jobs.command(
    epilog="""
    Examples:
      holdfast jobs cancel order-42 order-43
      holdfast jobs cancel --force order-42
    """
)
@click.argument("job_ids", metavar="ID...", nargs=-1, required=True)
@click.option(
    "--force", is_flag=True, help="Take a running job from its worker at once instead of asking it to stop."
)
@pass_terminal
def cancel(terminal: Terminal, job_ids: tuple[str, ...], force: bool) -> None:
    """Cancel waiting jobs at once; ask running ones to stop."""
    cancelled: list[Job] = []
    refused: list[tuple[str, HoldfastError]] = []
    with terminal.queue() as queue:
        for job_id in job_ids:
            try:
                cancelled.append(queue.cancel(job_id, force=force))
            except Refused as error:
                if len(job_ids) == 1:
                    raise
                refused.append((job_id, error))
    _tell_cancelled(terminal, cancelled, refused)
    if refused:
        raise _partly("cancelled", len(refused), len(job_ids))


def _tell_cancelled(terminal: Terminal, cancelled: list[Job], refused: list[tuple[str, HoldfastError]]) -> None:
    if terminal.json:
        problems = [{"job_id": job_id, "code": error.code, "message": str(error)} for job_id, error in refused]
        terminal.emit({"jobs": [wire.job(job) for job in cancelled], "refused": problems})
        return
    for job in cancelled:
        if job.state == "cancelled":
            terminal.line(f"cancelled {job.id}")
        else:
            terminal.line(f"asked {job.id} to stop; {job.worker} is running it (--force takes it away at once)")
    for job_id, error in refused:
        terminal.line(f"not cancelled: {job_id}: {error}", "red")


@jobs.command(
    epilog="""
    A requeued job has all its attempts again and no deadline.

    Examples:
      holdfast jobs requeue order-42 order-43
      holdfast jobs requeue --failed --transient-only --kind email.send
    """
)
@click.argument("job_ids", metavar="[ID...]", nargs=-1)
@click.option("--failed", is_flag=True, help="Every failed job that matches the options below.")
@click.option("--transient-only", is_flag=True, help="With --failed: only those that may succeed if tried again.")
@click.option("--kind", help="With --failed: only jobs of this kind.")
@click.option("--lane", help="With --failed: only jobs of this lane.")
@click.option("--tenant", help="With --failed: only jobs of this tenant.")
@pass_terminal
def requeue(terminal: Terminal, /, job_ids: tuple[str, ...], failed: bool, **filters: Any) -> None:
    """Make failed or cancelled jobs ready again."""
    _check_requeue(job_ids, failed, filters)
    with terminal.queue() as queue:
        if failed:
            with terminal.busy("requeueing failed jobs"):
                requeued = queue.requeue_failed(**filters)
        elif len(job_ids) == 1:
            requeued = Requeued([queue.requeue(job_ids[0]).id], [])
        else:
            parts = range(0, len(job_ids), _REQUEUE_AT_ONCE)
            requeued = _joined([queue.requeue_many(job_ids[at : at + _REQUEUE_AT_ONCE]) for at in parts])
    _tell_requeued(terminal, requeued, each=not failed)
    if job_ids and requeued.skipped:
        raise _partly("requeued", len(requeued.skipped), len(job_ids))


def _check_requeue(job_ids: tuple[str, ...], failed: bool, filters: dict[str, Any]) -> None:
    hint = "holdfast jobs requeue ID..., or holdfast jobs requeue --failed [--kind KIND]"
    if failed and job_ids:
        raise Complaint("name ids or --failed, not both", hint=hint)
    if not failed and not job_ids:
        raise Complaint("name the jobs to requeue, or --failed for all that failed", hint=hint)
    if not failed and any(filters.values()):
        raise Complaint("--transient-only, --kind, --lane and --tenant go with --failed", hint=hint)


def _joined(parts: list[Requeued]) -> Requeued:
    requeued = [job_id for part in parts for job_id in part.requeued]
    skipped: list[Skipped] = [one for part in parts for one in part.skipped]
    return Requeued(requeued, skipped)


def _tell_requeued(terminal: Terminal, requeued: Requeued, *, each: bool) -> None:
    if terminal.json:
        terminal.emit(wire.requeued(requeued))
        return
    for job_id in requeued.requeued if each else ():
        terminal.line(f"requeued {job_id}")
    if not each:
        terminal.line(f"requeued {text.number(len(requeued.requeued), 'failed job')}")
    for skipped in requeued.skipped:
        terminal.line(f"skipped {skipped.job_id}: {skipped.why}", "yellow")


@jobs.command(
    context_settings={"ignore_unknown_options": True},  # so that a negative number is not taken for an option
    epilog="""
    Examples:
      holdfast jobs priority order-42 10
      holdfast jobs priority order-42 -5
    """,
)
@click.argument("job_id", metavar="ID")
@click.argument("priority", metavar="N", type=int)
@pass_terminal
def priority(terminal: Terminal, job_id: str, priority: int) -> None:
    """Change the priority of an unfinished job; higher goes first."""
    with terminal.queue() as queue:
        job = queue.reprioritize(job_id, priority)
    if terminal.json:
        terminal.emit({"job": wire.job(job)})
    else:
        terminal.line(f"{job.id} now has priority {job.priority}")


@jobs.command(
    epilog="""
    Exits with 0 if the job is done, 1 if it ended otherwise, 4 if the time ran out.

    Examples:
      holdfast jobs wait order-42 --timeout 5m
      holdfast jobs wait order-42 && echo shipped
    """
)
@click.argument("job_id", metavar="ID")
@click.option("--timeout", type=values.DURATION, default="1m", show_default=True, metavar="TIME", help="How long.")
@pass_terminal
def wait(terminal: Terminal, job_id: str, timeout: float) -> int:
    """Wait until a job has finished, in whichever way."""
    with terminal.queue() as queue, terminal.busy(f"waiting for {job_id}"):
        job = queue.wait(job_id, timeout=timeout)
    if terminal.json:
        terminal.emit({"job": wire.job(job)})
    else:
        why = f": {text.failure(job.failure)}" if job.state == "failed" and job.failure else ""
        terminal.line(f"{job.id} is {job.state}{why}")
    return complaints.OK if job.state == "done" else complaints.REFUSED


@jobs.command(
    epilog="""
    With --json the bytes come as base64 in data_base64, unless -o names a file.

    Examples:
      holdfast jobs artifact order-42 invoice.pdf -o invoice.pdf
      holdfast jobs artifact order-42 log.txt | less
    """
)
@click.argument("job_id", metavar="ID")
@click.argument("name")
@click.option(
    "-o", "--output", metavar="FILE", default="-", help="Where to write it; - is standard output (default)."
)
@pass_terminal
def artifact(terminal: Terminal, job_id: str, name: str, output: str) -> None:
    """Fetch one artifact of a job."""
    with terminal.queue() as queue:
        found = queue.artifact(job_id, name)
    job_artifact.deliver(terminal, found, output)


def _partly(verb: str, missed: int, asked: int) -> Complaint:
    return Complaint(
        f"{missed} of {text.number(asked, 'job')} could not be {verb}", code="refused", exit_code=complaints.REFUSED
    )
