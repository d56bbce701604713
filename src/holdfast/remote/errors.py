"""Problem documents as the library's errors: the inverse of `holdfast.service.problems`."""

import json
from collections.abc import Mapping
from typing import Any, Final

from holdfast.domain import errors

_CLASSES: Final[Mapping[str, type[errors.HoldfastError]]] = {
    one.code: one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, errors.HoldfastError)
}
_BY_STATUS: Final[Mapping[int, type[errors.HoldfastError]]] = {
    401: errors.NotAuthenticated,
    403: errors.Forbidden,
    429: errors.Unavailable,
    500: errors.OutcomeUnknown,
}
# The members of a problem document that are not attributes of an error.
_STANDARD: Final = frozenset(("type", "title", "status", "code", "detail", "request_id", "field", "cursor"))


def not_available(what: str) -> errors.Misconfigured:
    """Return the error of a call that a server cannot do for its client."""
    return errors.Misconfigured(f"not available over HTTP: {what}; open the store itself")


def error_of(document: Mapping[str, Any]) -> errors.HoldfastError:
    """Return the error that a problem document describes."""
    code, detail = str(document.get("code")), str(document.get("detail", ""))
    field = document.get("field")
    kind = _CLASSES.get(code)
    if kind is None:
        return _service_error(int(document.get("status", 500)), detail, field)
    if issubclass(kind, errors.InvalidInput):
        return errors.InvalidInput(str(field), detail, document.get("limit"))
    if issubclass(kind, errors.EventsPruned):
        return errors.EventsPruned(str(document["cursor"]))
    if issubclass(kind, errors.NotAuthenticated):
        return errors.NotAuthenticated(f"{detail}; pass token=… to connect, or set HOLDFAST_TOKEN")
    # The constructors make the message from their arguments, but the document has the whole message.
    error = kind.__new__(kind)
    if issubclass(kind, errors.Refused) and not issubclass(kind, errors.Forbidden) and field is not None:
        detail = detail.removeprefix(f"{field}: ")
        error.path = field  # type: ignore[attr-defined]
    errors.HoldfastError.__init__(error, detail)
    if issubclass(kind, errors.Forbidden):
        error.field, error.limit = field, None  # type: ignore[attr-defined]
    if issubclass(kind, errors.Conflict):
        error.job_id = None  # type: ignore[attr-defined]
    for name, value in document.items():
        if name not in _STANDARD:
            setattr(error, name, tuple(value) if isinstance(value, list) else value)
    return error


def _service_error(status: int, detail: str, field: Any) -> errors.HoldfastError:
    """Return the error for a refusal by the service itself, or by a proxy before it."""
    if status in {400, 413, 415, 422}:
        return errors.InvalidInput(str(field or "body"), detail)
    if status in {404, 405}:
        return errors.Misconfigured(f"the server does not have this call: {detail}; is its version older?")
    kind = _BY_STATUS.get(status, errors.Refused if status < 500 else errors.StoreUnreachable)
    return kind(detail)


def error_of_response(status: int, media_type: str, content: bytes) -> errors.HoldfastError:
    """Return the error of a response that is not a success."""
    if media_type.startswith("application/problem+json"):
        return error_of(json.loads(content))
    if 300 <= status < 400:
        return errors.Misconfigured(f"the server answers with the redirect {status}; give the URL that it leads to")
    return _service_error(status, f"the server, or a proxy before it, answers with status {status}", None)
