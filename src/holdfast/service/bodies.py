"""Reading request bodies: bounded, and as strict JSON; and the parameters of queries and forms."""

import json
from collections.abc import AsyncIterator
from typing import Any, Final, NoReturn
from urllib.parse import parse_qsl

from starlette.requests import ClientDisconnect, Request

from holdfast.domain import errors
from holdfast.service.problems import ProblemError

JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"
BYTES: Final = "application/octet-stream"


def check_media_type(request: Request, expected: str) -> None:
    """Raise unless the body is declared as *expected*.

    Browsers send no other types to foreign hosts without asking, so this also keeps web pages from sending jobs.
    """
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given != expected:
        shown = f"is {given!r}" if given else "is missing"
        raise ProblemError(
            415, "unsupported_media_type", f"Content-Type {shown}; send {expected}", field="Content-Type"
        )


def check_length(request: Request, bytes_max: int) -> None:
    """Raise if the declared length of the body exceeds the limit."""
    length = request.headers.get("content-length", "0")
    if not length.isascii() or not length.isdigit() or int(length) > bytes_max:
        raise too_large(bytes_max)


def too_large(bytes_max: int) -> ProblemError:
    """Return the problem of a body that exceeds the limit."""
    return ProblemError(
        413, "body_too_large", f"the body is larger than {bytes_max} bytes", limit=bytes_max, field="body"
    )


async def chunks(request: Request, bytes_max: int) -> AsyncIterator[bytes]:
    """Yield the parts of the body as they arrive; raise once they exceed the limit."""
    check_length(request, bytes_max)
    size = 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size > bytes_max:
                raise too_large(bytes_max)
            yield chunk
    except ClientDisconnect:
        raise ProblemError(400, "bad_request", "the connection ended before the body") from None


async def read(request: Request, bytes_max: int) -> bytes:
    """Return the whole body."""
    parts = [chunk async for chunk in chunks(request, bytes_max)]
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def lines(request: Request, bytes_max: int, line_bytes_max: int) -> AsyncIterator[bytes]:
    """Yield the lines of the body without their ends."""
    rest = b""
    async for chunk in chunks(request, bytes_max):
        *complete, rest = (rest + chunk).split(b"\n")
        for line in complete:
            yield line
        if len(rest) > line_bytes_max:
            raise too_large(line_bytes_max)
    if rest:
        yield rest


def parse(body: bytes) -> Any:
    """Return the value of a JSON text, or raise: NaN, repeated keys and invalid UTF-8 are refused."""
    try:
        return _decoder.decode(body.decode())
    except UnicodeDecodeError as error:
        problem = f"is not UTF-8 (byte {error.start})"
    except json.JSONDecodeError as error:
        problem = f"is not JSON: {error.msg} (line {error.lineno}, column {error.colno})"
    except RecursionError:
        problem = "is nested too deeply"
    except ValueError as error:
        # A constant, a repeated key, or an integer with more digits than Python converts.
        problem = f"is not JSON: {error}"
    raise ProblemError(400, "invalid_json", f"the body {problem}", field="body")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is given twice in one object")
    return found


_decoder = json.JSONDecoder(parse_constant=_refuse_constant, object_pairs_hook=_unique_keys)


def parse_parameters(text: bytes, field: str, count_max: int) -> list[tuple[str, str]]:
    """Return the names and values of a query or a form."""
    try:
        return parse_qsl(text.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=count_max)
    except ValueError:
        problem = f"is not valid; it has at most {count_max} parameters in UTF-8"
        raise errors.InvalidInput(field, problem) from None
