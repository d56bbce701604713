"""The JSON schema of a task accepts a payload if and only if the task does."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Literal, NamedTuple, Union
from uuid import UUID

import pytest
from hypothesis import example, given, strategies as st

from holdfast import InvalidInput, Tasks
from holdfast.domain import json_schema
from holdfast.domain.json_schema import check
from holdfast.tasks.arguments import Arguments, PayloadInvalid
from holdfast.tasks.task import definition_of
from tests.tasks.models import Box, Colour, Corner, Even, Level, Mode, Note, Order, Person, Point, Rights, Size, Tree


class Span(NamedTuple):
    start: int
    end: int | None = None


SCALARS = [str, int, float, bool, None, datetime, date, time, timedelta, UUID, Decimal, Any, object, bytes]
CLASSES = [Colour, Level, Mode, Point, Size, Person, Span, Box[int], Box[str]]
LITERALS = [Literal["a", 1], Literal[True], Literal[None, "x"], Literal[Colour.RED, 2], Literal[b"bytes"]]
# As values of type Any: mypy takes the classes themselves, with an index, for annotations.
_GENERICS: Any = (list, Sequence, tuple, dict, Mapping, Union)
LIST, SEQUENCE, TUPLE, DICT, MAPPING, UNION = _GENERICS
ANNOTATIONS = st.recursive(
    st.sampled_from([*SCALARS, *CLASSES, *LITERALS, Tree]),
    lambda inner: st.one_of(
        inner.map(lambda one: LIST[one]),
        inner.map(lambda one: SEQUENCE[one]),
        inner.map(lambda one: TUPLE[one, ...]),
        inner.map(lambda one: DICT[str, one]),
        st.tuples(inner, inner).map(lambda pair: TUPLE[pair]),
        st.tuples(inner, inner).map(lambda pair: UNION[pair]),
        st.tuples(st.sampled_from([date, Colour, int, Any]), inner).map(lambda pair: MAPPING[pair]),
    ),
    max_leaves=4,
)
TEXTS = st.sampled_from(
    ["", "a", "red", "fast", "2026-11-16", "2026-11-16T09:00:00Z", "09:30", "1.5", "NaN", "6f1c" * 8, "x" * 80]
)
NUMBERS = st.sampled_from([0, 1, 2, 3, -1, 1.0, 0.5, 1e300, 10**400, 10**15, True, False])
KEYS = st.sampled_from(
    [
        "x",
        "y",
        "label",
        "children",
        "content",
        "start",
        "end",
        "name",
        "born",
        "text",
        "at",
        "width",
        "red",
        "2026-11-16",
        "other",
    ]
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), TEXTS, NUMBERS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=3)),
    max_leaves=6,
)


def taking(annotation: Any) -> Arguments:
    """Return the arguments of a function with one parameter, `value`, of this annotation."""

    def function(value: Any) -> None: ...

    function.__annotations__["value"] = annotation
    return Arguments(function)


def task_accepts(arguments: Arguments, payload: Any) -> bool:
    try:
        arguments.call(payload)
    except PayloadInvalid:
        return False
    return True


def schema_accepts(schema: Any, payload: Any) -> bool:
    try:
        check(schema, payload, "payload")
    except InvalidInput:
        return False
    return True


@given(annotation=ANNOTATIONS, value=VALUES)
@example(annotation=float, value=10**400)
@example(annotation=timedelta, value=1e300)
@example(annotation=Span, value=[1])
@example(annotation=Span, value=[])
@example(annotation=Span, value=[1, 2, 3])
@example(annotation=Decimal, value=1.5)
@example(annotation=int | None, value=True)
@example(annotation=Literal[True], value=1)
@example(annotation=Tree, value={"label": "a", "children": [{"label": 1}]})
def test_the_schema_accepts_a_value_if_and_only_if_the_task_does(annotation: Any, value: Any) -> None:
    arguments = taking(annotation)
    schema = json.loads(json.dumps(arguments.schema()))

    assert schema_accepts(schema, {"value": value}) == task_accepts(arguments, {"value": value})


@pytest.mark.parametrize("annotation", [Corner, Rights, Even, Note, Order, set[Any]])
@given(value=VALUES)
def test_the_schema_of_a_class_that_decides_itself_accepts_at_least_what_the_task_does(
    annotation: Any, value: Any
) -> None:
    arguments = taking(annotation)

    assert schema_accepts(arguments.schema(), {"value": value}) or not task_accepts(arguments, {"value": value})


def _every_parameter(a: int, /, b: str = "x", *items: float, flag: bool, **others: date) -> None: ...


@given(
    payload=st.dictionaries(st.sampled_from(["a", "b", "items", "flag", "others", "more"]), VALUES)
    | st.fixed_dictionaries({"a": st.integers(), "flag": st.booleans()})
)
@example(payload={"a": 1, "flag": True, "items": [1, 2.5], "more": "2026-11-16"})
@example(payload={"a": 1, "flag": True, "others": "2026-11-16"})
def test_it_covers_parameters_of_every_kind(payload: dict[str, Any]) -> None:
    arguments = Arguments(_every_parameter)

    assert schema_accepts(arguments.schema(), payload) == task_accepts(arguments, payload)


def test_the_schema_is_a_document_with_definitions_and_defaults() -> None:
    def send(to: Point, colour: Colour = Colour.RED, person: Person | None = None) -> None: ...

    schema = Arguments(send).schema()

    assert schema["$schema"] == json_schema.DIALECT
    assert schema["properties"]["to"] == {"$ref": "#/$defs/Point"}
    assert schema["properties"]["colour"] == {"$ref": "#/$defs/Colour", "default": "red"}
    assert (schema["required"], schema["additionalProperties"]) == (["to"], False)
    assert schema["$defs"]["Point"]["properties"]["y"] == {"type": "integer", "default": 0}
    assert schema["$defs"]["Colour"] == {"enum": ["red", "blue"]}
    assert set(schema["$defs"]) == {"Point", "Colour", "Person"}


def test_two_forms_of_a_generic_class_have_two_definitions() -> None:
    def function(a: Box[int], b: Box[str]) -> None: ...

    definitions = Arguments(function).schema()["$defs"]

    contents = [definition["properties"]["content"] for definition in definitions.values()]
    assert contents == [{"type": "integer"}, {"type": "string"}]


def test_a_message_names_the_part_that_is_wrong_and_what_fits() -> None:
    def function(value: list[datetime | None]) -> None: ...

    with pytest.raises(InvalidInput) as caught:
        check(Arguments(function).schema(), {"value": [None, "tomorrow"]}, "payload")

    assert caught.value.field == "payload.value[1]"
    assert caught.value.problem == "'tomorrow' does not fit a datetime in ISO format or null"


def test_keywords_and_references_of_a_later_version_are_ignored_and_loops_end() -> None:
    assert schema_accepts({"unevaluatedProperties": False, "properties": {"a": {"later": 1}}}, {"a": 1, "b": 2})
    assert schema_accepts({"$ref": "#/$defs/gone"}, 1)
    assert schema_accepts({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}}}, 1)


def test_a_task_whose_schema_cannot_be_written_is_published_without_one(caplog: pytest.LogCaptureFixture) -> None:
    tasks = Tasks()

    def undefined(value: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    def huge(value: str = "x" * 70_000) -> None: ...

    publications = [definition_of(tasks.task(one.__name__)(one)).publication() for one in (undefined, huge)]

    assert [one.schema_json for one in publications] == [None, None]
    assert "kind undefined is published without a schema" in caplog.text
    assert "kind huge is published without a schema" in caplog.text
