"""The first screen: what needs a person, and what waits."""

from starlette.responses import Response

from holdfast.client.async_api.worker_calls import AsyncWorkerCalls
from holdfast.dashboard import flow, rendering
from holdfast.dashboard.visits import Visit
from holdfast.domain.results import Finding

_NEEDS_MAX = 7


async def show(visit: Visit) -> Response:
    """Show the state of the queue."""
    backlog = await visit.queue.admin.backlog() if visit.may("backlog") else None
    lanes = flow.lane_rows(await visit.queue.lanes.list(), backlog, visit.grants)
    findings: list[Finding] = []
    if visit.may("list_problems"):
        order = {"problem": 0, "warning": 1}
        found = await AsyncWorkerCalls(visit.service.store).problems()
        findings = sorted((one for one in found if one.status != "ok"), key=lambda one: order[one.status])
    return rendering.page(
        visit,
        "overview.html",
        "Overview",
        backlog=backlog,
        ready=0 if backlog is None else sum(one.jobs for one in backlog.ready),
        lanes=lanes,
        findings=findings[:_NEEDS_MAX],
        alert=any(one.status == "problem" for one in findings),
    )
