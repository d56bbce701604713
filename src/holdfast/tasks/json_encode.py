"""Encoding of Python values as JSON, for the arguments and results of tasks.

The encoding depends on the value only, not on annotations: a caller without the function encodes it the same way.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

from holdfast.domain import limits, strict_json


class InvalidValue(Exception):  # noqa: N818  # internal; callers convert it
    """A value cannot be encoded as JSON or decoded from it; `path` is its location, such as `.to[3]`."""

    def __init__(self, problem: str, path: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.path = path

    def with_prefix(self, prefix: str) -> InvalidValue:
        """Return the same error with *prefix* before its path."""
        return InvalidValue(self.problem, prefix + self.path)


_PASSED_THROUGH: Final = frozenset((str, int, bool, type(None)))
_CACHED_CLASSES: Final = 1_024
_MODEL_LIBRARIES: Final = (("msgspec", "Struct"), ("pydantic", "BaseModel"))


def encode(value: object, depth: int = 0) -> strict_json.Json:
    """Return *value* as JSON made of new lists and objects; raise `InvalidValue` if that is not possible."""
    cls: Any = type(value)
    if cls in _PASSED_THROUGH:
        return value
    if depth > limits.JSON_DEPTH_MAX:
        raise InvalidValue(f"is nested deeper than {limits.JSON_DEPTH_MAX} levels")
    # Look up the exact type first: isinstance checks take longer than the encoding.
    if encoder := _ENCODERS.get(cls):
        return encoder(value)
    if encode_container := _CONTAINER_ENCODERS.get(cls):
        return encode_container(value, depth)
    if (fields := _fields_of(cls)) is not None:
        return {name: _member(name, getattr(value, name), depth) for name in fields}
    return _encode_subclass(value, depth)


@lru_cache(_CACHED_CLASSES)
def _fields_of(cls: type) -> tuple[str, ...] | None:
    if not dataclasses.is_dataclass(cls) or issubclass(cls, Enum):
        return None
    # The constructor computes fields with init=False again on decoding.
    return tuple(field.name for field in dataclasses.fields(cls) if field.init)


def _encode_subclass(value: object, depth: int) -> strict_json.Json:
    match value:
        case Enum():
            return encode(value.value, depth)
        case str():
            return str.__str__(value)
        case int():
            return int.__int__(value)
        case float():
            return _number(value)
        case _:
            found = (
                encode_container for cls, encode_container in _CONTAINER_ENCODERS.items() if isinstance(value, cls)
            )
            return next(found, _object)(value, depth)


def _items(values: list[Any] | tuple[Any, ...], depth: int) -> list[strict_json.Json]:
    encoded = []
    for index, item in enumerate(values):
        try:
            encoded.append(encode(item, depth + 1))
        except InvalidValue as error:
            raise error.with_prefix(f"[{index}]") from None
    return encoded


def _sorted_items(values: set[Any] | frozenset[Any], depth: int) -> list[strict_json.Json]:
    # Sort the items: equal sets must have equal JSON in every process.
    return sorted(_items(tuple(values), depth), key=strict_json.canonical)


def _members(values: Mapping[Any, Any], depth: int) -> dict[str, strict_json.Json]:
    encoded: dict[str, strict_json.Json] = {}
    for key, item in values.items():
        name = key if type(key) is str else _key(key)
        if name in encoded:
            raise InvalidValue(f"has two keys that are both encoded as {name!r}")
        encoded[name] = _member(name, item, depth)
    return encoded


def _key(key: object) -> str:
    name = key if key is None else encode(key)
    if not isinstance(name, str):
        raise InvalidValue(f"has the key {key!r} of type {type(key).__name__}; keys are strings")
    return name


def _member(name: str, value: object, depth: int) -> strict_json.Json:
    try:
        return encode(value, depth + 1)
    except InvalidValue as error:
        raise error.with_prefix(f".{name}") from None


def _object(value: Any, depth: int) -> strict_json.Json:
    if (library := model_library(type(value))) is not None:
        return _MODEL_ENCODERS[library](value)
    if encoder := next((encoder for cls, encoder in _ENCODERS.items() if isinstance(value, cls)), None):
        return encoder(value)
    if isinstance(value, Mapping):
        return _members(value, depth)
    raise InvalidValue(f"a {type(value).__name__} cannot be encoded as JSON")


def model_library(cls: object) -> str | None:
    """Return the library whose model class *cls* is; None if it is no model class."""
    for library, base in _MODEL_LIBRARIES:
        # A program with such a class has imported its library; do not import it here.
        module = sys.modules.get(library)
        if module is not None and isinstance(cls, type) and issubclass(cls, getattr(module, base)):
            return library
    return None


def _number(value: float) -> float:
    if not math.isfinite(value):
        raise InvalidValue(f"{value} is not JSON")
    return float.__float__(value)


def _time(value: time) -> str:
    if value.tzinfo is not None and value.utcoffset() is None:
        raise InvalidValue("is a time in a zone whose offset depends on the date; use a datetime")
    return value.isoformat()


def _seconds(value: timedelta) -> float:
    seconds = value.total_seconds()
    try:
        exact = timedelta(seconds=seconds) == value
    except OverflowError:
        exact = False
    if not exact:
        raise InvalidValue("is a timedelta too long to be encoded exactly in seconds")
    return seconds


def _struct(value: Any) -> strict_json.Json:
    try:
        return sys.modules["msgspec"].to_builtins(value, str_keys=True)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidValue(f"a {type(value).__name__} cannot be encoded by msgspec: {error}") from error


def _model(value: Any) -> strict_json.Json:
    try:
        return value.model_dump(mode="json", by_alias=True)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidValue(f"a {type(value).__name__} cannot be encoded by pydantic: {error}") from error


# datetime is a subclass of date and must come first.
_ENCODERS: Final[dict[type, Callable[[Any], strict_json.Json]]] = {
    float: _number,
    datetime: datetime.isoformat,
    date: date.isoformat,
    time: _time,
    timedelta: _seconds,
    UUID: str,
    Decimal: str,
}
_CONTAINER_ENCODERS: Final[dict[type, Callable[[Any, int], strict_json.Json]]] = {
    list: _items,
    tuple: _items,
    dict: _members,
    set: _sorted_items,
    frozenset: _sorted_items,
}
_MODEL_ENCODERS: Final[dict[str, Callable[[Any], strict_json.Json]]] = {"msgspec": _struct, "pydantic": _model}
