"""The page System: the engine, the findings of `doctor`, tokens, the audit log and events."""

from starlette.responses import Response

from holdfast.client.async_api.worker_calls import AsyncWorkerCalls
from holdfast.dashboard import rendering
from holdfast.dashboard.visits import Visit
from holdfast.domain import errors
from holdfast.service import events as event_handler, tokens as token_handlers
from holdfast.service.call import Call
from holdfast.service.routes import ROUTES

_TOKENS = 100
_ENTRIES = 50


async def show(visit: Visit) -> Response:
    """Show what concerns the whole store."""
    everything = visit.query.get("check") == "all"
    if everything:
        findings = (await visit.queue.admin.report()).findings
    else:
        findings = await visit.shared.read("problems", AsyncWorkerCalls(visit.service.store).problems)
    order = {"problem": 0, "warning": 1, "ok": 2}
    findings = sorted(findings, key=lambda one: order[one.status])
    tokens = await visit.queue.admin.tokens.list(limit=_TOKENS) if _manages_tokens(visit) else None
    before = visit.query.get("before", "")
    entries = None
    if visit.may("list_audit"):
        start = int(before) if before.isascii() and before.isdigit() and len(before) < 19 else None
        entries = await visit.queue.admin.audit_log(before=start, limit=_ENTRIES)
    return rendering.page(
        visit,
        "system.html",
        "System",
        findings=findings,
        everything=everything,
        tokens=tokens,
        entries=entries,
        page_size=_ENTRIES,
    )


def _manages_tokens(visit: Visit) -> bool:
    try:
        token_handlers.check_unlimited(visit.caller)
    except errors.Forbidden:
        return False
    return visit.may("list_tokens")


async def live(visit: Visit) -> Response:
    """Stream the events of jobs that the viewer may see, as `/v1/events` does."""
    route = next(one for one in ROUTES if one.name == "events")
    return await event_handler.events(Call(visit.service, route, visit.request, visit.caller))
