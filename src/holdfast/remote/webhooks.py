"""What the operations on webhooks do over HTTP. The server names the token of the caller as the actor."""

from collections.abc import Mapping
from typing import Any

from holdfast.domain import job, results, webhooks
from holdfast.operations import webhooks as webhook_operations
from holdfast.remote import calls, connection, decode


@calls.over_http(webhook_operations.list_webhooks)
async def list_webhooks(http: connection.Http, tenant: str | None, limit: int) -> list[webhooks.Webhook]:
    """Return the webhooks that were added last."""
    reply = await http.get(connection.path("webhooks"), {"tenant": tenant, "limit": limit})
    return [decode.webhook(one) for one in reply["webhooks"]]


@calls.over_http(webhook_operations.get_webhook)
async def get_webhook(http: connection.Http, webhook_id: str, tenant: str | None) -> webhooks.Webhook:
    """Return one webhook."""
    return decode.webhook(await http.get(connection.path("webhooks", webhook_id), {"tenant": tenant}))


@calls.over_http(webhook_operations.deliveries)
async def deliveries(
    http: connection.Http, webhook_id: str, tenant: str | None, states: tuple[job.State, ...], limit: int
) -> list[webhooks.Delivery]:
    """Return the newest deliveries of a webhook."""
    query = {"tenant": tenant, "state": list(states), "limit": limit}
    reply = await http.get(connection.path("webhooks", webhook_id, "deliveries"), query)
    return [decode.delivery(one) for one in reply["deliveries"]]


@calls.over_http(webhook_operations.add_webhook)
async def add_webhook(
    http: connection.Http, webhook_id: str, new: webhooks.CheckedWebhook, secret: str, actor: str
) -> webhooks.Webhook:
    """Add a webhook whose id and secret this process has generated, so that the request can be sent again."""
    options = {option: value for option, value in new._asdict().items() if value}
    body = {**options, "id": webhook_id, "secret": secret}
    return decode.webhook((await http.post(connection.path("webhooks"), body))["webhook"])


@calls.over_http(webhook_operations.rotate_webhook)
async def rotate_webhook(
    http: connection.Http, webhook_id: str, tenant: str | None, secret: str, overlap_ms: int, actor: str
) -> webhooks.Webhook:
    """Sign with a new secret that this process has generated."""
    body = {"overlap": overlap_ms / 1000, "secret": secret}
    return decode.webhook((await _act(http, "rotate", webhook_id, tenant, body))["webhook"])


@calls.over_http(webhook_operations.enable_webhook)
async def enable_webhook(http: connection.Http, webhook_id: str, tenant: str | None, actor: str) -> webhooks.Webhook:
    """Deliver again to a webhook."""
    return decode.webhook(await _act(http, "enable", webhook_id, tenant))


@calls.over_http(webhook_operations.remove_webhook)
async def remove_webhook(http: connection.Http, webhook_id: str, tenant: str | None, actor: str) -> webhooks.Webhook:
    """Delete a webhook."""
    return decode.webhook(await _act(http, "remove", webhook_id, tenant, repeatable=False))


@calls.over_http(webhook_operations.send_test)
async def send_test(
    http: connection.Http, webhook_id: str, tenant: str | None, test_id: str, actor: str
) -> webhooks.Delivery:
    """Deliver an event `webhook.test`; the server chooses its id."""
    return decode.delivery(await _act(http, "test", webhook_id, tenant, repeatable=False))


@calls.over_http(webhook_operations.replay)
async def replay(
    http: connection.Http, webhook_id: str, tenant: str | None, after: str | None, actor: str
) -> tuple[results.Requeued, str | None]:
    """Send all failed deliveries of a webhook again, so that none are left."""
    return decode.requeued(await _act(http, "replay", webhook_id, tenant, repeatable=False)), None


async def _act(
    http: connection.Http,
    action: str,
    webhook_id: str,
    tenant: str | None,
    body: Mapping[str, Any] | None = None,
    *,
    repeatable: bool = True,
) -> Any:
    return await http.post(
        connection.path("webhooks", webhook_id, action), body, {"tenant": tenant}, repeatable=repeatable
    )
