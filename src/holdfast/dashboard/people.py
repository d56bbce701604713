"""The pages of workers and models, sessions and webhooks."""

from starlette.responses import Response

from holdfast.dashboard import rendering
from holdfast.dashboard.visits import Visit
from holdfast.domain import errors, overview, routing
from holdfast.operations import overview as overview_operations

_WORKERS_MAX = 200
_PAGE = 50
_ENTRIES = 50
_DELIVERIES = 50


async def workers(visit: Visit) -> Response:
    """Show the workers that were active last, and what they have loaded."""
    found = await visit.queue.admin.workers(limit=_WORKERS_MAX)
    unserved = []
    if visit.may("list_problems"):
        unserved = await visit.shared.read("unserved", visit.queue.admin.unserved)
    flows = await visit.service.runner.read(overview_operations.affinities, found)
    models = {one.worker: overview.models_text(one) for one in overview.models(found, flows, visit.now)}
    order = {"silent": 0, "stopping": 1, "draining": 2, "active": 3}
    found.sort(key=lambda one: (order[one.state], one.worker))
    return rendering.page(
        visit, "workers.html", "Workers and models", workers=found, flows=flows, models=models, unserved=unserved
    )


# --- sessions ------------------------------------------------------------------------------------------------------


async def sessions(visit: Visit) -> Response:
    """Show sessions by tenant and name."""
    page = await visit.queue.sessions.list(tenant=visit.tenant, after=visit.query.get("after") or None, limit=_PAGE)
    return rendering.page(visit, "sessions.html", "Sessions", page=page)


async def session(visit: Visit) -> Response:
    """Show one session with its newest entries."""
    tenant = visit.tenant or routing.DEFAULT_NAME
    name = visit.query.get("name")
    if not name:
        raise errors.SessionNotFound("")
    found = await visit.queue.sessions.get(name, tenant=tenant)
    entries = await visit.queue.jobs(session=name, tenant=tenant, limit=_ENTRIES)
    return rendering.page(visit, "session.html", f"Session {name}", session=found, entries=entries)


# --- webhooks ------------------------------------------------------------------------------------------------------


async def webhooks(visit: Visit) -> Response:
    """Show the webhooks."""
    found = await visit.queue.webhooks.list(tenant=visit.tenant, limit=_WORKERS_MAX)
    found.sort(key=lambda one: (one.state == "active" and one.failing_since is None, one.url))
    return rendering.page(visit, "webhooks.html", "Webhooks", webhooks=found)


async def webhook(visit: Visit) -> Response:
    """Show one webhook with its newest deliveries."""
    webhook_id = visit.query.get("id") or "-"
    found = await visit.queue.webhooks.get(webhook_id, tenant=visit.tenant)
    deliveries = await visit.queue.webhooks.deliveries(webhook_id, tenant=visit.tenant, limit=_DELIVERIES)
    return rendering.page(visit, "webhook.html", "Webhook", webhook=found, deliveries=deliveries)
