"""Validation of JSON values by the subset of JSON Schema (draft 2020-12) that published tasks use.

Keywords of the subset: `$ref` to `$defs`, `type`, `enum`, `anyOf`, `format`, `properties`, `required`,
`additionalProperties`, `propertyNames`, `items`, `prefixItems`, `minItems` and `maxItems`. Others are ignored: a
schema that later code published may accept too much, but never too little.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final, NamedTuple
from uuid import UUID

from holdfast.domain import errors
from holdfast.domain.strict_json import Json

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
REFERENCE_PREFIX: Final = "#/$defs/"
# How many references may follow each other without a step into the value: a schema cannot make the check loop.
_REFERENCES_MAX: Final = 64
_VALUE_CHARS_SHOWN: Final = 60


class TextFormat(NamedTuple):
    """A format of strings: how a message names its values, and the function that parses one or raises."""

    expected: str
    parse: Callable[[str], object]


TEXT_FORMATS: Final[Mapping[str, TextFormat]] = {
    "date-time": TextFormat("a datetime in ISO format", datetime.fromisoformat),
    "date": TextFormat("a date in ISO format", date.fromisoformat),
    "time": TextFormat("a time in ISO format", time.fromisoformat),
    "uuid": TextFormat("a UUID", UUID),
    "decimal": TextFormat("a decimal number", Decimal),
}


def unknown_key(known: Iterable[str]) -> str:
    """Return the text for a key that is not one of *known*."""
    names = ", ".join(sorted(known))
    return f"is not known; the keys are {names}" if names else "is not known; there are no keys"


class Problem(NamedTuple):
    """Why a value is invalid, and the path of the invalid part, such as `.to[3]`."""

    path: str
    text: str
    limit: int | None = None


def check(schema: Json, value: Json, field: str) -> None:
    """Raise `InvalidInput`, with the path under *field*, if *value* does not match *schema*."""
    definitions = schema.get("$defs", {}) if isinstance(schema, dict) else {}
    problem = _Check(definitions).find(schema, value)
    if problem is not None:
        raise errors.InvalidInput(f"{field}{problem.path}", problem.text, problem.limit)


def equal(left: object, right: Json) -> bool:
    """Return whether two values are the same JSON: in Python 1, 1.0 and True are equal."""
    return left == right and type(left) is type(right)


def type_problem(expected: str, value: Json) -> str:
    """Return the message for a value of the wrong type."""
    return f"must be {expected}, not {_NAMES.get(type(value), type(value).__name__)}"


def short_repr(value: Json) -> str:
    """Return the repr of *value*, shortened if it is long."""
    text = repr(value)
    return text if len(text) <= _VALUE_CHARS_SHOWN else f"{text[: _VALUE_CHARS_SHOWN - 1]}…"


class _Check:
    """A check by one schema; `find` returns the first problem of a value, or None."""

    def __init__(self, definitions: Mapping[str, Json]) -> None:
        self._definitions = definitions

    def find(  # noqa: PLR0911  # one for each keyword
        self, schema: Json, value: Json, references: int = 0
    ) -> Problem | None:
        """Return the first problem of *value*; *references* were followed since the last step into a value."""
        if not isinstance(schema, dict):
            return Problem("", "no value is accepted") if schema is False else None
        if "$ref" in schema:
            if references >= _REFERENCES_MAX:
                return None
            target = self._definitions.get(str(schema["$ref"]).removeprefix(REFERENCE_PREFIX), True)
            return self.find(target, value, references + 1)
        if "anyOf" in schema:
            return self._any_of(schema["anyOf"], value, references)
        if "enum" in schema:
            return _enum(schema["enum"], value)
        if "type" in schema and (problem := _type(schema, value)) is not None:
            return problem
        if type(value) is dict:
            return self._object(schema, value)
        if type(value) is list:
            return self._list(schema, value)
        return _format(schema["format"], value) if "format" in schema else None

    def _any_of(self, choices: Iterable[Json], value: Json, references: int) -> Problem | None:
        problems = []
        for choice in choices:
            problem = self.find(choice, value, references)
            if problem is None:
                return None
            problems.append(problem)
        # If exactly one choice matched at the top level, its problem is the most precise.
        deep = [problem for problem in problems if problem.path]
        if len(deep) == 1:
            return deep[0]
        names = dict.fromkeys(name for choice in choices for name in _type_names(choice))
        return Problem("", f"{short_repr(value)} does not fit {' or '.join(names)}")

    def _object(self, schema: Json, value: dict[str, Json]) -> Problem | None:
        properties = schema.get("properties", {})
        if missing := [name for name in schema.get("required", ()) if name not in value]:
            return Problem(f".{min(missing)}", "is missing")
        others = schema.get("additionalProperties", True)
        if others is False and (unknown := value.keys() - properties.keys()):
            return Problem(f".{min(unknown)}", unknown_key(properties))
        names = schema.get("propertyNames", True)
        if not properties and others is True and names is True:
            return None
        for name, item in value.items():
            problem = None if names is True else self.find(names, name)
            if problem is None:
                problem = self.find(properties.get(name, others), item)
            if problem is not None:
                return problem._replace(path=f".{name}{problem.path}")
        return None

    def _list(self, schema: Json, value: list[Json]) -> Problem | None:
        count, low, high = len(value), schema.get("minItems", 0), schema.get("maxItems")
        if count < low or (high is not None and count > high):
            allowed = low if low == high else f"at least {low}" if high is None else f"from {low} to {high}"
            return Problem("", f"has {count} entries; it must have {allowed}", low if count < low else high)
        first, others = schema.get("prefixItems", ()), schema.get("items", True)
        if not first and others is True:
            return None
        for index, item in enumerate(value):
            problem = self.find(first[index] if index < len(first) else others, item)
            if problem is not None:
                return problem._replace(path=f"[{index}]{problem.path}")
        return None


def _enum(allowed: list[Json], value: Json) -> Problem | None:
    if any(equal(option, value) for option in allowed):
        return None
    return Problem("", f"is {short_repr(value)}; it must be one of {', '.join(map(repr, allowed))}")


def _type(schema: Json, value: Json) -> Problem | None:
    types = schema["type"]
    allowed = types if isinstance(types, list) else (types,)
    if not _TYPES_OF.get(type(value), frozenset()).isdisjoint(allowed):
        return None
    expected = " or ".join(_EXPECTED.get(one, str(one)) for one in allowed)
    text_format = TEXT_FORMATS.get(schema.get("format", ""))
    if text_format is not None:
        expected += f" with {text_format.expected}"
    return Problem("", type_problem(expected, value))


def _format(name: str, value: Json) -> Problem | None:
    if type(value) is str:
        text_format = TEXT_FORMATS.get(name)
        try:
            if text_format is not None:
                text_format.parse(value)
        except (ValueError, ArithmeticError):
            return Problem("", f"{short_repr(value)} is not {text_format.expected if text_format else name}")
    elif type(value) is int or type(value) is float:
        return _number_format(name, value)
    return None


def _number_format(name: str, value: float) -> Problem | None:
    if name in {"double", "seconds"}:
        try:
            number = float(value)
        except OverflowError:
            return Problem("", "is an integer too large for a float")
        try:
            if name == "seconds":
                timedelta(seconds=number)
        except OverflowError:
            return Problem("", "is more seconds than a timedelta can hold")
    return None


def _type_names(schema: Json) -> list[str]:
    """Return how a message names the values of *schema*."""
    if not isinstance(schema, dict):
        return []
    if "$ref" in schema:
        return [str(schema["$ref"]).removeprefix(REFERENCE_PREFIX)]
    if "anyOf" in schema:
        return [name for choice in schema["anyOf"] for name in _type_names(choice)]
    if "enum" in schema:
        return [repr(option) for option in schema["enum"]]
    types = schema.get("type", [])
    text_format = TEXT_FORMATS.get(schema.get("format", ""))
    if types == "string" and text_format is not None:
        return [text_format.expected]
    return [_EXPECTED.get(one, str(one)) for one in (types if isinstance(types, list) else [types])]


_NAMES: Final[dict[type, str]] = {
    str: "a string",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    type(None): "null",
    list: "a list",
    dict: "an object",
}
_TYPES_OF: Final[dict[Any, frozenset[str]]] = {
    str: frozenset(("string",)),
    int: frozenset(("integer", "number")),
    float: frozenset(("number",)),
    bool: frozenset(("boolean",)),
    type(None): frozenset(("null",)),
    list: frozenset(("array",)),
    dict: frozenset(("object",)),
}
_EXPECTED: Final[dict[str, str]] = {
    "string": "a string",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "null": "null",
    "array": "a list",
    "object": "an object",
}
