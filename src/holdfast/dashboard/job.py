"""The page of one job, and its output for the script."""

from collections.abc import Sequence

from starlette.responses import Response

from holdfast.dashboard import charts, rendering
from holdfast.dashboard.visits import Visit
from holdfast.domain import access, errors, groups
from holdfast.domain.job import WAITING, Job
from holdfast.service.call import reply

_ATTEMPTS_SHOWN = 20
_TREE_SHOWN = 30
_GROUPS_SHOWN = 5
_OUTPUT_CHARS_MAX = 16_000


async def show(visit: Visit) -> Response:
    """Show the story of a job, its content, and the jobs around it."""
    job = await visit.job()
    attempts = await visit.queue.attempts(job.id)
    chunks = list(await visit.queue.output(job.id))
    root = job if job.root == job.id else await _related(visit, job.root)
    tree = [] if root is None else _visible(visit, (await visit.queue.jobs(root=job.root, limit=_TREE_SHOWN)).jobs)
    parents = _visible(visit, await visit.queue.parents(job.id))
    why = await visit.queue.why(job.id, tenant=job.tenant)
    parent = None if job.parent is None else await _related(visit, job.parent)
    traceback = job.failure.traceback if job.failure is not None else None
    return rendering.page(
        visit,
        "job.html",
        f"{job.kind} #{job.number}",
        job=job,
        line=charts.time_line(job, attempts, visit.now),
        attempts=attempts[: -_ATTEMPTS_SHOWN - 1 : -1],
        attempts_total=len(attempts),
        payload=rendering.shown_payload(job),
        result=rendering.shown_result(job),
        traceback=None if not traceback else rendering.shortened(traceback[-rendering.SHOWN_CHARS_MAX :]),
        frames=[] if not traceback else own_frames(traceback),
        artifacts=await visit.queue.artifacts(job.id),
        output="".join(rendering.clean(chunk.text) for chunk in chunks)[-_OUTPUT_CHARS_MAX:],
        output_last=chunks[-1].number if chunks else 0,
        root=root,
        parent=parent,
        parents=parents,
        why=why.reasons if job.state in WAITING else (),
        groups=await _groups(visit, job, [str(one.detail["group"]) for one in why.reasons if one.code == "group"]),
        tree=[one for one in tree if one.id != job.id],
        schedule=job.headers.get("holdfast-schedule"),
    )


async def output(visit: Visit) -> Response:
    """Return the output after a chunk, as JSON for the script."""
    job = await visit.job()
    after = visit.query.get("after", "0")
    if not (after.isascii() and after.isdigit() and len(after) < 19):
        raise errors.InvalidInput("after", "must be the number of a chunk")
    page = await visit.queue.output(job.id, after=int(after))
    text = "".join(rendering.clean(chunk.text) for chunk in page)
    last = page.chunks[-1].number if page.chunks else int(after)
    headers = {"Cache-Control": "no-store"}
    return reply({"text": text, "last": last, "ended": page.ended}, headers=headers)


async def _related(visit: Visit, job_id: str) -> Job | None:
    """Return another job if it exists and the viewer may see it."""
    try:
        found = await visit.queue.get(job_id, tenant=visit.grants.tenant)
    except errors.JobNotFound:
        return None
    return found if access.covers(visit.grants, found.lane, found.kind) else None


async def _groups(visit: Visit, job: Job, names: Sequence[str]) -> list[groups.JobGroup]:
    """Return the groups with these names that still exist; the store keeps those of unfinished members."""
    found = []
    for name in names[:_GROUPS_SHOWN] if visit.may("get_group") else ():
        try:
            found.append(await visit.queue.groups.get(name, tenant=job.tenant))
        except errors.GroupNotFound:
            continue
    return found


def _visible(visit: Visit, found: Sequence[Job]) -> list[Job]:
    grants = visit.grants
    return [one for one in found if grants.tenant in {None, one.tenant} and access.covers(grants, one.lane, one.kind)]


def own_frames(traceback: str) -> list[str]:
    """Return the places of a traceback in the user's own code, innermost first."""
    found = []
    for line in traceback.splitlines():
        text = line.strip()
        if text.startswith('File "') and not any(part in text for part in _LIBRARIES):
            found.append(rendering.clean(text))
    return found[::-1][:5]


_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python3", "/holdfast/", "<frozen ")
