"""Handlers of `/v1/webhooks`: a token of one tenant sees and changes the webhooks of that tenant."""

from starlette.responses import Response

from holdfast import json_view
from holdfast.domain import access, errors, validation, webhook_signatures, webhooks
from holdfast.operations import webhooks as webhook_operations
from holdfast.service import new_jobs
from holdfast.service.call import Call, reply


async def list_webhooks(call: Call) -> Response:
    """Return the webhooks that were added last."""
    found = await call.queue.webhooks.list(tenant=call.tenant, limit=call.query.get("limit", 100))
    return reply({"webhooks": [json_view.webhook(one) for one in found]})


async def get(call: Call) -> Response:
    """Return one webhook."""
    return reply(json_view.webhook(await call.queue.webhooks.get(call.path["webhook_id"], tenant=call.tenant)))


async def deliveries(call: Call) -> Response:
    """Return the newest deliveries of a webhook."""
    query = {name: value for name, value in call.query.items() if name != "tenant"}
    found = await call.queue.webhooks.deliveries(call.path["webhook_id"], tenant=call.tenant, **query)
    return reply({"deliveries": [json_view.delivery(one) for one in found]})


async def add(call: Call) -> Response:
    """Add a webhook; the response has its secret. With an id of the client the call can be sent again."""
    options, actor = dict(call.body), call.caller.actor
    url, webhook_id = options.pop("url"), options.pop("id", None)
    options["tenant"] = access.tenant_for(call.grants, options.get("tenant"))
    if webhook_id is None:
        return _reply_new(await call.queue.webhooks.add(url, actor=actor, **options), 201)
    webhook_id, checked = webhooks.check_new_id(webhook_id), webhooks.check_webhook(url, options)  # type: ignore[arg-type]
    if options.get("secret") is None:
        raise errors.InvalidInput("secret", "is missing; give id and secret, or no id")
    secret = webhook_signatures.check_secret(options["secret"], "secret")
    added = await call.service.runner.write(webhook_operations.add_webhook, webhook_id, checked, secret, actor)
    return _reply_new(webhooks.NewWebhook(added, secret), 201)


async def rotate(call: Call) -> Response:
    """Give a webhook a new secret; the response has it."""
    webhook_id, actor = call.path["webhook_id"], call.caller.actor
    return _reply_new(await call.queue.webhooks.rotate(webhook_id, tenant=call.tenant, actor=actor, **call.body))


def _reply_new(new: webhooks.NewWebhook, status: int = 200) -> Response:
    return reply({"webhook": json_view.webhook(new.webhook), "secret": new.secret}, status)


async def enable(call: Call) -> Response:
    """Deliver again to a webhook."""
    webhook_id, actor = call.path["webhook_id"], call.caller.actor
    return reply(json_view.webhook(await call.queue.webhooks.enable(webhook_id, tenant=call.tenant, actor=actor)))


async def remove(call: Call) -> Response:
    """Delete a webhook."""
    webhook_id, actor = call.path["webhook_id"], call.caller.actor
    return reply(json_view.webhook(await call.queue.webhooks.remove(webhook_id, tenant=call.tenant, actor=actor)))


async def replay(call: Call) -> Response:
    """Send the failed deliveries of a webhook again."""
    webhook_id, actor = call.path["webhook_id"], call.caller.actor
    report = await call.queue.webhooks.replay(webhook_id, tenant=call.tenant, actor=actor)
    return reply(json_view.requeued(report))


async def test(call: Call) -> Response:
    """Deliver the event `webhook.test`."""
    webhook_id, actor, key = (
        validation.name(call.path["webhook_id"], "webhook_id"),
        call.caller.actor,
        call.idempotency_key,
    )
    if key is None:
        return reply(json_view.delivery(await call.queue.webhooks.test(webhook_id, tenant=call.tenant, actor=actor)))
    test_id = f"test_{new_jobs.keyed_id(call, key, '', webhook_id).removeprefix('idem-')}_{webhook_id}"
    send_test = webhook_operations.send_test
    return reply(
        json_view.delivery(await call.service.runner.write(send_test, webhook_id, call.tenant, test_id, actor))
    )
