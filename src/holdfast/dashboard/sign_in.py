"""Signing in with an access token: the page, the cookie, and signing out."""

from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from holdfast.dashboard import rendering
from holdfast.dashboard.visits import Visit, safe_next, set_cookie
from holdfast.domain import access, errors

COOKIE: Final = "holdfast_token"
_SECONDS: Final = 12 * 3600
_READERS: Final[tuple[access.Role, ...]] = ("read",)


def with_cookie(request: Request) -> Request:
    """Return the request with the token of the cookie as a bearer token; a header of the request is ignored."""
    token = request.cookies.get(COOKIE)
    headers = [pair for pair in request.scope["headers"] if pair[0] != b"authorization"]
    if token is not None:
        headers.append((b"authorization", b"Bearer " + token.encode("ascii", "replace")))
    return Request({**request.scope, "headers": headers}, request.receive)


async def show(visit: Visit) -> Response:
    """Return the page with the form."""
    return rendering.page(visit, "sign_in.html", "Sign in", next=safe_next(visit.query.get("next")), problem=None)


async def enter(visit: Visit) -> Response:
    """Check the token and set the cookie."""
    text, next_path = visit.form.get("token", "").strip(), safe_next(visit.form.get("next"))
    if not visit.service.settings.tokens:
        return RedirectResponse(visit.base + next_path, 303)
    problem = None
    if access.parse_token(text) is None:
        problem = "This is no token: it begins with hf_ and has 63 characters."
    else:
        headers = [(b"authorization", b"Bearer " + text.encode())]
        try:
            caller = await visit.service.access.caller(Request({**visit.request.scope, "headers": headers}))
            access.check_role(caller.grants, _READERS)
        except (errors.NotAuthenticated, errors.Forbidden) as error:
            problem = f"{str(error)[:1].upper()}{str(error)[1:]}."
    if problem is not None:
        return rendering.page(visit, "sign_in.html", "Sign in", 401, next=next_path, problem=problem)
    response = RedirectResponse(visit.base + next_path, 303)
    set_cookie(visit, response, COOKIE, text, _SECONDS)
    return response


async def leave(visit: Visit) -> Response:
    """Delete the cookie."""
    response = RedirectResponse(visit.link("/sign-in"), 303)
    set_cookie(visit, response, COOKIE, "", 0)
    return response
