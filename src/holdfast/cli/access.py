"""`holdfast token` and `holdfast audit`: tokens of the HTTP service, and the log of operator actions."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import click

from holdfast import json_view
from holdfast.cli import formatting, params, tables
from holdfast.cli.options import Command, Group, pass_terminal
from holdfast.cli.terminal import Terminal
from holdfast.domain import access, limits


@click.group(
    cls=Group,
    epilog="""
    Examples:
      holdfast token create billing --role produce --tenant acme --lane mail
      holdfast token list
      holdfast token revoke mvxgk3tdmfxgg2lb
    """,
)
def token() -> None:
    """Create, list, rotate and revoke tokens of the HTTP service."""


@token.command(
    epilog="""
    The token is printed once; the store keeps a hash of it. Roles: produce enqueues
    and reads its jobs, work claims and settles, read reads, admin does everything.
    Without --tenant the token is for any tenant, without --lane or --kind for any.

    Examples:
      holdfast token create billing --role produce --tenant acme --lane mail
      holdfast token create gpu-worker --role work --kind video.encode --claim-max 4
      holdfast token create grafana --role read --expires-in 90d --json
    """
)
@click.argument("name")
@click.option(
    "--role", "roles", type=click.Choice(access.ROLES), multiple=True, required=True, help="A role. Repeatable."
)
@click.option("--tenant", help="The only tenant that it may use.")
@click.option("--lane", "lanes", multiple=True, help="A lane that it may use. Repeatable.")
@click.option("--kind", "kinds", multiple=True, help="A kind that it may use. Repeatable.")
@click.option("--priority-max", type=int, metavar="N", help="The highest priority of a job.")
@click.option(
    "--payload-max", "payload_bytes_max", type=params.SIZE, metavar="SIZE", help="The largest payload: 64K."
)
@click.option("--claim-max", type=int, metavar="N", help="The maximum number of jobs in one claim.")
@click.option("--expires-in", type=params.DURATION, metavar="DURATION", help="When it expires: 90d.")
@pass_terminal
def create(terminal: Terminal, /, name: str, roles: tuple[access.Role, ...], **given: Any) -> None:
    """Create a token and print it."""
    options = {option: value for option, value in given.items() if value not in {None, ()}}
    with terminal.queue(create=True) as queue:
        created = queue.admin.tokens.create(name, roles=roles, **options)
    _print_new(terminal, created)


@token.command(
    "list",
    epilog="""
    Examples:
      holdfast token list
      holdfast token list --json | jq '.tokens[] | select(.state == "active")'
    """,
)
@click.option("--limit", type=int, default=100, show_default=True, metavar="N", help="The maximum number of tokens.")
@pass_terminal
def list_(terminal: Terminal, limit: int) -> None:
    """List the tokens, newest first, without their secrets."""
    with terminal.queue() as queue:
        found = queue.admin.tokens.list(limit=limit)
    if terminal.json:
        terminal.emit({"tokens": [json_view.token(one, terminal.now) for one in found]})
    elif found:
        _draw(terminal, found)
    else:
        terminal.note("there are no tokens; 'holdfast token create' makes one")


@token.command(
    epilog="""
    The new token has the same roles, scopes, ceilings and lifetime. The old one
    expires after --overlap; 'token list' shows whether it is still used.

    Examples:
      holdfast token rotate mvxgk3tdmfxgg2lb
      holdfast token rotate mvxgk3tdmfxgg2lb --overlap 1h
    """
)
@click.argument("token_id", metavar="ID")
@click.option(
    "--overlap",
    type=params.DURATION,
    default=limits.TOKEN_OVERLAP_MS_DEFAULT / 1000,
    metavar="DURATION",
    help="How long the old token stays valid. Default: 1d.",
)
@pass_terminal
def rotate(terminal: Terminal, token_id: str, overlap: float) -> None:
    """Replace a token by a new one with the same grants."""
    with terminal.queue() as queue:
        created = queue.admin.tokens.rotate(token_id, overlap=overlap)
    _print_new(terminal, created)


@token.command(
    epilog="""
    Servers refuse the token and end its event streams within a second.

    Examples:
      holdfast token revoke mvxgk3tdmfxgg2lb
    """
)
@click.argument("token_id", metavar="ID")
@pass_terminal
def revoke(terminal: Terminal, token_id: str) -> None:
    """Revoke a token at once."""
    with terminal.queue() as queue:
        revoked = queue.admin.tokens.revoke(token_id)
    if terminal.json:
        terminal.emit(json_view.token(revoked, terminal.now))
    else:
        terminal.line(f"token {revoked.id} ({revoked.name}) is revoked")


def _print_new(terminal: Terminal, created: access.NewToken) -> None:
    if terminal.json:
        terminal.emit({**json_view.token(created.token, terminal.now), "token": created.text})
        return
    terminal.line(created.text)
    terminal.note(f"token {created.token.id} for {created.token.name}; it is not shown again")


def _draw(terminal: Terminal, found: list[access.Token]) -> None:
    now = terminal.now
    columns = [
        tables.Column("ID", [one.id for one in found]),
        tables.Column("NAME", [one.name for one in found], min_width=8),
        tables.Column("STATE", [one.state(now) for one in found], states=True),
        tables.Column("ROLES", [", ".join(one.grants.roles) for one in found]),
        tables.Column("TENANT", [one.grants.tenant or "" for one in found], rank=1, hide_if=""),
        tables.Column("LANES", [", ".join(one.grants.lanes or ()) for one in found], rank=3, hide_if=""),
        tables.Column("KINDS", [", ".join(one.grants.kinds or ()) for one in found], rank=3, hide_if=""),
        tables.Column("EXPIRES", [_relative(one.expires_at, now) for one in found], rank=2, hide_if=""),
        tables.Column("USED", [_relative(one.last_used_at, now) for one in found], rank=2, hide_if=""),
        tables.Column("CREATED", [_relative(one.created_at, now) for one in found], rank=4),
    ]
    terminal.show(tables.table(columns, terminal.out.width))


def _relative(at: datetime | None, now: datetime) -> str:
    return "" if at is None else formatting.relative(at, now)


@click.command(
    cls=Command,
    epilog="""
    The log has what was requested on the command line, with the user of the
    operating system, and over HTTP, with the id of the token: cancel, requeue,
    prune, changes of priorities, lanes, kinds, groups, limits, schedules,
    webhooks, workers and tokens. An entry is written before the action.

    Examples:
      holdfast audit
      holdfast audit --limit 500 --json | jq 'select(.action == "prune")'
    """,
)
@click.option("--limit", type=int, default=50, show_default=True, metavar="N", help="The maximum number of entries.")
@click.option("--before", type=int, metavar="ENTRY", help="Only entries before this number.")
@pass_terminal
def audit(terminal: Terminal, limit: int, before: int | None) -> None:
    """Print what operators did, newest first."""
    with terminal.queue() as queue:
        found = queue.admin.audit_log(limit=limit, before=before)
    if terminal.json:
        for entry in found:
            terminal.emit(json_view.audit_entry(entry))
    elif found:
        columns = [
            tables.Column("#", [str(one.number) for one in found], justify="right"),
            tables.Column("WHEN", [formatting.timestamp(one.at) for one in found]),
            tables.Column("WHO", [one.actor for one in found], min_width=8),
            tables.Column("ACTION", [one.action for one in found]),
            tables.Column("TARGET", [one.target for one in found], min_width=16, wrap=True),
            tables.Column(
                "DETAIL", [_detail(one.detail) for one in found], rank=1, min_width=12, wrap=True, hide_if=""
            ),
        ]
        terminal.show(tables.table(columns, terminal.out.width))
    else:
        terminal.note("no operator has done anything yet")


def _detail(detail: Mapping[str, Any]) -> str:
    """Return the values that are set, as text that can be wrapped at spaces."""
    chosen = {name: value for name, value in detail.items() if value is not None}
    lists = {name: ", ".join(map(str, value)) for name, value in chosen.items() if isinstance(value, list)}
    return "; ".join(f"{name} {lists.get(name, value)}" for name, value in chosen.items())
