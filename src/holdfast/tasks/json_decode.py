"""Reading values back from JSON by annotation: strict, so that a handler gets what it declares or is not called.

`reader_of` turns an annotation into a function once; what a value costs afterwards is that function alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import types
from collections import abc
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from enum import Enum
from functools import cached_property
from typing import (
    Any,
    Final,
    Literal,
    NotRequired,
    Required,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)
from uuid import UUID

from holdfast.domain import strict_json
from holdfast.domain.strict_json import Json
from holdfast.tasks.json_encode import Unfit, foreign_model, write

Reader: TypeAlias = Callable[[Json], Any]


def reader_of(annotation: Any) -> Reader:
    """Return what reads a value of *annotation*; one that JSON cannot hold is refused at each value, not here."""
    if annotation is Any or annotation is object:
        return as_it_is
    if isinstance(annotation, TypeVar):
        return reader_of(annotation.__bound__ or Any)
    # What `NewType` and the `type` statement made stands for something else.
    aliased = getattr(annotation, "__supertype__", None) or getattr(annotation, "__value__", None)
    if aliased is not None and not isinstance(annotation, type):
        return reader_of(aliased)
    origin = get_origin(annotation) or annotation
    if origin in {Union, types.UnionType}:
        return _union(get_args(annotation))
    if origin is Literal:
        return _literal(get_args(annotation))
    return _reader_of_class(annotation, origin) if isinstance(origin, type) else _refusing(annotation)


def _reader_of_class(annotation: Any, origin: type) -> Reader:  # noqa: PLR0911  # one for each kind of class
    if origin in _SCALARS:
        return _SCALARS[origin]
    if foreign_model(origin) is not None:
        return _reader_of_model(annotation, origin)
    if issubclass(origin, Enum):
        return _enum(origin)
    if is_typeddict(origin):
        return _Fields.of_typed_dict(origin).read
    if dataclasses.is_dataclass(origin):
        return _Fields.of_dataclass(annotation, origin).read
    if issubclass(origin, tuple):
        return _Fields.of_named_tuple(origin).read if hasattr(origin, "_fields") else _tuple(get_args(annotation))
    if origin in _LISTS:
        return _collection(_LISTS[origin], get_args(annotation))
    if origin in _MAPS:
        return _map(get_args(annotation))
    return _refusing(annotation)


def as_it_is(value: Json) -> Any:
    """Return *value*: what it should be is not said."""
    return value


def _refusing(annotation: Any) -> Reader:
    def read(value: Json) -> Any:  # noqa: ARG001
        raise Unfit(f"cannot be read from JSON as {_shown(annotation)}")

    return read


def _shown(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def _wanted(what: str, value: Json) -> Unfit:
    return Unfit(f"must be {what}, not {_JSON_NAMES.get(type(value), type(value).__name__)}")


# --- single values --------------------------------------------------------------------------------------------------


def _string(value: Json) -> str:
    if isinstance(value, str):
        return value
    raise _wanted("a string", value)


def _integer(value: Json) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise _wanted("an integer", value)


def _float(value: Json) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise Unfit("is an integer too large for a float") from None
    raise _wanted("a number", value)


def _boolean(value: Json) -> bool:
    if isinstance(value, bool):
        return value
    raise _wanted("true or false", value)


def _null(value: Json) -> None:
    if value is not None:
        raise _wanted("null", value)


def _from_text(what: str, make: Callable[[str], Any]) -> Reader:
    def read(value: Json) -> Any:
        if not isinstance(value, str):
            raise _wanted(f"a string with {what}", value)
        try:
            return make(value)
        except (ValueError, InvalidOperation):
            raise Unfit(f"{_cut(value)} is not {what}") from None

    return read


def _decimal(value: Json) -> Decimal:
    # Not a float: which decimal was meant by it is anybody's guess.
    if isinstance(value, int) and not isinstance(value, bool):
        return Decimal(value)
    decimal: Decimal = _decimal_text(value)
    return decimal


def _timedelta(value: Json) -> timedelta:
    try:
        return timedelta(seconds=_float(value))
    except OverflowError:
        raise Unfit("is more seconds than a timedelta can hold") from None


def _cut(value: Json) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:59]}…"


def _enum(kind: type[Enum]) -> Reader:
    members = [(write(member.value), member) for member in kind]

    def read(value: Json) -> Enum:
        for written, member in members:
            if _same(written, value):
                return member
        if type(value) in {str, int}:
            # Flags have more values than members, and a class may know further ones by itself.
            with contextlib.suppress(ValueError):
                return kind(value)
        raise Unfit(f"{_cut(value)} is not a value of {kind.__name__}")

    return read


def _literal(allowed: tuple[Any, ...]) -> Reader:
    def read(value: Json) -> Any:
        for option in allowed:
            if _same(option.value if isinstance(option, Enum) else option, value):
                return option
        raise Unfit(f"is {_cut(value)}; it must be one of {', '.join(map(repr, allowed))}")

    return read


def _same(one: object, other: Json) -> bool:
    # To Python 1, 1.0 and true are equal, to whoever reads JSON they are not.
    return one == other and type(one) is type(other)


# --- choices and collections ----------------------------------------------------------------------------------------


def _union(members: tuple[Any, ...]) -> Reader:
    exact = _JSON_SCALARS.intersection(member for member in members if isinstance(member, type))
    readers = [reader_of(member) for member in members]
    wanted = " or ".join(map(_shown, members))

    def read(value: Json) -> Any:
        if type(value) in exact:
            return value
        problems = []
        for reader in readers:
            try:
                return reader(value)
            except Unfit as error:
                problems.append(error)
        # Where all but one ask for something quite different, that one knows best what is wrong.
        deep = [error for error in problems if error.path]
        raise deep[0] if len(deep) == 1 else Unfit(f"{_cut(value)} does not fit {wanted}")

    return read


def _collection(make: type, arguments: tuple[Any, ...]) -> Reader:
    item = reader_of(arguments[0]) if arguments else as_it_is

    def read(value: Json) -> Any:
        items = _items(value, item)
        try:
            return items if make is list else make(items)
        except TypeError:
            raise Unfit(f"has entries that cannot be in a {make.__name__}") from None

    return read


def _items(value: Json, item: Reader) -> list[Any]:
    if not isinstance(value, list):
        raise _wanted("a list", value)
    if item is as_it_is:
        return value
    return [_step(item, entry, index) for index, entry in enumerate(value)]


def _step(reader: Reader, value: Json, step: int | str) -> Any:
    try:
        return reader(value)
    except Unfit as error:
        raise error.inside(f"[{step}]" if isinstance(step, int) else f".{step}") from None


def _tuple(arguments: tuple[Any, ...]) -> Reader:
    if not arguments or (len(arguments) == 2 and arguments[1] is Ellipsis):
        return _collection(tuple, arguments[:1])
    readers = [reader_of(argument) for argument in arguments if argument != ()]

    def read(value: Json) -> Any:
        entries = _items(value, as_it_is)
        if len(entries) != len(readers):
            raise Unfit(f"has {len(entries)} entries; it must have {len(readers)}")
        return tuple(map(_step, readers, entries, range(len(entries))))

    return read


def _map(arguments: tuple[Any, ...]) -> Reader:
    key, item = map(reader_of, arguments or (str, Any))

    def read(value: Json) -> Any:
        return {_step(key, name, name): _step(item, entry, name) for name, entry in _object(value).items()}

    return read


def _object(value: Json) -> dict[str, Json]:
    if not isinstance(value, dict):
        raise _wanted("an object", value)
    return value


# --- things with fields ---------------------------------------------------------------------------------------------


@dataclasses.dataclass
class _Fields:
    """A class with named fields. Its annotations are read when the first value is, so that it may contain itself."""

    make: Callable[..., Any]
    hints: Callable[[], dict[str, Any]]
    required: Callable[[], frozenset[str]]
    order: tuple[str, ...] | None = None
    """The names of entries in a list, where that is how values are written."""

    @classmethod
    def of_dataclass(cls, annotation: Any, kind: type) -> _Fields:
        fields = [field for field in dataclasses.fields(kind) if field.init]
        needed = [field.name for field in fields if _has_no_default(field)]
        names = [field.name for field in fields]
        return cls(kind, lambda: _chosen(annotation, kind, names), lambda: frozenset(needed))

    @classmethod
    def of_typed_dict(cls, kind: Any) -> _Fields:
        return cls(dict, lambda: _hints(kind), lambda: _required_keys(kind))

    @classmethod
    def of_named_tuple(cls, kind: Any) -> _Fields:
        names = kind._fields
        needed = frozenset(names) - kind._field_defaults.keys()
        return cls(kind, lambda: {name: _hints(kind).get(name, Any) for name in names}, lambda: needed, names)

    @cached_property
    def readers(self) -> dict[str, Reader]:
        return {name: reader_of(hint) for name, hint in self.hints().items()}

    @cached_property
    def needed(self) -> frozenset[str]:
        return self.required()

    def read(self, value: Json) -> Any:
        if self.order is not None and isinstance(value, list):
            value = self._by_name(value, self.order)
        given, readers = _object(value), self.readers
        if missing := self.needed - given.keys():
            raise Unfit("is missing", f".{min(missing)}")
        if unknown := given.keys() - readers.keys():
            raise Unfit("is not known", f".{min(unknown)}")
        fields = {name: _step(readers[name], entry, name) for name, entry in given.items()}
        try:
            return self.make(**fields)
        except (ValueError, TypeError) as error:
            raise Unfit(f"is refused: {error}") from error

    @staticmethod
    def _by_name(value: list[Json], order: tuple[str, ...]) -> dict[str, Json]:
        if len(value) > len(order):
            raise Unfit(f"has {len(value)} entries; it must have at most {len(order)}")
        return dict(zip(order, value, strict=False))


def _has_no_default(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _required_keys(kind: Any) -> frozenset[str]:
    """Return what must be there; the class itself does not see a mark in an annotation that is still a string."""
    marked = {name: get_origin(hint) for name, hint in _hints(kind, marks=True).items()}
    usual: frozenset[str] = kind.__required_keys__
    return frozenset(
        name for name, mark in marked.items() if mark is Required or (name in usual and mark is not NotRequired)
    )


def _hints(kind: Any, *, marks: bool = False) -> dict[str, Any]:
    try:
        return get_type_hints(kind, include_extras=marks)
    except NameError as error:
        raise Unfit(
            f"cannot be read as {kind.__name__}: its annotation {error.name!r} is not there at run time"
        ) from None


def _chosen(annotation: Any, kind: Any, names: list[str]) -> dict[str, Any]:
    """Return the annotations of the fields, with what a generic class was chosen for in place of its variables."""
    chosen = dict(zip(getattr(kind, "__parameters__", ()), get_args(annotation), strict=False))
    hints = _hints(kind)
    return {name: _filled(hints[name], chosen) for name in names}


def _filled(hint: Any, chosen: Mapping[Any, Any]) -> Any:
    if isinstance(hint, TypeVar):
        return chosen.get(hint, hint)
    variables = () if isinstance(hint, type) else getattr(hint, "__parameters__", ())
    return hint[tuple(chosen.get(variable, Any) for variable in variables)] if variables else hint


def _reader_of_model(annotation: Any, kind: Any) -> Reader:
    def read_struct(value: Json) -> Any:
        msgspec = sys.modules["msgspec"]
        try:
            return msgspec.convert(value, annotation, str_keys=True)
        except msgspec.ValidationError as error:
            raise Unfit(f"is refused: {error}") from None

    def read_model(value: Json) -> Any:
        try:
            # From text, because only then does a strict model take a moment that is written as a string.
            return kind.model_validate_json(strict_json.compact(value))
        except ValueError as error:
            raise _first_of(error) from None

    return read_struct if foreign_model(kind) == "msgspec" else read_model


def _first_of(error: Any) -> Unfit:
    """Return the first thing that pydantic found wrong; all of them would be a page."""
    first = error.errors(include_url=False)[0]
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"])
    return Unfit(first["msg"], path)


# --- tables ---------------------------------------------------------------------------------------------------------

_decimal_text = _from_text("a decimal number", Decimal)
_JSON_SCALARS: Final = frozenset((str, int, float, bool, type(None)))
_SCALARS: Final[dict[Any, Reader]] = {
    str: _string,
    int: _integer,
    float: _float,
    bool: _boolean,
    type(None): _null,
    datetime: _from_text("a moment in ISO format", datetime.fromisoformat),
    date: _from_text("a date in ISO format", date.fromisoformat),
    time: _from_text("a time in ISO format", time.fromisoformat),
    timedelta: _timedelta,
    UUID: _from_text("a UUID", UUID),
    Decimal: _decimal,
}
_JSON_NAMES: Final[dict[type, str]] = {
    str: "a string",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    type(None): "null",
    list: "a list",
    dict: "an object",
}
_LISTS: Final[dict[Any, type]] = {
    list: list,
    abc.Sequence: list,
    abc.MutableSequence: list,
    abc.Collection: list,
    abc.Iterable: list,
    set: set,
    abc.Set: set,
    abc.MutableSet: set,
    frozenset: frozenset,
}
_MAPS: Final = frozenset((dict, abc.Mapping, abc.MutableMapping))
