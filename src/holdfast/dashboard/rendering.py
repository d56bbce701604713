"""Templates: the environment with its filters, and pages as responses."""

import hashlib
import json
import re
import shlex
from datetime import datetime
from functools import cache
from importlib import resources
from typing import Any, Final, NamedTuple

import jinja2
from starlette.responses import Response

from holdfast.dashboard import filters
from holdfast.dashboard.visits import NOTE, Visit, take_note
from holdfast.domain import clock, codec, errors, limits
from holdfast.domain.job import Job, row_of
from holdfast.service.problems import ProblemError
from holdfast.version import __version__

SHOWN_CHARS_MAX: Final = 12_000
"""How much of a payload, a result or a traceback is shown."""
# Characters that reverse or hide text, and control characters.
_UNSAFE: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")


class NavigationLink(NamedTuple):
    """An entry of the navigation."""

    path: str
    label: str
    endpoint: str
    """Shown if the viewer may call this operation of the service."""


NAVIGATION: Final = (
    NavigationLink("/", "Overview", "list_jobs"),
    NavigationLink("/jobs", "Jobs", "list_jobs"),
    NavigationLink("/failures", "Failures", "list_failures"),
    NavigationLink("/flow", "Flow", "list_lanes"),
    NavigationLink("/workers", "Workers", "list_workers"),
    NavigationLink("/sessions", "Sessions", "list_sessions"),
    NavigationLink("/webhooks", "Webhooks", "list_webhooks"),
    NavigationLink("/system", "System", "backlog"),
)


# --- filters -------------------------------------------------------------------------------------------------------


def clean(text: object) -> str:
    """Return text without characters that reverse or hide it."""
    return _UNSAFE.sub("\N{REPLACEMENT CHARACTER}", str(text))


def duration(seconds: float | None) -> str:
    """Return a duration in its two largest units: `340ms`, `12s`, `3m 5s`, `2d 4h`."""
    if seconds is None:
        return "\N{EN DASH}"
    if seconds < 1:
        return f"{max(seconds, 0) * 1000:.0f}ms"
    if seconds < 10:
        return f"{seconds:.1f}s"
    return clock.in_units(round(seconds), 2)


def age(at: datetime, now: datetime) -> str:
    """Return a timestamp relative to now: `in 5m`, `now`, `3s ago`."""
    seconds = int((now - at).total_seconds())
    if seconds < 0:
        return f"in {clock.in_units(-seconds, 1)}"
    return "now" if seconds == 0 else f"{clock.in_units(seconds, 1)} ago"


def bounded(count: int, most: int = limits.BACKLOG_COUNTED_MAX) -> str:
    """Return a count that stops at a bound: `42`, `10,000+`."""
    return f"{most:,}+" if count >= most else f"{count:,}"


def size(count: int) -> str:
    """Return a number of bytes: `512 B`, `1.4 MB`."""
    for unit, name in ((1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "kB")):
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count} B"


def command(*parts: object) -> str:
    """Return a command line, quoted for a shell."""
    return shlex.join(clean(part) for part in parts)


class ShownText(NamedTuple):
    """The beginning of a long text, and how long it is."""

    text: str
    rest: int
    """How many characters are left out."""


def shortened(text: str, most: int = SHOWN_CHARS_MAX) -> ShownText:
    """Return the beginning of *text*."""
    return ShownText(clean(text[:most]), max(0, len(text) - most))


def shown_json(value: Any) -> ShownText:
    """Return a value as indented JSON; integers of any size keep their digits."""
    return shortened(json.dumps(value, indent=2, ensure_ascii=False))


def shown_payload(job: Job) -> ShownText:
    """Return the payload; one that cannot be decoded as it is stored."""
    try:
        return shown_json(job.payload)
    except errors.CodecFailed:
        return shortened(row_of(job).payload_json)


def shown_result(job: Job) -> ShownText | None:
    """Return the result of a done job; one that cannot be decoded as it is stored."""
    if job.state != "done":
        return None
    try:
        return shown_json(job.result)
    except errors.CodecFailed:
        return shortened(row_of(job).result_json or codec.NULL)


@cache
def _environment() -> jinja2.Environment:
    folder = resources.files(__package__).joinpath("templates")
    files = (file for file in folder.iterdir() if file.name.endswith(".html"))
    sources = {file.name: file.read_text(encoding="utf-8") for file in files}
    environment = jinja2.Environment(
        loader=jinja2.DictLoader(sources),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters.update(duration=duration, bounded=bounded, size=size, clean=clean)
    environment.globals.update(command=command, shortened=shortened, term=filters.term, version=__version__)
    return environment


# --- script, style and icons: named by their content, so that browsers keep them ------------------------------------

_TYPES: Final = {
    "style.css": "text/css",
    "script.js": "text/javascript",
    "icon.svg": "image/svg+xml",
    "icon-alert.svg": "image/svg+xml",
}


@cache
def asset(name: str) -> bytes:
    """Return a file."""
    return resources.files(__package__).joinpath("static", name).read_bytes()


@cache
def asset_path(name: str) -> str:
    """Return the path of a file below the dashboard, with a hash of its content."""
    return f"/static/{name}?{hashlib.sha256(asset(name)).hexdigest()[:12]}"


async def serve_asset(visit: Visit) -> Response:
    """Return a file."""
    name = visit.request.scope["path"].rpartition("/")[2]
    if name not in _TYPES or visit.request.method not in {"GET", "HEAD"}:
        raise ProblemError(404, "not_found", "there is no such file")
    headers = {"Cache-Control": "public, max-age=31536000, immutable"}
    return Response(asset(name), headers=headers, media_type=_TYPES[name])


# --- responses -----------------------------------------------------------------------------------------------------


def page(visit: Visit, template: str, title: str, status: int = 200, **values: Any) -> Response:
    """Return a page."""
    note = take_note(visit)
    content = render(visit, template, title=title, note=note, **values)
    response = Response(content, status, headers={"Cache-Control": "no-store"}, media_type="text/html")
    if note is not None:
        response.delete_cookie(NOTE, path=visit.base or "/")
    return response


def render(visit: Visit, template: str, **values: Any) -> str:
    """Return a template as text."""
    theme = visit.request.cookies.get("holdfast_theme")
    known = {
        "visit": visit,
        "link": visit.link,
        "may": visit.may,
        "now": visit.now,
        "age": lambda at: age(at, visit.now),
        "theme": theme if theme in {"light", "dark"} else None,
        "navigation": [] if not visit.grants.roles else [one for one in NAVIGATION if visit.may(one.endpoint)],
        "asset": lambda name: visit.base + asset_path(name),
        "alert": False,
        "note": None,
    }
    return _environment().get_template(template).render({**known, **values})


def problem(visit: Visit, found: ProblemError) -> Response:
    """Return the page of an error."""
    headers = {name: value for name, value in found.headers.items() if name != "WWW-Authenticate"}
    titles = {401: "Sign in first", 403: "Not allowed", 404: "Not found", 405: "Not found", 503: "Try again"}
    field = found.extras.get("field")
    detail = f"{field}: {found.detail}" if field else found.detail
    title = titles.get(found.status, "This did not work")
    content = render(visit, "problem.html", title=title, detail=detail, status=found.status)
    headers["Cache-Control"] = "no-store"
    return Response(content, found.status, headers=headers, media_type="text/html")
