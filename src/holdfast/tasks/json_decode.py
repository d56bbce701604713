"""Strict decoding of JSON by annotation: a handler gets values of the declared types or is not called.

`decoder_for` converts an annotation to a decoder function once; decoding a value only calls that function.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import types
import typing
from collections import abc
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from enum import Enum
from functools import cached_property
from typing import Any, Final, TypeAlias, TypeVar
from uuid import UUID

from holdfast.domain import json_schema, strict_json
from holdfast.tasks.json_encode import InvalidValue, encode, model_library

Decoder: TypeAlias = Callable[[strict_json.Json], Any]


def decoder_for(annotation: Any) -> Decoder:
    """Return the decoder for *annotation*; for a type that JSON cannot hold, a decoder that refuses every value."""
    if annotation is Any or annotation is object:
        return passthrough
    if isinstance(annotation, TypeVar):
        return decoder_for(annotation.__bound__ or Any)
    # `NewType` and the `type` statement create aliases.
    aliased = getattr(annotation, "__supertype__", None) or getattr(annotation, "__value__", None)
    if aliased is not None and not isinstance(annotation, type):
        return decoder_for(aliased)
    origin = typing.get_origin(annotation) or annotation
    if origin in {typing.Union, types.UnionType}:
        return _union(typing.get_args(annotation))
    if origin is typing.Literal:
        return _literal(typing.get_args(annotation))
    return _decoder_for_class(annotation, origin) if isinstance(origin, type) else _rejecting_decoder(annotation)


def _decoder_for_class(annotation: Any, origin: type) -> Decoder:  # noqa: PLR0911  # one for each kind of class
    if origin in _SCALARS:
        return _SCALARS[origin]
    if model_library(origin) is not None:
        return _decoder_for_model(annotation, origin)
    if issubclass(origin, Enum):
        return _enum(origin)
    if typing.is_typeddict(origin):
        return Fields.of_typed_dict(origin).decode
    if dataclasses.is_dataclass(origin):
        return Fields.of_dataclass(annotation, origin).decode
    if issubclass(origin, tuple):
        return (
            Fields.of_named_tuple(origin).decode
            if hasattr(origin, "_fields")
            else _tuple(typing.get_args(annotation))
        )
    if origin in LISTS:
        return _collection(LISTS[origin], typing.get_args(annotation))
    if origin in MAPS:
        return _map(typing.get_args(annotation))
    return _rejecting_decoder(annotation)


def passthrough(value: strict_json.Json) -> Any:
    """Return *value* unchanged: it has no annotation."""
    return value


def _rejecting_decoder(annotation: Any) -> Decoder:
    def decode(value: strict_json.Json) -> Any:  # noqa: ARG001
        raise InvalidValue(f"cannot be decoded from JSON as {_type_name(annotation)}")

    return decode


def _type_name(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def _type_error(expected: str, value: strict_json.Json) -> InvalidValue:
    return InvalidValue(json_schema.type_problem(expected, value))


# --- single values --------------------------------------------------------------------------------------------------


def _string(value: strict_json.Json) -> str:
    if isinstance(value, str):
        return value
    raise _type_error("a string", value)


def _integer(value: strict_json.Json) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise _type_error("an integer", value)


def _float(value: strict_json.Json) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise InvalidValue("is an integer too large for a float") from None
    raise _type_error("a number", value)


def _boolean(value: strict_json.Json) -> bool:
    if isinstance(value, bool):
        return value
    raise _type_error("true or false", value)


def _null(value: strict_json.Json) -> None:
    if value is not None:
        raise _type_error("null", value)


def _from_text(format_name: str) -> Decoder:
    expected, make = json_schema.TEXT_FORMATS[format_name]

    def decode(value: strict_json.Json) -> Any:
        if not isinstance(value, str):
            raise _type_error(f"a string with {expected}", value)
        try:
            return make(value)
        except (ValueError, InvalidOperation):
            raise InvalidValue(f"{json_schema.short_repr(value)} is not {expected}") from None

    return decode


def _decimal(value: strict_json.Json) -> Decimal:
    # A float is refused, because it may not be exactly the intended decimal.
    if isinstance(value, int) and not isinstance(value, bool):
        return Decimal(value)
    decimal: Decimal = _decimal_text(value)
    return decimal


def _timedelta(value: strict_json.Json) -> timedelta:
    try:
        return timedelta(seconds=_float(value))
    except OverflowError:
        raise InvalidValue("is more seconds than a timedelta can hold") from None


def _enum(kind: type[Enum]) -> Decoder:
    members = [(encode(member.value), member) for member in kind]

    def decode(value: strict_json.Json) -> Enum:
        for encoded, member in members:
            if json_schema.equal(encoded, value):
                return member
        if type(value) in {str, int}:
            # Flags have more values than members, and `_missing_` may accept others.
            with contextlib.suppress(ValueError):
                return kind(value)
        raise InvalidValue(f"{json_schema.short_repr(value)} is not a value of {kind.__name__}")

    return decode


def _literal(allowed: tuple[Any, ...]) -> Decoder:
    def decode(value: strict_json.Json) -> Any:
        for option in allowed:
            if json_schema.equal(option.value if isinstance(option, Enum) else option, value):
                return option
        raise InvalidValue(f"is {json_schema.short_repr(value)}; it must be one of {', '.join(map(repr, allowed))}")

    return decode


# --- choices and collections ----------------------------------------------------------------------------------------


def _union(members: tuple[Any, ...]) -> Decoder:
    exact = _JSON_SCALARS.intersection(member for member in members if isinstance(member, type))
    decoders = [decoder_for(member) for member in members]
    expected = " or ".join(map(_type_name, members))

    def decode(value: strict_json.Json) -> Any:
        if type(value) in exact:
            return value
        problems = []
        for decoder in decoders:
            try:
                return decoder(value)
            except InvalidValue as error:
                problems.append(error)
        # If exactly one member matched at the top level, its error is the most precise.
        deep = [error for error in problems if error.path]
        raise deep[0] if len(deep) == 1 else InvalidValue(f"{json_schema.short_repr(value)} does not fit {expected}")

    return decode


def _collection(make: type, arguments: tuple[Any, ...]) -> Decoder:
    item = decoder_for(arguments[0]) if arguments else passthrough

    def decode(value: strict_json.Json) -> Any:
        items = _items(value, item)
        try:
            return items if make is list else make(items)
        except TypeError:
            raise InvalidValue(f"has entries that cannot be in a {make.__name__}") from None

    return decode


def _items(value: strict_json.Json, item: Decoder) -> list[Any]:
    if not isinstance(value, list):
        raise _type_error("a list", value)
    if item is passthrough:
        return value
    return [_decode_member(item, entry, index) for index, entry in enumerate(value)]


def _decode_member(decoder: Decoder, value: strict_json.Json, key: int | str) -> Any:
    try:
        return decoder(value)
    except InvalidValue as error:
        raise error.with_prefix(f"[{key}]" if isinstance(key, int) else f".{key}") from None


def _tuple(arguments: tuple[Any, ...]) -> Decoder:
    if not arguments or (len(arguments) == 2 and arguments[1] is Ellipsis):
        return _collection(tuple, arguments[:1])
    decoders = [decoder_for(argument) for argument in arguments if argument != ()]

    def decode(value: strict_json.Json) -> Any:
        entries = _items(value, passthrough)
        if len(entries) != len(decoders):
            raise InvalidValue(f"has {len(entries)} entries; it must have {len(decoders)}")
        return tuple(map(_decode_member, decoders, entries, range(len(entries))))

    return decode


def _map(arguments: tuple[Any, ...]) -> Decoder:
    key, item = map(decoder_for, arguments or (str, Any))

    def decode(value: strict_json.Json) -> Any:
        return {
            _decode_member(key, name, name): _decode_member(item, entry, name)
            for name, entry in _object(value).items()
        }

    return decode


def _object(value: strict_json.Json) -> dict[str, strict_json.Json]:
    if not isinstance(value, dict):
        raise _type_error("an object", value)
    return value


# --- things with fields ---------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Fields:
    """Decodes a class with named fields. Evaluates its annotations at the first value: the class may be recursive."""

    make: Callable[..., Any]
    hints: Callable[[], dict[str, Any]]
    required: Callable[[], frozenset[str]]
    order: tuple[str, ...] | None = None
    """The field names in order, if values are encoded as lists."""

    @classmethod
    def of_dataclass(cls, annotation: Any, kind: type) -> Fields:
        """Return the fields of a dataclass."""
        fields = [field for field in dataclasses.fields(kind) if field.init]
        needed = [field.name for field in fields if _has_no_default(field)]
        names = [field.name for field in fields]
        return cls(kind, lambda: _field_types(annotation, kind, names), lambda: frozenset(needed))

    @classmethod
    def of_typed_dict(cls, kind: Any) -> Fields:
        """Return the fields of a TypedDict."""
        return cls(dict, lambda: _hints(kind), lambda: _required_keys(kind))

    @classmethod
    def of_named_tuple(cls, kind: Any) -> Fields:
        """Return the fields of a named tuple."""
        names = kind._fields
        needed = frozenset(names) - kind._field_defaults.keys()
        return cls(kind, lambda: {name: _hints(kind).get(name, Any) for name in names}, lambda: needed, names)

    @cached_property
    def _decoders(self) -> dict[str, Decoder]:
        return {name: decoder_for(hint) for name, hint in self.hints().items()}

    @cached_property
    def _needed(self) -> frozenset[str]:
        return self.required()

    def decode(self, value: strict_json.Json) -> Any:
        """Return the object in *value*."""
        if self.order is not None and isinstance(value, list):
            value = self._by_name(value, self.order)
        given, decoders = _object(value), self._decoders
        if missing := self._needed - given.keys():
            raise InvalidValue("is missing", f".{min(missing)}")
        if unknown := given.keys() - decoders.keys():
            raise InvalidValue(json_schema.unknown_key(decoders), f".{min(unknown)}")
        fields = {name: _decode_member(decoders[name], entry, name) for name, entry in given.items()}
        try:
            return self.make(**fields)
        except (ValueError, TypeError) as error:
            raise InvalidValue(f"is refused: {error}") from error

    @staticmethod
    def _by_name(value: list[strict_json.Json], order: tuple[str, ...]) -> dict[str, strict_json.Json]:
        if len(value) > len(order):
            raise InvalidValue(f"has {len(value)} entries; it must have at most {len(order)}")
        return dict(zip(order, value, strict=False))


def _has_no_default(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _required_keys(kind: Any) -> frozenset[str]:
    """Return the required keys, including markers in string annotations, which the class itself ignores."""
    marked = {name: typing.get_origin(hint) for name, hint in _hints(kind, marks=True).items()}
    required_keys: frozenset[str] = kind.__required_keys__
    return frozenset(
        name
        for name, mark in marked.items()
        if mark is typing.Required or (name in required_keys and mark is not typing.NotRequired)
    )


def _hints(kind: Any, *, marks: bool = False) -> dict[str, Any]:
    try:
        return typing.get_type_hints(kind, include_extras=marks)
    except NameError as error:
        raise InvalidValue(
            f"cannot be decoded as {kind.__name__}: its annotation {error.name!r} is undefined at run time"
        ) from None


def _field_types(annotation: Any, kind: Any, names: list[str]) -> dict[str, Any]:
    """Return the annotations of the fields, with type arguments in place of a generic class's type variables."""
    type_arguments = dict(zip(getattr(kind, "__parameters__", ()), typing.get_args(annotation), strict=False))
    hints = _hints(kind)
    return {name: _substitute(hints[name], type_arguments) for name in names}


