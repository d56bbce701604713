"""`holdfast groups`: jobs that were enqueued together."""

import click

from holdfast import Queue, json_view
from holdfast.cli import errors, formatting, params, tables
from holdfast.cli.options import Group, pass_terminal
from holdfast.cli.terminal import Terminal
from holdfast.domain import groups as group_rules, limits, routing, serving
from holdfast.domain.job import State

_tenant = click.option("--tenant", default=routing.DEFAULT_NAME, show_default=True, help="The tenant of the group.")


@click.group(
    cls=Group,
    epilog="""
    Programs make groups with queue.group(...).

    Examples:
      holdfast groups list
      holdfast groups show import-7
      holdfast groups wait import-7 --timeout 1h
      holdfast groups cancel import-7
    """,
)
def groups() -> None:
    """List, show, wait for and cancel groups of jobs."""


@groups.command(
    "list",
    epilog="""
    Examples:
      holdfast groups list
      holdfast groups list --json | jq '.groups[] | select(.state == "running")'
    """,
)
@click.option("--tenant", help="Only those of this tenant.")
@click.option("--limit", type=int, default=100, show_default=True, metavar="N", help="The maximum number of groups.")
@pass_terminal
def list_(terminal: Terminal, tenant: str | None, limit: int) -> None:
    """List groups, newest first."""
    with terminal.queue() as queue:
        found = queue.groups.list(tenant=tenant, limit=limit)
    if terminal.json:
        terminal.emit({"groups": [json_view.group(one) for one in found]})
    elif found:
        columns = [
            tables.Column("NAME", [one.name for one in found]),
            tables.Column("TENANT", [one.tenant for one in found], rank=1, hide_if=routing.DEFAULT_NAME),
            tables.Column("STATE", [one.state for one in found]),
            tables.Column("MEMBERS", [f"{one.members:,}" for one in found], justify="right"),
            tables.Column("ENDED", [_ended(one) for one in found]),
            tables.Column("CREATED", [formatting.relative(one.created_at, terminal.now) for one in found], rank=2),
        ]
        terminal.show(tables.table(columns, terminal.out.width))
    else:
        terminal.note("there are no groups; programs make them with queue.group(...)")


def _ended(one: group_rules.JobGroup) -> str:
    counts = {"done": one.done, "failed": one.failed, "cancelled": one.cancelled, "retired": one.retired}
    return ", ".join(f"{count} {state}" for state, count in counts.items() if count) or "none"


@groups.command(
    epilog="""
    Ends are counted by the claims of workers, soon after they happen.

    Examples:
      holdfast groups show import-7
      holdfast groups show import-7 --json | jq .unfinished
    """
)
@click.argument("name")
@_tenant
@pass_terminal
def show(terminal: Terminal, name: str, tenant: str) -> None:
    """Show one group: how many members have ended, and its callbacks."""
    with terminal.queue() as queue:
        one = queue.groups.get(name, tenant=tenant)
    if terminal.json:
        terminal.emit(json_view.group(one))
        return
    terminal.line(_sentence(one))
    for event, job_id in one.callbacks.items():
        terminal.line(f"{event}: {job_id}")
    if one.problem is not None:
        terminal.line(one.problem, "yellow")


def _sentence(one: group_rules.JobGroup) -> str:
    ended = [] if one.unfinished == one.members else [_ended(one)]
    left = [f"{one.unfinished:,} unfinished"] if one.unfinished else []
    counts = ", ".join([formatting.number(one.members, "member"), *ended, *left])
    return f"group {one.name} is {one.state}: {counts}"


@groups.command(
    epilog="""
    Exits with 0 if all members are done, 1 if one ended otherwise, 4 on a timeout.

    Examples:
      holdfast groups wait import-7 --timeout 1h && echo imported
    """
)
@click.argument("name")
@click.option(
    "--timeout", type=params.DURATION, default="1m", show_default=True, metavar="DURATION", help="How long to wait."
)
@_tenant
@pass_terminal
def wait(terminal: Terminal, name: str, timeout: float, tenant: str) -> int:
    """Wait until all members of a group have ended."""
    with terminal.queue() as queue:
        for text in _unserved(queue, queue.groups.get(name, tenant=tenant)):
            terminal.note(text)
        with terminal.busy(f"waiting for group {name}"):
            one = queue.groups.wait(name, timeout=timeout, tenant=tenant)
    terminal.report(json_view.group(one), _sentence(one))
    return errors.OK if one.state == "done" else errors.REFUSED


def _unserved(queue: Queue, group: group_rules.JobGroup) -> list[str]:
    """Return which waiting members no live worker takes, of the first of them."""
    states: tuple[State, ...] = ("ready", "scheduled", "parked")
    waiting = [
        job for state in states for job in queue.jobs(group=group.name, tenant=group.tenant, state=state, limit=100)
    ]
    served = dict.fromkeys((job.lane, job.kind, tuple(job.requires)) for job in waiting)
    paused = {lane.name for lane in queue.lanes.list() if lane.state == "paused"} if served else set()
    workers = queue.admin.workers(limit=limits.PAGE_MAX) if served else []
    found = []
    for lane, kind, requires in served:
        if (reason := serving.unserved_reason(lane, kind, requires, workers, paused)) is not None:
            found.append(f"members of {kind} in lane {lane}: {serving.reason_text(reason, requires, 2)}")
    return found


@groups.command(
    epilog="""
    Waiting members are cancelled, running ones are asked to stop. The group takes
    no more members; its callbacks run as after any other end.

    Examples:
      holdfast groups cancel import-7
      holdfast groups cancel import-7 --force
    """
)
@click.argument("name")
@click.option("--force", is_flag=True, help="Take running members from their workers.")
@_tenant
@pass_terminal
def cancel(terminal: Terminal, name: str, force: bool, tenant: str) -> None:
    """Cancel all members of a group that have not ended."""
    with terminal.queue() as queue:
        queue.admin.record_action("groups.cancel", name, detail={"tenant": tenant, "force": force})
        report = queue.groups.cancel(name, force=force, tenant=tenant)
    stopping = f", {len(report.stop_requested)} asked to stop" if report.stop_requested else ""
    cancelled = f"{formatting.number(len(report.cancelled), 'member')} cancelled"
    terminal.report(json_view.cancel_report(report), f"{cancelled}{stopping}")
