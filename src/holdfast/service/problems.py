"""Errors as `application/problem+json` (RFC 9457): one table from errors to status codes."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from starlette.responses import Response

from holdfast.domain import errors, strict_json

STATUSES: Final[Mapping[type[errors.HoldfastError], int]] = {
    errors.JobNotFound: 404,
    errors.ArtifactNotFound: 404,
    errors.UploadNotFound: 404,
    errors.SessionNotFound: 404,
    errors.WorkerNotFound: 404,
    errors.TokenNotFound: 404,
    errors.WebhookNotFound: 404,
    errors.ScheduleNotFound: 404,
    errors.GroupNotFound: 404,
    errors.LimitNotFound: 404,
    errors.JobFailed: 409,
    errors.UnknownKind: 404,
    errors.LeaseLost: 409,
    errors.Conflict: 409,
    errors.LaneDraining: 409,
    errors.KindRetired: 409,
    errors.QueueFull: 429,
    errors.Refused: 409,
    errors.EventsPruned: 410,
    errors.NotAuthenticated: 401,
    errors.Forbidden: 403,
    errors.InvalidInput: 422,
    errors.StoreBusy: 503,
    errors.StoreUnreachable: 503,
    errors.OutcomeUnknown: 503,
    errors.Unavailable: 503,
    errors.StoreFull: 507,
    errors.WaitTimeout: 504,
    errors.HandlersStuck: 500,
    errors.CodecFailed: 500,
    errors.ReadOnlyStore: 500,
    errors.SchemaMismatch: 500,
    errors.UnsupportedStore: 500,
    errors.StoreDamaged: 500,
    errors.Misconfigured: 500,
    errors.HoldfastError: 500,
}
"""The status of each error of the library. A test compares it with `holdfast.domain.errors`."""

MEDIA_TYPE: Final = "application/problem+json"
# Attributes of errors that a client needs, and their names in the document.
_EXTRAS: Final = {
    "horizon": "cursor",
    **{
        name: name
        for name in (
            *("job_id", "epoch", "why", "name", "upload_id", "worker", "similar", "token_id", "lane", "kind"),
            *("count", "kinds", "limit"),
        )
    },
}


class ProblemError(Exception):
    """A refusal by the service itself. Its codes are those of `PROBLEM_CODES`."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        headers: Mapping[str, str] | None = None,
        **extras: Any,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.headers = dict(headers or {})
        self.extras = extras


PROBLEM_CODES: Final = {
    "not_found": "no such path",
    "method_not_allowed": "the path has other methods; see the header `Allow`",
    "invalid_json": "the body is not JSON, or not UTF-8",
    "unsupported_media_type": "the body has another `Content-Type`; the message names the one that is expected",
    "body_too_large": "the body is larger than `limit` bytes",
    "range_not_satisfiable": "the artifact has only `limit` bytes",
    "idempotency_key_reused": "the `Idempotency-Key` was used for another body",
    "too_many_streams": "the token has `limit` open streams",
    "wrong_origin": "without tokens, requests from web pages of other hosts are refused",
    "headers_too_large": "the headers are larger than `limit` bytes",
    "request_timeout": "headers or body took longer than `limit` seconds, a body also one for each KiB",
    "bad_request": "the request is not HTTP",
    "overloaded": "the server has `limit` connections",
    "shutting_down": "the server is shutting down; send the request again",
    "internal_error": "a defect of the service; its log has the request id",
}
"""The codes of refusals by the service itself, besides those of the library's errors."""


def describe(error: Exception) -> ProblemError:
    """Return the problem for an error."""
    match error:
        case ProblemError():
            return error
        case errors.HoldfastError():
            return _library_problem(error)
        case _:
            return ProblemError(500, "internal_error", "the service has a defect; its log has the request id")


def _library_problem(error: errors.HoldfastError) -> ProblemError:
    status = next(STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES)
    # The text of a defect or of a wrong configuration may name paths of the server.
    detail = str(error) if status < 500 or status in {503, 504, 507} else "the store cannot be used; see the log"
    extras = {name: value for key, name in _EXTRAS.items() if (value := getattr(error, key, None)) is not None}
    match error:
        case errors.InvalidInput():
            extras["field"], detail = error.field, error.problem
        case errors.Forbidden() if error.field is not None:
            extras["field"] = error.field
        case errors.Refused() if error.path is not None:
            extras["field"] = error.path
        case _:
            pass
    headers = {}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if status in {429, 503}:
        headers["Retry-After"] = "1"
    return ProblemError(status, error.code, detail, headers=headers, **extras)


def document(problem: ProblemError, request_id: str | None = None) -> dict[str, Any]:
    """Return the problem document."""
    try:
        title = HTTPStatus(problem.status).phrase
    except ValueError:
        title = "Error"
    shown: dict[str, Any] = {
        "type": f"urn:holdfast:{problem.code}",
        "title": title,
        "status": problem.status,
        "code": problem.code,
        "detail": problem.detail,
        **problem.extras,
    }
    return shown if request_id is None else {**shown, "request_id": request_id}


def response(problem: ProblemError, request_id: str | None = None) -> Response:
    """Return the response for a problem."""
    content = encode(document(problem, request_id))
    return Response(content, problem.status, headers=problem.headers, media_type=MEDIA_TYPE)


def encode(value: Any) -> bytes:
    """Return *value* as JSON; half of a surrogate pair, which an invalid request may contain, is replaced."""
    return strict_json.compact(value).encode("utf-8", "replace")
