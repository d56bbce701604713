"""The JSON schema (draft 2020-12) of annotations: it accepts what their decoders accept.

It mirrors `json_decode` branch by branch. If a class decides by its own code, such as a model of pydantic, a
`__post_init__` or an enum with `_missing_`, the schema accepts more than the decoder, never less.
"""

import dataclasses
import types
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, Flag
from typing import Any, Final, Literal, TypeVar, Union, get_args, get_origin, is_typeddict
from uuid import UUID

from holdfast.domain import json_schema
from holdfast.domain.strict_json import Json
from holdfast.tasks import json_decode, json_encode

_SCALARS: Final[Mapping[Any, Json]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number", "format": "double"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    datetime: {"type": "string", "format": "date-time"},
    date: {"type": "string", "format": "date"},
    time: {"type": "string", "format": "time"},
    timedelta: {"type": "number", "format": "seconds"},
    UUID: {"type": "string", "format": "uuid"},
    Decimal: {"type": ["integer", "string"], "format": "decimal"},
}
_LITERALS: Final = frozenset((str, int, bool, type(None)))
_ENUM_VALUES: Final = frozenset((str, int))


class SchemaWriter:
    """Writes the schemas of annotations; enums and classes with fields become definitions, which may be recursive."""

    def __init__(self) -> None:
        self.definitions: dict[str, Json] = {}
        """The schemas to which `$ref` refers, by name."""
        self._names: dict[Any, str] = {}

    def schema_of(self, annotation: Any) -> Json:
        """Return the schema of *annotation*."""
        if annotation is Any or annotation is object:
            return {}
        if isinstance(annotation, TypeVar):
            return self.schema_of(annotation.__bound__ or Any)
        aliased = getattr(annotation, "__supertype__", None) or getattr(annotation, "__value__", None)
        if aliased is not None and not isinstance(annotation, type):
            return self.schema_of(aliased)
        origin = get_origin(annotation) or annotation
        if origin in {Union, types.UnionType}:
            return {"anyOf": [self.schema_of(member) for member in get_args(annotation)]}
        if origin is Literal:
            return _literal(get_args(annotation))
        return self._schema_of_class(annotation, origin) if isinstance(origin, type) else False

    def _schema_of_class(self, annotation: Any, origin: type) -> Json:  # noqa: PLR0911  # one for each kind of class
        if origin in _SCALARS:
            return dict(_SCALARS[origin])
        if json_encode.model_library(origin) is not None:
            return {}
        if issubclass(origin, Enum):
            return self._reference(origin, origin, lambda: _enum(origin))
        if is_typeddict(origin):
            return self._reference(origin, origin, lambda: self._object(json_decode.Fields.of_typed_dict(origin), {}))
        if dataclasses.is_dataclass(origin):
            return self._reference(annotation, origin, lambda: self._dataclass(annotation, origin))
        if issubclass(origin, tuple):
            if hasattr(origin, "_fields"):
                return self._reference(origin, origin, lambda: self._named_tuple(origin))
            return self._tuple(get_args(annotation))
        if origin in json_decode.LISTS:
            return self._list(get_args(annotation))
        if origin in json_decode.MAPS:
            return self._map(get_args(annotation))
        return False

    def document(self, schema: Json) -> Json:
        """Return *schema*, which this object wrote, with the dialect and the definitions."""
        if not isinstance(schema, dict):
            return schema
        definitions = {"$defs": self.definitions} if self.definitions else {}
        return {"$schema": json_schema.DIALECT, **schema, **definitions}

    # --- definitions -----------------------------------------------------------------------------------------------

    def _reference(self, key: Any, kind: type, write: Callable[[], Json]) -> Json:
        """Return a reference to the definition of *key*, which *write* returns; a class may refer to itself."""
        name = self._names.get(key)
        if name is None:
            name = kind.__name__
            # Two classes, or two forms of a generic class, may have the same name.
            while name in self.definitions:
                name += "_"
            self._names[key] = name
            self.definitions[name] = True
            try:
                self.definitions[name] = write()
            except json_encode.InvalidValue:
                # An annotation is undefined at run time: the decoder refuses every value and names it.
                self.definitions[name] = {}
        return {"$ref": f"{json_schema.REFERENCE_PREFIX}{name}"}

    def _object(self, fields: json_decode.Fields, defaults: Mapping[str, Any]) -> dict[str, Json]:
        return object_schema(
            {name: self.schema_of(hint) for name, hint in fields.hints().items()},
            fields.required(),
            defaults,
            others=False,
        )

    def _dataclass(self, annotation: Any, kind: Any) -> Json:
        given = {field.name: field.default for field in dataclasses.fields(kind)}
        defaults = {name: default for name, default in given.items() if default is not dataclasses.MISSING}
        return self._object(json_decode.Fields.of_dataclass(annotation, kind), defaults)

    def _named_tuple(self, kind: Any) -> Json:
        """Return the schema of a named tuple, which is encoded as a list and may be given as an object."""
        fields = json_decode.Fields.of_named_tuple(kind)
        by_name = self._object(fields, kind._field_defaults)
        # The required fields come first.
        as_list = {
            "type": "array",
            "prefixItems": [self.schema_of(hint) for hint in fields.hints().values()],
            "minItems": len(fields.required()),
            "maxItems": len(kind._fields),
        }
        return {"anyOf": [as_list, by_name]}

    # --- collections -----------------------------------------------------------------------------------------------

    def _list(self, arguments: tuple[Any, ...]) -> Json:
        return list_schema(self.schema_of(arguments[0]) if arguments else {})

    def _tuple(self, arguments: tuple[Any, ...]) -> Json:
        if not arguments or (len(arguments) == 2 and arguments[1] is Ellipsis):
            return self._list(arguments[:1])
        items = [self.schema_of(argument) for argument in arguments if argument != ()]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}

    def _map(self, arguments: tuple[Any, ...]) -> Json:
        key, item = map(self.schema_of, arguments or (str, Any))
        schema: dict[str, Json] = {"type": "object"}
        if key not in ({}, {"type": "string"}):
            schema["propertyNames"] = key
        if item != {}:
            schema["additionalProperties"] = item
        return schema


