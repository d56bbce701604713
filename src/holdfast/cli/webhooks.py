"""`holdfast webhooks`: events of jobs, sent to URLs."""

import os
from datetime import datetime
from typing import Any

import click

from holdfast import json_view
from holdfast.cli import formatting, params, tables
from holdfast.cli.options import Group, pass_terminal
from holdfast.cli.terminal import Terminal
from holdfast.domain import errors, limits, webhook_urls
from holdfast.domain.webhooks import TYPES, Delivery, NewWebhook, Webhook
from holdfast.webhooks import sender


@click.group(
    cls=Group,
    epilog="""
    Examples:
      holdfast webhooks add https://example.org/hook --type job.done --json
      holdfast webhooks test wh_mvxgk3tdmfxgg2lb
      holdfast webhooks show wh_mvxgk3tdmfxgg2lb
      holdfast webhooks replay wh_mvxgk3tdmfxgg2lb
    """,
)
def webhooks() -> None:
    """Add, list, test, rotate and remove webhooks."""


def _set_allowed(_context: click.Context, _parameter: click.Parameter, networks: str | None) -> None:
    if networks is not None:
        webhook_urls.parse_networks(networks, "--webhook-allow")
        # The processes that this command starts read it as well.
        os.environ[sender.ALLOW_VARIABLE] = networks


webhook_allow = click.option(
    "--webhook-allow",
    expose_value=False,
    callback=_set_allowed,
    metavar="NETWORKS",
    help="Private networks that webhooks may reach: 10.0.0.0/8. Default: $HOLDFAST_WEBHOOK_ALLOW.",
)
"""The option of commands that send webhooks."""


@webhooks.command(
    epilog="""
    The secret is printed once; give it to the receiver. Without --type the final
    events are delivered: job.done, job.failed, job.cancelled and job.retired. A
    worker or 'holdfast serve' with the extra holdfast[webhooks] sends them.
    --per-job makes the endpoint of jobs whose webhook_url has the origin URL.

    Examples:
      holdfast webhooks add https://example.org/hook --kind email.send
      holdfast webhooks add https://example.org/hook --tenant acme --tag plan=pro
      holdfast webhooks add https://example.org --per-job --json
    """
)
@click.argument("receiver", metavar="URL")
@click.option(
    "--type", "types", type=click.Choice(TYPES), multiple=True, metavar="TYPE", help="An event type. Repeatable."
)
@click.option("--tenant", help="Only jobs of this tenant.")
@click.option("--kind", "kinds", multiple=True, help="Only jobs of this kind. Repeatable.")
@click.option("--lane", "lanes", multiple=True, help="Only jobs in this lane. Repeatable.")
@click.option("--tag", "tags", type=params.PAIR, multiple=True, metavar="NAME=VALUE", help="Only jobs with this tag.")
@click.option("--include-results", is_flag=True, help="Send results with job.done.")
@click.option("--concurrency", type=int, metavar="N", help="Deliveries at once. Default: 8.")
@click.option("--per-job", is_flag=True, help="The endpoint of jobs with a webhook_url.")
@pass_terminal
def add(terminal: Terminal, /, receiver: str, **given: Any) -> None:
    """Deliver events from now on to a URL."""
    options = {
        option: value for option, value in given.items() if value is not None and value is not False and value != ()
    }
    if "tags" in options:
        options["tags"] = dict(options["tags"])
    with terminal.queue(create=True) as queue:
        try:
            added = queue.webhooks.add(receiver, **options)
        except errors.InvalidInput as error:
            # The option --url names the queue, not the receiver.
            raise errors.InvalidInput("URL", error.problem) if error.field == "url" else error from None
    _print_new(terminal, added)


def _print_new(terminal: Terminal, new: NewWebhook) -> None:
    if terminal.json:
        terminal.emit({**json_view.webhook(new.webhook), "secret": new.secret})
        return
    terminal.line(new.secret)
    terminal.note(f"webhook {new.webhook.id} for {new.webhook.url}; the secret is not shown again")


@webhooks.command(
    "list",
    epilog="""
    Examples:
      holdfast webhooks list
      holdfast webhooks list --json | jq '.webhooks[].reason'
    """,
)
@click.option("--tenant", help="Only those of this tenant.")
@click.option(
    "--limit", type=int, default=100, show_default=True, metavar="N", help="The maximum number of webhooks."
)
@pass_terminal
def list_(terminal: Terminal, tenant: str | None, limit: int) -> None:
    """List the webhooks, newest first, without their secrets."""
    with terminal.queue() as queue:
        found = queue.webhooks.list(tenant=tenant, limit=limit)
    if terminal.json:
        terminal.emit({"webhooks": [json_view.webhook(one) for one in found]})
    elif found:
        now = terminal.now
        columns = [
            tables.Column("ID", [one.id for one in found]),
            tables.Column("URL", [one.url for one in found], min_width=12, wrap=True),
            tables.Column("STATE", [_state(one, now) for one in found], states=True),
            tables.Column(
                "TYPES", [", ".join(one.types) or "per job" for one in found], rank=2, min_width=14, wrap=True
            ),
            tables.Column("TENANT", [one.tenant or "" for one in found], rank=1, hide_if=""),
            tables.Column("SUCCESS", [_relative(one.last_success_at, now) for one in found], rank=2, hide_if=""),
            tables.Column("ADDED", [_relative(one.created_at, now) for one in found], rank=4),
        ]
        terminal.show(tables.table(columns, terminal.out.width))
    else:
        terminal.note("there are no webhooks; 'holdfast webhooks add' makes one")


def _state(one: Webhook, now: datetime) -> str:
    closed = one.closed_until is not None and one.closed_until > now
    return "closed" if closed and one.state == "active" else one.state