def _substitute(hint: Any, type_arguments: Mapping[Any, Any]) -> Any:
    if isinstance(hint, TypeVar):
        return type_arguments.get(hint, hint)
    variables = () if isinstance(hint, type) else getattr(hint, "__parameters__", ())
    return hint[tuple(type_arguments.get(variable, Any) for variable in variables)] if variables else hint


def _decoder_for_model(annotation: Any, kind: Any) -> Decoder:
    def decode_struct(value: strict_json.Json) -> Any:
        msgspec = sys.modules["msgspec"]
        try:
            return msgspec.convert(value, annotation, str_keys=True)
        except msgspec.ValidationError as error:
            raise InvalidValue(f"is refused: {error}") from None

    def decode_model(value: strict_json.Json) -> Any:
        try:
            # Validate from text, because a strict model accepts a datetime string only there.
            return kind.model_validate_json(strict_json.compact(value))
        except ValueError as error:
            raise _first_error(error) from None

    return decode_struct if model_library(kind) == "msgspec" else decode_model


def _first_error(error: Any) -> InvalidValue:
    """Return the first of pydantic's errors."""
    first = error.errors(include_url=False)[0]
    path = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in first["loc"])
    return InvalidValue(first["msg"], path)


# --- tables ---------------------------------------------------------------------------------------------------------

_decimal_text = _from_text("decimal")
_JSON_SCALARS: Final = frozenset((str, int, float, bool, type(None)))
_SCALARS: Final[dict[Any, Decoder]] = {
    str: _string,
    int: _integer,
    float: _float,
    bool: _boolean,
    type(None): _null,
    datetime: _from_text("date-time"),
    date: _from_text("date"),
    time: _from_text("time"),
    timedelta: _timedelta,
    UUID: _from_text("uuid"),
    Decimal: _decimal,
}
LISTS: Final[dict[Any, type]] = {
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
MAPS: Final = frozenset((dict, abc.Mapping, abc.MutableMapping))