def object_schema(
    properties: Mapping[str, Json], required: frozenset[str], defaults: Mapping[str, Any], others: Json
) -> dict[str, Json]:
    """Return the schema of an object with *properties*; *others* is the schema of all other members."""
    schema: dict[str, Json] = {
        "type": "object",
        "properties": {name: _with_default(name, one, defaults) for name, one in properties.items()},
        "additionalProperties": others,
    }
    if required:
        schema["required"] = [name for name in properties if name in required]
    return schema


def list_schema(item: Json) -> Json:
    """Return the schema of a list of items of the schema *item*."""
    return {"type": "array"} if item == {} else {"type": "array", "items": item}


def _with_default(name: str, schema: Json, defaults: Mapping[str, Any]) -> Json:
    if name not in defaults or not isinstance(schema, dict):
        return schema
    try:
        return {**schema, "default": json_encode.encode(defaults[name])}
    except json_encode.InvalidValue:
        return schema


def _enum(kind: type[Enum]) -> Json:
    members = [member.value for member in kind]
    # The keys of the map are the members' values and, since Python 3.13, aliases of them.
    values = list(kind._value2member_map_)
    # Flags have more values than members, `_missing_` may accept others, and values of other types may be equal.
    is_closed = "_missing_" not in {name for base in kind.__mro__ if base not in Enum.__mro__ for name in vars(base)}
    if issubclass(kind, Flag) or not is_closed or not _ENUM_VALUES.issuperset(map(type, members + values)):
        return {}
    return {"enum": values} if values else False


def _literal(allowed: tuple[Any, ...]) -> Json:
    values = [option.value if isinstance(option, Enum) else option for option in allowed]
    # Other values, such as bytes, equal no JSON value.
    found = [value for value in values if type(value) in _LITERALS]
    return {"enum": found} if found else False