def _described_state(one: Webhook, now: datetime) -> str:
    state = _state(one, now)
    if state == "closed":
        return f"state: closed; the next try is {_relative(one.closed_until, now)}"
    return f"state: {state}{f': {one.reason}' if one.reason else ''}"


def _relative(at: datetime | None, now: datetime) -> str:
    return "" if at is None else formatting.relative(at, now)


@webhooks.command(
    epilog="""
    Examples:
      holdfast webhooks show wh_mvxgk3tdmfxgg2lb
      holdfast webhooks show wh_mvxgk3tdmfxgg2lb --limit 100 --json
    """
)
@click.argument("webhook_id", metavar="ID")
@click.option("--limit", type=int, default=10, show_default=True, metavar="N", help="How many deliveries to show.")
@pass_terminal
def show(terminal: Terminal, webhook_id: str, limit: int) -> None:
    """Show one webhook and its newest deliveries."""
    with terminal.queue() as queue:
        one = queue.webhooks.get(webhook_id)
        found = queue.webhooks.deliveries(webhook_id, limit=limit)
    if terminal.json:
        deliveries = [json_view.delivery(delivery) for delivery in found]
        terminal.emit({**json_view.webhook(one), "deliveries": deliveries})
        return
    now = terminal.now
    terminal.line(f"{one.id} {one.url}")
    terminal.paragraph(_described_state(one, now))
    terminal.paragraph(f"types: {', '.join(one.types) or 'every event of jobs with a webhook_url of this origin'}")
    if one.last_answer is not None:
        terminal.paragraph(f"last answer that was no success: {one.last_answer[:200]}")
    if found:
        terminal.show(tables.table(_deliveries(found, now), terminal.out.width))
    else:
        terminal.note("it has no deliveries yet")


def _deliveries(found: list[Delivery], now: datetime) -> list[tables.Column]:
    return [
        # A problem is worth more than the whole id.
        tables.Column("DELIVERY", [one.id for one in found], min_width=30),
        tables.Column("TYPE", [one.type for one in found]),
        tables.Column("STATE", [one.state for one in found], states=True),
        tables.Column("TRIES", [str(one.tries) for one in found], justify="right"),
        tables.Column("NEXT", [_relative(one.next_try_at, now) for one in found], rank=2, hide_if=""),
        tables.Column(
            "PROBLEM", [(one.problem or "")[:200] for one in found], rank=1, min_width=16, wrap=True, hide_if=""
        ),
    ]


@webhooks.command(
    epilog="""
    Deliveries that were not made yet fail.

    Examples:
      holdfast webhooks remove wh_mvxgk3tdmfxgg2lb
    """
)
@click.argument("webhook_id", metavar="ID")
@pass_terminal
def remove(terminal: Terminal, webhook_id: str) -> None:
    """Delete a webhook."""
    with terminal.queue() as queue:
        one = queue.webhooks.remove(webhook_id)
    terminal.report(json_view.webhook(one), f"webhook {one.id} ({one.url}) is removed")


@webhooks.command(
    epilog="""
    Events from now on are delivered; 'holdfast webhooks replay' sends the failed
    deliveries again. A closed endpoint is opened at once.

    Examples:
      holdfast webhooks enable wh_mvxgk3tdmfxgg2lb
    """
)
@click.argument("webhook_id", metavar="ID")
@pass_terminal
def enable(terminal: Terminal, webhook_id: str) -> None:
    """Deliver again to a webhook that was disabled."""
    with terminal.queue() as queue:
        one = queue.webhooks.enable(webhook_id)
    terminal.report(json_view.webhook(one), f"webhook {one.id} ({one.url}) is active")


@webhooks.command(
    epilog="""
    Deliveries are signed with both secrets until --overlap has passed.

    Examples:
      holdfast webhooks rotate wh_mvxgk3tdmfxgg2lb
      holdfast webhooks rotate wh_mvxgk3tdmfxgg2lb --overlap 1h --json
    """
)
@click.argument("webhook_id", metavar="ID")
@click.option(
    "--overlap",
    type=params.DURATION,
    default=limits.WEBHOOK_OVERLAP_MS_DEFAULT / 1000,
    metavar="DURATION",
    help="How long the old secret signs as well. Default: 1d.",
)
@pass_terminal
def rotate(terminal: Terminal, webhook_id: str, overlap: float) -> None:
    """Give a webhook a new secret and print it."""
    with terminal.queue() as queue:
        rotated = queue.webhooks.rotate(webhook_id, overlap=overlap)
    _print_new(terminal, rotated)


@webhooks.command(
    epilog="""
    The deliveries keep their ids, so that receivers recognize those they have.

    Examples:
      holdfast webhooks replay wh_mvxgk3tdmfxgg2lb
    """
)
@click.argument("webhook_id", metavar="ID")
@pass_terminal
def replay(terminal: Terminal, webhook_id: str) -> None:
    """Send the failed deliveries of a webhook again."""
    with terminal.queue() as queue:
        report = queue.webhooks.replay(webhook_id)
    count = formatting.number(len(report.requeued), "delivery", "deliveries")
    terminal.report(json_view.requeued(report), f"{count} will be sent again")


@webhooks.command(
    epilog="""
    The delivery is sent by a running worker or server; 'webhooks show' tells what
    became of it.

    Examples:
      holdfast webhooks test wh_mvxgk3tdmfxgg2lb
    """
)
@click.argument("webhook_id", metavar="ID")
@pass_terminal
def test(terminal: Terminal, webhook_id: str) -> None:
    """Deliver the event webhook.test."""
    with terminal.queue() as queue:
        one = queue.webhooks.test(webhook_id)
    terminal.report(json_view.delivery(one), f"delivery {one.id} is {one.state}")
