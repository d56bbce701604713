"""The first screen: what needs a person, how jobs flow, lanes and models; and the page of failures."""

from collections import Counter

from starlette.responses import Response

from holdfast.dashboard import charts, filters, jobs, rendering
from holdfast.dashboard.visits import Visit
from holdfast.domain import access, overview
from holdfast.domain.job import WAITING
from holdfast.domain.overview import Need, Overview
from holdfast.domain.results import Backlog, FailurePattern

_FAILURES_MAX = 50
_SCHEDULES_MAX = 1_000
_JOBS_SHOWN = 10
_UNFINISHED_MAX = 200
_UNFINISHED = ("running", *WAITING)
_ALWAYS_COUNTED = ("running", "ready", "scheduled")


async def show(visit: Visit) -> Response:
    """Show the state of the queue; to a viewer of some jobs, those and their failures."""
    if not visit.may("overview"):
        return await _some_jobs(visit)
    found = await visit.shared.read("overview", visit.queue.admin.overview)
    alert = any(one.severity == "problem" for one in found.needs)
    return rendering.page(
        visit,
        "overview.html",
        found.sentence,
        overview=found,
        needs=found.needs,
        needs_total=found.needs_total,
        models={one.worker: overview.models_text(one) for one in found.models},
        chart=charts.flow_chart(found.flow, found.oldest_age_seconds),
        alert=alert,
        paused={one.lane for one in found.lanes if one.state == "paused"},
        schedules=await _schedules(visit, found),
        need_link=lambda need: _need_link(visit, need),
    )


async def _schedules(visit: Visit, found: Overview) -> dict[str, str]:
    """Return the tenants of the schedules that need someone, by name."""
    if not any(one.about == "schedule" for one in found.needs):
        return {}
    return {one.name: one.tenant for one in await visit.queue.schedules.list(limit=_SCHEDULES_MAX)}


def _need_link(visit: Visit, need: Need) -> tuple[str, str]:
    """Return the address and the label of the page behind a row."""
    name = need.subject
    pages: dict[str, tuple[str, str]] = {
        "failure": (visit.link("/failures", fingerprint=name), "Show"),
        "lane": (visit.link("/jobs", q=f"state:ready {filters.term('lane', name)}"), "Jobs"),
        "unserved": (visit.link("/jobs", q=f"state:ready {filters.term('kind', name)}"), "Jobs"),
        "limit": (visit.link("/flow") + "#limits", "Limits"),
        "worker": (visit.link("/workers"), "Workers"),
        "webhook": (visit.link("/webhooks"), "Webhooks"),
        "schedule": (visit.link("/flow") + "#schedules", "Schedules"),
    }
    return pages.get(need.about, (visit.link("/system"), "System"))


async def _some_jobs(visit: Visit) -> Response:
    patterns = await _patterns(visit, None)
    needs = overview.needs(patterns, Backlog((), 0, 0, 0, 0, 0), {}, (), (), ())
    page = await jobs.search(visit, {"state": _UNFINISHED, "tenant": visit.grants.tenant}, None, _UNFINISHED_MAX)
    found = [one for one in page if access.covers(visit.grants, one.lane, one.kind)]
    counts = Counter(one.state for one in found)
    running = [one for one in found if one.state == "running"]
    return rendering.page(
        visit,
        "overview_of_some.html",
        overview.sentence("working" if running or counts["ready"] else "idle", len(needs)),
        needs=overview.first(needs),
        needs_total=len(needs),
        need_link=lambda need: _need_link(visit, need),
        counts={name: counts[name] for name in _UNFINISHED if counts[name] or name in _ALWAYS_COUNTED},
        failed=sum(one.this_hour for one in patterns),
        stopped=page.cursor is not None,
        examined=f"{jobs.EXAMINED_MAX:,}",
        jobs=running[:_JOBS_SHOWN],
        alert=any(one.severity == "problem" for one in needs),
    )


async def failures(visit: Visit) -> Response:
    """Show failed jobs by the pattern in which they failed, or one of these patterns."""
    fingerprint = visit.query.get("fingerprint") or None
    patterns = await _patterns(visit, fingerprint)
    return rendering.page(visit, "failures.html", "Failures", patterns=patterns, fingerprint=fingerprint)


async def _patterns(visit: Visit, fingerprint: str | None) -> list[FailurePattern]:
    """Return the patterns that the viewer may see: all lanes of a pattern must be within the scopes."""
    found = await visit.queue.admin.failures(fingerprint=fingerprint, tenant=visit.grants.tenant, limit=_FAILURES_MAX)
    return [one for one in found if all(access.covers(visit.grants, lane, one.kind) for lane in one.lanes)]
