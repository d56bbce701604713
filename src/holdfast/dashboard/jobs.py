"""The page of jobs: the filter line, pages of rows, how many are newer; and bulk actions.

A bulk action is counted first, then carried out page by page; each page is one request, so that one can stop.
"""

from typing import Any, Final, Literal, NamedTuple, cast

from starlette.responses import RedirectResponse, Response

from holdfast.client import validate_calls
from holdfast.client.async_api import bulk
from holdfast.dashboard import filters, rendering
from holdfast.dashboard.visits import Visit
from holdfast.domain import access, errors, validation
from holdfast.domain.job import STATES, WAITING
from holdfast.domain.results import JobPage, Skipped
from holdfast.operations import jobs as job_operations
from holdfast.service.call import reply

_PAGE = 50
_NEWER_MAX = 100
EXAMINED_MAX = 20_000
"""How many jobs a page examines."""

Verb = Literal["cancel", "requeue"]
_COUNTED_MAX: Final = 10_000
_STATES: Final = {"cancel": (*WAITING, "running"), "requeue": ("failed", "cancelled")}
_SKIPPED_SHOWN: Final = 10


async def show(visit: Visit) -> Response:
    """Show the newest jobs that match the filter line."""
    line = visit.query.get("q", "").strip()
    problem, rows, cursor, hidden = None, [], None, 0
    try:
        options = filters.options(line, visit.grants.tenant)
        page = await search(visit, options, visit.query.get("after") or None, _PAGE)
        rows = [one for one in page if access.covers(visit.grants, one.lane, one.kind)]
        hidden, cursor = len(page) - len(rows), page.cursor
    except errors.InvalidInput as error:
        problem = f"{error.field}: {error.problem}"
    return rendering.page(
        visit,
        "jobs.html",
        "Jobs",
        200 if problem is None else 422,
        line=line,
        states=STATES,
        rows=rows,
        cursor=cursor,
        hidden=hidden,
        stopped=cursor is not None and len(rows) + hidden < _PAGE,
        problem=problem,
        first_page="after" not in visit.query,
        state=filters.state_of(line),
        with_state=lambda state: filters.with_state(line, state),
    )


async def search(visit: Visit, options: dict[str, Any], after: str | None, limit: int) -> JobPage:
    """Return a page of jobs, for which at most 20,000 are examined."""
    unset: dict[str, Any] = dict.fromkeys(("state", "kind", "lane", "tenant", "failure_class", "older_than"))
    job_filter = validate_calls.job_filter(**{**unset, **options})
    return await visit.service.runner.read(job_operations.search, job_filter, after, limit, EXAMINED_MAX)


async def newer(visit: Visit) -> Response:
    """Return how many jobs precede the first row of a page, as JSON for the script."""
    first = visit.query.get("first", "")
    options = filters.options(visit.query.get("q", "").strip(), visit.grants.tenant)
    page = await search(visit, options, None, _NEWER_MAX)
    rows = [str(one.number) for one in page if access.covers(visit.grants, one.lane, one.kind)]
    count = rows.index(first) if first in rows else len(rows)
    return reply({"newer": count, "more": count >= _NEWER_MAX}, headers={"Cache-Control": "no-store"})


async def find(visit: Visit) -> Response:
    """Go to the job with an id or a number; anything else is a filter line."""
    text = visit.query.get("q", "").strip()
    for key in ([int(text)] if text.isascii() and text.isdigit() and len(text) < 19 else []) + [text]:
        try:
            found = await visit.queue.get(key, tenant=visit.grants.tenant)
        except (errors.JobNotFound, errors.InvalidInput):
            continue
        if access.covers(visit.grants, found.lane, found.kind):
            return RedirectResponse(visit.link(f"/jobs/{found.number}"), 303)
    return RedirectResponse(visit.link("/jobs", q=text), 303)


# --- bulk actions --------------------------------------------------------------------------------------------------


class BulkChoice(NamedTuple):
    """What is to be done with which jobs."""

    verb: Verb
    line: str
    options: dict[str, Any]


def _choice(visit: Visit) -> BulkChoice:
    """Return the choice of a form; jobs in states that the action does not concern are left out."""
    verb = cast(Verb, validation.one_of(visit.field("verb"), "verb", ("cancel", "requeue")))
    line = visit.form.get("q", "").strip()
    options = filters.options(line, visit.grants.tenant)
    if not line:
        raise errors.InvalidInput("filter", "is empty; write one that selects the jobs, such as kind:email.send")
    allowed = _STATES[verb]
    states = [state for state in options.get("state", allowed) if state in allowed]
    if not states:
        raise errors.InvalidInput("state", f"none of these jobs can be changed; {verb} takes {', '.join(allowed)}")
    # A requeue without a state is for failed jobs, as on the command line.
    options["state"] = states if "state" in options or verb == "cancel" else ["failed"]
    return BulkChoice(verb, line, options)


async def preview(visit: Visit) -> Response:
    """Count the jobs, up to a bound, and ask."""
    choice = _choice(visit)
    count, after = 0, None
    for _ in range(_COUNTED_MAX // bulk.PAGE):
        page = await search(visit, choice.options, after, bulk.PAGE)
        count, after = count + len(page), page.cursor
        if after is None:
            break
    return _bulk_page(
        visit, choice, total=count, more=after is not None, done=0, skipped=[], after="", state="preview"
    )


async def apply(visit: Visit) -> Response:
    """Carry the action out on one page of jobs, and report how far it is."""
    choice = _choice(visit)
    after, done = visit.form.get("after") or None, _number(visit, "done")
    if after is None:
        await visit.audit(f"jobs.{choice.verb}", "jobs that match a filter", filter=choice.line)
    page = await search(visit, choice.options, after, bulk.PAGE)
    ids, tenant = [one.id for one in page], choice.options.get("tenant")
    skipped: list[Skipped] = []
    if ids and choice.verb == "cancel":
        cancelled = await visit.queue.admin.cancel_many(ids, tenant=tenant)
        done += len(cancelled.cancelled) + len(cancelled.stop_requested)
        skipped = cancelled.skipped
    elif ids:
        requeued = await visit.queue.admin.requeue_many(ids, tenant=tenant)
        done, skipped = done + len(requeued.requeued), requeued.skipped
    cursor = page.cursor
    state = "done" if cursor is None else "going on"
    more = visit.form.get("more") == "1"
    total = _number(visit, "total")
    return _bulk_page(visit, choice, total=total, more=more, done=done, skipped=skipped, after=cursor, state=state)


def _number(visit: Visit, name: str) -> int:
    text = visit.form.get(name, "0")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def _bulk_page(visit: Visit, choice: BulkChoice, *, skipped: list[Skipped], **values: Any) -> Response:
    return rendering.page(
        visit,
        "bulk.html",
        f"{choice.verb.capitalize()} jobs",
        choice=choice,
        skipped=skipped[:_SKIPPED_SHOWN],
        skipped_count=len(skipped),
        shown_command=_command(choice),
        **values,
    )


def _command(choice: BulkChoice) -> str | None:
    """Return the command line that does the same; None if it has no option for a part of the filter."""
    pairs = [(key, value) for key, value in filters.parse(choice.line) if key != "state"]
    if not {key for key, _ in pairs} <= {"kind", "lane", "tenant"}:
        return None
    states = [part for state in choice.options["state"] for part in ("--state", state)]
    return rendering.command("holdfast", "jobs", choice.verb, *states, *(p for k, v in pairs for p in (f"--{k}", v)))
