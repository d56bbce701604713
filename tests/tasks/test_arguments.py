"""A call is encoded as one JSON object by parameter name and decoded by annotation, exactly or not at all."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, Literal, NewType
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, strategies as st

from holdfast import InvalidInput, Misconfigured
from holdfast.domain import limits, strict_json
from holdfast.tasks.arguments import Arguments, PayloadInvalid
from tests.tasks.models import (
    Box,
    Colour,
    Corner,
    Even,
    Level,
    Mode,
    Note,
    Order,
    Person,
    Point,
    Rights,
    Size,
    StrictOrder,
    Tree,
)

UserId = NewType("UserId", int)


def taking(annotation: Any) -> Arguments:
    """Return the arguments of a function with one parameter, `value`, of this annotation."""

    def function(value: Any) -> None: ...

    function.__annotations__["value"] = annotation
    return Arguments(function)


def stored(payload: dict[str, Any]) -> Any:
    """Return *payload* as a worker gets it from the store."""
    return strict_json.decode(strict_json.encode(payload, "payload", limits.PAYLOAD_BYTES_MAX))


def decoded(annotation: Any, value: object) -> Any:
    arguments = taking(annotation)
    args, kwargs = arguments.call(stored(arguments.payload((), {"value": value})))
    assert args == ()
    return kwargs["value"]


def read(annotation: Any, written: object) -> Any:
    return taking(annotation).call({"value": written})[1]["value"]


def _minutes_east(minutes: int) -> timezone:
    return timezone(timedelta(minutes=minutes))


texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
finite = st.floats(allow_nan=False, allow_infinity=False)
offsets = st.timedeltas(timedelta(hours=-23), timedelta(hours=23)).map(
    lambda offset: timezone(timedelta(seconds=offset // timedelta(seconds=1)))
)
datetimes = st.datetimes(timezones=st.none() | offsets)
# The model libraries encode offsets in minutes.
civil_moments = st.datetimes(timezones=st.none() | st.integers(-900, 900).map(_minutes_east))
durations = st.timedeltas(timedelta(days=-90_000), timedelta(days=90_000))
points = st.builds(Point, st.integers(), st.integers())
trees = st.recursive(st.builds(Tree, texts), lambda below: st.builds(Tree, texts, st.lists(below, max_size=3)))
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | finite | texts,
    lambda below: st.lists(below, max_size=3) | st.dictionaries(texts, below, max_size=3),
    max_leaves=10,
)

ROUND_TRIPS: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "text": (str, texts),
    "integer": (int, st.integers()),
    "float": (float, finite),
    "flag": (bool, st.booleans()),
    "nothing": (None, st.none()),
    "anything": (Any, plain),
    "an object of anything": (dict[str, Any], st.dictionaries(texts, plain, max_size=3)),
    "moment": (datetime, datetimes),
    "date": (date, st.dates()),
    "time": (time, st.times(timezones=st.none() | offsets)),
    "duration": (timedelta, durations),
    "uuid": (UUID, st.uuids()),
    "decimal": (Decimal, st.decimals(allow_nan=False)),
    "enum": (Colour, st.sampled_from(Colour)),
    "integer enum": (Level, st.sampled_from(Level)),
    "string enum": (Mode, st.sampled_from(Mode)),
    "flags": (Rights, st.sampled_from([Rights.READ, Rights.READ | Rights.WRITE, Rights(0)])),
    "enum of tuples": (Corner, st.sampled_from(Corner)),
    "list": (list[date], st.lists(st.dates())),
    "sequence": (Sequence[int], st.lists(st.integers())),
    "set": (set[UUID], st.sets(st.uuids())),
    "frozen set": (frozenset[int], st.frozensets(st.integers())),
    "pair": (tuple[int, str], st.tuples(st.integers(), texts)),
    "tuple of any length": (tuple[Decimal, ...], st.lists(st.decimals(allow_nan=False)).map(tuple)),
    "empty tuple": (tuple[()], st.just(())),
    "map": (dict[str, timedelta], st.dictionaries(texts, durations)),
    "mapping by enum": (Mapping[Colour, int], st.dictionaries(st.sampled_from(Colour), st.integers())),
    "optional": (datetime | None, st.none() | datetimes),
    "union": (int | float | str | None, st.integers() | finite | texts | st.none()),
    "union of records": (Point | Even, points | st.integers().map(lambda half: Even(half * 2))),
    "literal": (Literal["a", 1, True, Colour.RED], st.sampled_from(["a", 1, True, Colour.RED])),
    "dataclass": (Point, points),
    "dataclass in itself": (Tree, trees),
    "generic dataclass": (Box[datetime], st.builds(Box, datetimes, st.lists(datetimes, max_size=2).map(tuple))),
    "named tuple": (Size, st.builds(Size, st.integers(), st.integers())),
    "typed dict": (Person, st.fixed_dictionaries({"name": texts}, optional={"born": datetimes})),
    "new type": (UserId, st.integers()),
    "msgspec": (Note, st.builds(Note, texts, civil_moments, st.dictionaries(st.integers(), texts, max_size=2))),
    "pydantic": (
        Order,
        st.builds(Order, number=st.integers(), placed_at=civil_moments, lines=st.lists(st.integers())),
    ),
    "strict pydantic": (
        StrictOrder,
        st.builds(StrictOrder, number=st.integers(), placed_at=civil_moments, where=texts),
    ),
    "list of models": (list[Note | None], st.lists(st.none() | st.builds(Note, texts, civil_moments), max_size=3)),
}


@pytest.mark.parametrize("sort", ROUND_TRIPS)
@given(data=st.data())
def test_a_value_comes_back_as_it_was(sort: str, data: st.DataObject) -> None:
    annotation, values = ROUND_TRIPS[sort]
    value = data.draw(values)

    again = decoded(annotation, value)

    assert again == value
    assert type(again) is type(value)


@pytest.mark.parametrize(
    ("annotation", "written", "problem"),
    [
        (int, "3", "must be an integer, not a string"),
        (int, True, "must be an integer, not true or false"),
        (int, 3.0, "must be an integer, not a number"),
        (float, "3", "must be a number, not a string"),
        (float, False, "must be a number"),
        (float, 10**400, "too large for a float"),
        (str, 3, "must be a string, not an integer"),
        (bool, 1, "must be true or false, not an integer"),
        (None, 0, "must be null"),
        (datetime, "yesterday", "'yesterday' is not a datetime in ISO format"),
        (datetime, 0, "must be a string with a datetime"),
        (date, "2026-02-30", "is not a date"),
        (time, "25:00", "is not a time"),
        (timedelta, "PT1S", "must be a number"),
        (timedelta, 1e300, "more seconds than a timedelta"),
        (UUID, "x", "is not a UUID"),
        (Decimal, 1.5, "must be a string with a decimal number"),
        (Decimal, "one", "is not a decimal number"),
        (Colour, "green", "'green' is not a value of Colour"),
        (Level, True, "True is not a value of Level"),
        (Level, 1.0, "1.0 is not a value of Level"),
        (Literal[1], True, "must be one of 1"),
        (list[int], {}, "must be a list, not an object"),
        (list[int], None, "must be a list, not null"),
        (set[Any], [[]], "entries that cannot be in a set"),
        (tuple[int, int], [1], "has 1 entries; it must have 2"),
        (dict[str, int], [], "must be an object, not a list"),
        (int | None, "x", "'x' does not fit int or NoneType"),
        (Point, 3, "must be an object"),
        (Even, {"number": 3}, "is refused: 3 is odd"),
        (Size, [1, 2, 3], "at most 2"),
        (logging.Logger, "x", "cannot be decoded from JSON as Logger"),
        (bytes, "x", "cannot be decoded from JSON as bytes"),
        (Callable[[], None], "x", "cannot be decoded from JSON as"),
    ],
)
def test_what_does_not_fit_its_annotation_is_not_read(annotation: Any, written: object, problem: str) -> None:
    with pytest.raises(PayloadInvalid, match=re.escape(problem)) as caught:
        read(annotation, written)

    assert str(caught.value).startswith("arguments.value: ")


@pytest.mark.parametrize(
    ("annotation", "written", "place"),
    [
        (list[int], [1, 2, "x"], "arguments.value[2]: "),
        (dict[str, list[int]], {"a": [1, None]}, "arguments.value.a[1]: "),
        (tuple[int, str], [1, 2], "arguments.value[1]: "),
        (Point, {"x": "1"}, "arguments.value.x: "),
        (Point, {"y": 1}, "arguments.value.x: is missing"),
        (Point, {"x": 1, "z": 1}, "arguments.value.z: is not known; the keys are x, y"),
        (Point | None, {"x": "1"}, "arguments.value.x: "),
        (Tree, {"label": "a", "children": [{"label": 3}]}, "arguments.value.children[0].label: "),
        (Box[int], {"content": "x"}, "arguments.value.content: "),
        (Box[int], {"content": 1, "more": ["x"]}, "arguments.value.more[0]: "),
        (Size, {"height": 1}, "arguments.value.width: is missing"),
        (Size, [1, "x"], "arguments.value.height: "),
        (Person, {}, "arguments.value.name: is missing"),
        (Person, {"name": "a", "age": 3}, "arguments.value.age: is not known; the keys are "),
        (Order, {"number": 1, "placed_at": "2026-01-01T00:00:00Z", "lines": ["x"]}, "arguments.value.lines[0]: "),
        (StrictOrder, {"number": "1", "placed_at": "2026-01-01T00:00:00Z"}, "arguments.value.number: "),
        (Note, {"text": 1, "at": "2026-01-01T00:00:00Z"}, "arguments.value: is refused: Expected `str`"),
    ],
)
def test_what_cannot_be_read_is_named_by_its_place(annotation: Any, written: object, place: str) -> None:
    with pytest.raises(PayloadInvalid) as caught:
        read(annotation, written)

    assert str(caught.value).startswith(place)


@pytest.mark.parametrize(
    ("annotation", "written", "value"),
    [
        (float, 3, 3.0),
        (Decimal, 3, Decimal(3)),
        (datetime, "2026-01-02T03:04:05Z", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        (float | int, 3, 3),
        (datetime | str, "2026-01-02", "2026-01-02"),
        (int | datetime, "2026-01-02", datetime(2026, 1, 2)),
        (Point, {"x": 1}, Point(1, 0)),
        (Size, {"width": 2}, Size(2, 1)),
        (Size, [2], Size(2, 1)),
        (object, {"a": [1]}, {"a": [1]}),
        (list, [1, "a"], [1, "a"]),
        (Box, {"content": 3}, Box(3)),
    ],
)
def test_another_caller_may_write_it_otherwise(annotation: Any, written: object, value: object) -> None:
    again = read(annotation, written)

    assert again == value
    assert type(again) is type(value)


ITSELF: list[Any] = []
ITSELF.append(ITSELF)


@pytest.mark.parametrize(
    ("annotation", "value", "field"),
    [
        (Any, object(), "arguments.value"),
        (Any, [1, 2, 3, object()], "arguments.value[3]"),
        (Any, {"a": [b""]}, "arguments.value.a[0]"),
        (Any, {1: "a"}, "arguments.value"),
        (Any, {None: "a"}, "arguments.value"),
        (Any, {"red": 1, Colour.RED: 2}, "arguments.value"),
        (Any, float("nan"), "arguments.value"),
        (Any, [float("-inf")], "arguments.value[0]"),
        (Any, ITSELF, "arguments.value" + "[0]" * (limits.JSON_DEPTH_MAX + 1)),
        (Any, Point(1, object()), "arguments.value.y"),  # type: ignore[arg-type]
        (Any, time(12, tzinfo=ZoneInfo("Europe/Paris")), "arguments.value"),
        (Any, timedelta.max, "arguments.value"),
        (Any, Note(text=object(), at=datetime.now(UTC)), "arguments.value"),  # type: ignore[arg-type]
        (int, "3", "arguments.value"),
        (list[int], [1, "3"], "arguments.value[1]"),
        (Point, Size(1, 2), "arguments.value"),
        (logging.Logger, "x", "arguments.value"),
    ],
)
def test_what_cannot_be_written_or_read_again_is_refused_with_its_place(
    annotation: Any, value: object, field: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        taking(annotation).payload((), {"value": value})

    assert caught.value.field == field


@pytest.mark.parametrize("days", [-999_999_999, 200_000, 999_999_999])
def test_a_long_time_in_whole_days_comes_back(days: int) -> None:
    assert decoded(timedelta, timedelta(days=days)) == timedelta(days=days)


@given(values=st.sets(texts | st.integers()))
def test_the_same_set_is_written_the_same_whatever_its_order(values: set[Any]) -> None:
    turned: set[Any] = set()
    turned.update(reversed(list(values)))

    assert taking(Any).payload((), {"value": values}) == taking(Any).payload((), {"value": turned})


def test_what_is_written_is_a_copy() -> None:
    numbers = [1]
    payload = taking(list[int]).payload((), {"value": numbers})

    numbers.append(2)

    assert payload == {"value": [1]}


# --- binding -------------------------------------------------------------------------------------------------------


def everything(
    first: int, /, second: int, third: int = 3, *rest: int, only: str, last: str = "l", **more: float
) -> Any:
    return first, second, third, rest, only, last, more


def nothing() -> None: ...


def unannotated(a, b=1):  # type: ignore[no-untyped-def]  # that is the point
    return a, b


EVERYTHING = Arguments(everything)


@pytest.mark.parametrize(
    ("args", "kwargs", "payload"),
    [
        ((1, 2), {"only": "o"}, {"first": 1, "second": 2, "only": "o"}),
        ((1,), {"second": 2, "only": "o", "last": "x"}, {"first": 1, "second": 2, "only": "o", "last": "x"}),
        ((1, 2, 4), {"only": "o"}, {"first": 1, "second": 2, "third": 4, "only": "o"}),
        ((1, 2, 4, 5, 6), {"only": "o"}, {"first": 1, "second": 2, "third": 4, "rest": [5, 6], "only": "o"}),
        ((1, 2), {"only": "o", "z": 1.5}, {"first": 1, "second": 2, "only": "o", "z": 1.5}),
    ],
)
def test_a_call_is_written_by_name_without_defaults_and_is_the_same_call_again(
    args: tuple[Any, ...], kwargs: dict[str, Any], payload: dict[str, Any]
) -> None:
    written = EVERYTHING.payload(args, kwargs)
    again_args, again_kwargs = EVERYTHING.call(stored(written))

    assert written == payload
    assert everything(*again_args, **again_kwargs) == everything(*args, **kwargs)


def test_a_default_stands_for_what_was_left_out_before_others() -> None:
    args, kwargs = EVERYTHING.call({"first": 1, "second": 2, "rest": [7], "only": "o"})

    assert everything(*args, **kwargs) == (1, 2, 3, (7,), "o", "l", {})


@pytest.mark.parametrize(
    ("args", "kwargs", "field"),
    [
        ((), {}, "arguments.first"),
        ((1,), {"only": "o"}, "arguments.second"),
        ((1, 2), {}, "arguments.only"),
        ((1, 2), {"second": 2, "only": "o"}, "arguments.second"),
        ((1, 2, 3, 4, "x"), {"only": "o"}, "arguments.rest[1]"),
        ((1, 2), {"only": "o", "z": "x"}, "arguments.z"),
        ((1, 2), {"only": "o", "first": 1.0}, "arguments.first"),
        ((1, 2), {"only": "o", "rest": 1.0}, "arguments.rest"),
        ((1, 2), {"only": "o", "more": 1.0}, "arguments.more"),
    ],
)
def test_a_call_that_does_not_fit_is_refused_with_the_argument(
    args: tuple[Any, ...], kwargs: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        EVERYTHING.payload(args, kwargs)

    assert caught.value.field == field


def test_too_many_arguments_are_refused() -> None:
    with pytest.raises(InvalidInput) as caught:
        Arguments(nothing).payload((1,), {})

    assert str(caught.value) == "arguments: too many positional arguments"


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        ({"second": 2, "only": "o"}, "arguments.first: is missing"),
        ({"first": 1, "second": 2, "only": "o", "rest": 3}, "arguments.rest: must be a list"),
        ({"first": 1, "second": 2, "only": "o", "rest": [3, "x"]}, "arguments.rest[1]: must be an integer"),
        (
            {"first": 1, "second": 2, "only": "o", "more": 1.0},
            "arguments.more: is the name of the variable keyword parameter",
        ),
        ({"first": 1, "second": 2, "only": "o", "z": "x"}, "arguments.z: must be a number"),
        ([], "arguments: must be an object, not a list"),
        (3, "arguments: must be an object"),
    ],
)
def test_a_payload_that_is_no_call_is_named(payload: Any, problem: str) -> None:
    with pytest.raises(PayloadInvalid) as caught:
        EVERYTHING.call(payload)

    assert str(caught.value).startswith(problem)


def test_a_parameter_that_is_not_there_is_named_with_the_function() -> None:
    with pytest.raises(PayloadInvalid, match=r"^arguments\.x: is not a parameter of nothing$"):
        Arguments(nothing).call({"x": 1})


@pytest.mark.parametrize("payload", [None, {}])
def test_no_payload_is_a_call_without_arguments(payload: Any) -> None:
    assert Arguments(nothing).call(payload) == ((), {})


def test_a_function_without_annotations_takes_json_as_it_is() -> None:
    arguments = Arguments(unannotated)

    payload = arguments.payload(({"x": (1, 2)},), {})

    assert payload == {"a": {"x": [1, 2]}}
    assert arguments.call(payload) == ((), {"a": {"x": [1, 2]}})


def test_an_annotation_that_is_not_there_at_run_time_is_named_at_first_use() -> None:
    def function(value: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    arguments = Arguments(function)

    with pytest.raises(Misconfigured, match="its annotation 'Missing' is undefined at run time"):
        arguments.payload((), {"value": 1})


def test_what_a_function_returns_need_not_be_there_at_run_time() -> None:
    def function(value: int) -> Missing: ...  # type: ignore[name-defined]  # noqa: F821

    assert Arguments(function).payload((3,), {}) == {"value": 3}


def test_neither_msgspec_nor_pydantic_is_imported_by_itself() -> None:
    program = "import holdfast, sys; print(sorted({'msgspec', 'pydantic'} & sys.modules.keys()))"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)

    assert ran.stdout == "[]\n"


@given(value=plain)
def test_strict_json_is_written_as_it_is(value: Any) -> None:
    payload = taking(Any).payload((), {"value": value})

    assert json.dumps(payload) == json.dumps({"value": value})
