"""The first screen: what needs a person, how jobs flow, lanes and models; and the page of failures."""

from starlette.responses import Response

from holdfast.dashboard import charts, filters, rendering
from holdfast.dashboard.visits import Visit
from holdfast.domain import access
from holdfast.domain.overview import Need, Overview, models_text
from holdfast.domain.results import FailurePattern

_FAILURES_MAX = 50
_SCHEDULES_MAX = 1_000
_JOBS_SHOWN = 10


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
        models={one.worker: models_text(one) for one in found.models},
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
    running = await visit.queue.jobs(state="running", tenant=visit.grants.tenant, limit=_JOBS_SHOWN)
    jobs = [one for one in running if access.covers(visit.grants, one.lane, one.kind)]
    recent = [one for one in patterns if one.this_hour]
    return rendering.page(visit, "overview_of_some.html", "Overview", patterns=recent, jobs=jobs, alert=bool(recent))


async def failures(visit: Visit) -> Response:
    """Show failed jobs by the pattern in which they failed, or one of these patterns."""
    fingerprint = visit.query.get("fingerprint") or None
    patterns = await _patterns(visit, fingerprint)
    return rendering.page(visit, "failures.html", "Failures", patterns=patterns, fingerprint=fingerprint)


async def _patterns(visit: Visit, fingerprint: str | None) -> list[FailurePattern]:
    """Return the patterns that the viewer may see: all lanes of a pattern must be within the scopes."""
    found = await visit.queue.admin.failures(fingerprint=fingerprint, tenant=visit.grants.tenant, limit=_FAILURES_MAX)
    return [one for one in found if all(access.covers(visit.grants, lane, one.kind) for lane in one.lanes)]
