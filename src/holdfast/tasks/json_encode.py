"""Writing values as JSON: what a task's arguments and results may be made of.

The value alone decides how it is written, never an annotation, so that a caller without the function writes the same.
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
from holdfast.domain.strict_json import Json


class Unfit(Exception):  # noqa: N818  # never leaves the client: its catchers make their own error of it
    """A value that cannot be written as JSON, or read from it; `path` leads to it, such as `.to[3]`."""

    def __init__(self, problem: str, path: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.path = path

    def inside(self, step: str) -> Unfit:
        """Return the same problem seen from one level further out."""
        return Unfit(self.problem, step + self.path)


_AS_THEY_ARE: Final = frozenset((str, int, bool, type(None)))
_CLASSES_REMEMBERED: Final = 1_024
_FOREIGN: Final = (("msgspec", "Struct"), ("pydantic", "BaseModel"))


def write(value: object, depth: int = 0) -> Json:
    """Return *value* as JSON made of new lists and objects, or raise `Unfit`."""
    kind: Any = type(value)
    if kind in _AS_THEY_ARE:
        return value
    if depth > limits.JSON_DEPTH_MAX:
        raise Unfit(f"is nested deeper than {limits.JSON_DEPTH_MAX} levels")
    # By exact type first: to ask what a value is a kind of takes longer than to write it.
    if writer := _WRITERS.get(kind):
        return writer(value)
    if nested := _NESTED.get(kind):
        return nested(value, depth)
    if (fields := _fields_of(kind)) is not None:
        return {name: _member(name, getattr(value, name), depth) for name in fields}
    return _write_kind_of(value, depth)


@lru_cache(_CLASSES_REMEMBERED)
def _fields_of(kind: type) -> tuple[str, ...] | None:
    if not dataclasses.is_dataclass(kind) or issubclass(kind, Enum):
        return None
    # A field that is not an argument of the constructor is made anew when it is read.
    return tuple(field.name for field in dataclasses.fields(kind) if field.init)


def _write_kind_of(value: object, depth: int) -> Json:
    match value:
        case Enum():
            return write(value.value, depth)
        case str():
            return str.__str__(value)
        case int():
            return int.__int__(value)
        case float():
            return _number(value)
        case _:
            found = (nested for kind, nested in _NESTED.items() if isinstance(value, kind))
            return next(found, _object)(value, depth)


def _items(values: list[Any] | tuple[Any, ...], depth: int) -> list[Json]:
    written = []
    for index, item in enumerate(values):
        try:
            written.append(write(item, depth + 1))
        except Unfit as error:
            raise error.inside(f"[{index}]") from None
    return written


def _sorted_items(values: set[Any] | frozenset[Any], depth: int) -> list[Json]:
    # Sorted, so that the same set is the same JSON in every process.
    return sorted(_items(tuple(values), depth), key=strict_json.canonical)


def _members(values: Mapping[Any, Any], depth: int) -> dict[str, Json]:
    written: dict[str, Json] = {}
    for key, item in values.items():
        name = key if type(key) is str else _key(key)
        if name in written:
            raise Unfit(f"has two keys that are both written as {name!r}")
        written[name] = _member(name, item, depth)
    return written


def _key(key: object) -> str:
    name = key if key is None else write(key)
    if not isinstance(name, str):
        raise Unfit(f"has the key {key!r} of type {type(key).__name__}; keys are strings")
    return name


def _member(name: str, value: object, depth: int) -> Json:
    try:
        return write(value, depth + 1)
    except Unfit as error:
        raise error.inside(f".{name}") from None


def _object(value: Any, depth: int) -> Json:
    if (library := foreign_model(type(value))) is not None:
        return _WRITERS_OF_MODELS[library](value)
    if writer := next((writer for kind, writer in _WRITERS.items() if isinstance(value, kind)), None):
        return writer(value)
    if isinstance(value, Mapping):
        return _members(value, depth)
    raise Unfit(f"a {type(value).__name__} cannot be written as JSON")


def foreign_model(kind: object) -> str | None:
    """Return the name of the library whose model *kind* is, if that library is in use at all."""
    for library, base in _FOREIGN:
        # Whoever has such a class has imported its library; nobody else should have to.
        module = sys.modules.get(library)
        if module is not None and isinstance(kind, type) and issubclass(kind, getattr(module, base)):
            return library
    return None


def _number(value: float) -> float:
    if not math.isfinite(value):
        raise Unfit(f"{value} is not JSON")
    return float.__float__(value)


def _time(value: time) -> str:
    if value.tzinfo is not None and value.utcoffset() is None:
        raise Unfit("is a time in a zone whose offset depends on the day; give a datetime")
    return value.isoformat()


def _seconds(value: timedelta) -> float:
    seconds = value.total_seconds()
    try:
        exact = timedelta(seconds=seconds) == value
    except OverflowError:
        exact = False
    if not exact:
        raise Unfit("is a timedelta too long to be written in seconds exactly")
    return seconds


def _struct(value: Any) -> Json:
    try:
        return sys.modules["msgspec"].to_builtins(value, str_keys=True)
    except (TypeError, ValueError, RecursionError) as error:
        raise Unfit(f"a {type(value).__name__} cannot be written by msgspec: {error}") from error


def _model(value: Any) -> Json:
    try:
        return value.model_dump(mode="json", by_alias=True)
    except (TypeError, ValueError, RecursionError) as error:
        raise Unfit(f"a {type(value).__name__} cannot be written by pydantic: {error}") from error


# A datetime is a date as well, so it stands before it.
_WRITERS: Final[dict[type, Callable[[Any], Json]]] = {
    float: _number,
    datetime: datetime.isoformat,
    date: date.isoformat,
    time: _time,
    timedelta: _seconds,
    UUID: str,
    Decimal: str,
}
_NESTED: Final[dict[type, Callable[[Any, int], Json]]] = {
    list: _items,
    tuple: _items,
    dict: _members,
    set: _sorted_items,
    frozenset: _sorted_items,
}
_WRITERS_OF_MODELS: Final[dict[str, Callable[[Any], Json]]] = {"msgspec": _struct, "pydantic": _model}
