"""Strict JSON: values are decoded exactly as they were encoded, or are refused.

The standard encoder is fast but lenient: it turns number keys into strings and writes NaN, and a database may reject
or change such text. So a value is encoded, decoded and compared; only if the two differ, or encoding fails, is the
value walked to find and name the invalid part.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from holdfast.domain import errors, limits

# A precise recursive type would reject an ordinary `dict[str, str]`, because dict is invariant.
Json: TypeAlias = Any
"""A JSON value: None, a bool, a number, a string, a list, or a dict with string keys."""

_KEY_CHARS_SHOWN = 100
"""How much of a key the path of an invalid value shows."""

_encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":"))
_canonical_encoder = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=str)


def _cached_encoder() -> Callable[[Json, int], Iterable[str]]:
    """Return the encoder's C part; the standard method creates it at each call, which takes half of its time."""
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return lambda value, _: _encoder.encode(value)
    text_of = json.encoder.encode_basestring
    parts: Callable[[Json, int], Iterable[str]]
    parts = make(None, _encoder.default, text_of, None, ":", ",", False, False, False)  # noqa: FBT003
    return parts


_parts = _cached_encoder()
_joined = "".join
quoted: Callable[[str], str] = json.encoder.encode_basestring
"""Returns a string as JSON text."""
_decoder = json.JSONDecoder()
_loads = _decoder.decode
_scan: Callable[[str, int], tuple[Json, int]] = _decoder.scan_once  # type: ignore[attr-defined]  # it has no type
_PLAIN = frozenset((str, int, float, bool, type(None)))
_LONG_NUMBER = re.compile(rf"\d{{{limits.INTEGER_DIGITS_MAX + 1}}}")
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


def encode(value: Json, field: str, bytes_max: int) -> str:
    """Return *value* as compact JSON text, or raise `InvalidInput`, which names the invalid part of *field*."""
    if value is None:
        return "null"
    try:
        text = _joined(_parts(value, 0))
        size = len(text) if text.isascii() else len(text.encode())
        exact = _is_plain(value) or (
            text.count("[") + text.count("{") <= limits.JSON_DEPTH_MAX and _loads(text) == value
        )
    except (ValueError, TypeError, RecursionError):
        _refuse(value, field)
        raise errors.InvalidInput(field, "cannot be encoded as JSON") from None
    if size > bytes_max:
        raise errors.InvalidInput(field, f"is {size} bytes of JSON; the limit is {bytes_max}", bytes_max)
    if not exact or "\\u0000" in text or (size > limits.INTEGER_DIGITS_MAX and _LONG_NUMBER.search(text)):
        _refuse(value, field)
        if _NUL.search(text):
            raise errors.InvalidInput(field, "contains the character U+0000, which cannot be stored")
    return text


def encode_usual(values: Sequence[Json], bytes_max: int) -> list[str] | None:
    """Return the text of each value as `encode` does, in less time; None if a value is long, unusual or invalid."""
    try:
        texts = [_joined(_parts(value, 0)) for value in values]
        joined = _joined(texts)
        joined.encode()  # which refuses half of a surrogate pair
    except (ValueError, TypeError, RecursionError):
        return None
    # A character takes at most four bytes, and what is shorter than the longest integer contains none that is longer.
    short = max(map(len, texts), default=0) <= min(bytes_max // 4, limits.INTEGER_DIGITS_MAX)
    return texts if short and "\\u0000" not in joined and all(map(_is_plain, values)) else None


def _is_plain(value: Json, levels: int = 3) -> bool:
    """Return whether *value* has plain values in a few levels of dicts and lists, which always round-trips."""
    # In loops: for the few items of most values, functions for all of them take longer.
    if type(value) is dict:
        for name, item in value.items():
            if type(name) is not str:
                return False
            if type(item) not in _PLAIN and (levels == 0 or not _is_plain(item, levels - 1)):
                return False
        return True
    if type(value) is not list:
        return type(value) in _PLAIN
    for item in value:  # noqa: SIM110
        if type(item) not in _PLAIN and (levels == 0 or not _is_plain(item, levels - 1)):
            return False
    return True


def compact(value: Json) -> str:
    """Return *value*, known to be valid, as compact JSON text."""
    return _joined(_parts(value, 0))


def decode(text: str) -> Json:
    """Return the value of *text*, which `encode` wrote."""
    try:
        value, end = _scan(text, 0)
    except (ValueError, StopIteration):
        end = -1
    # Text that something else has written may have spaces around it, which this faster function does not skip.
    return value if end == len(text) else _loads(text)


def canonical(value: Json) -> bytes:
    """Return the same bytes for equal values, regardless of the order of their keys."""
    return _canonical_encoder.encode(value).encode()


def _refuse(value: object, field: str, depth: int = 0) -> None:
    """Walk *value* and raise `InvalidInput` at the first part that is not strict JSON."""
    if depth >= limits.JSON_DEPTH_MAX and isinstance(value, list | tuple | dict):
        raise errors.InvalidInput(_top(field), f"is nested deeper than {limits.JSON_DEPTH_MAX} levels")
    match value:
        case None | bool():
            return
        case str():
            _refuse_text(value, field)
        case int():
            if abs(value) >= 10**limits.INTEGER_DIGITS_MAX:
                raise errors.InvalidInput(field, f"is an integer of more than {limits.INTEGER_DIGITS_MAX} digits")
        case float():
            if not math.isfinite(value):
                raise errors.InvalidInput(field, f"{value} is not JSON")
        case list() | tuple():
            for index, item in enumerate(value):
                _refuse(item, f"{field}[{index}]", depth + 1)
        case dict():
            for key, item in value.items():
                _refuse_key(key, field)
                _refuse(item, f"{field}.{key[:_KEY_CHARS_SHOWN]}", depth + 1)
        case _:
            remedy = "convert it to a string, number, list or dict"
            raise errors.InvalidInput(field, f"a value of type {type(value).__name__} is not JSON; {remedy}")


def _refuse_key(key: object, field: str) -> None:
    if not isinstance(key, str):
        raise errors.InvalidInput(
            field, f"has the key {errors.shown(key)} of type {type(key).__name__}; keys are strings"
        )
    _refuse_text(key, f"{field} (a key)")


def _refuse_text(text: str, field: str) -> None:
    if "\0" in text:
        raise errors.InvalidInput(field, "contains the character U+0000, which cannot be stored")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise errors.InvalidInput(field, "contains half of a surrogate pair, which is not Unicode text") from None


def _top(field: str) -> str:
    return re.split(r"[.\[]", field, maxsplit=1)[0]
