"""Strict JSON: accepted values round-trip exactly, other values are refused with their path."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from holdfast import InvalidInput
from holdfast.domain import limits, strict_json

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(10**1000) + 1, 10**1000 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXT, inner, max_size=5), max_leaves=30
)


def encode(value: Any, bytes_max: int = limits.PAYLOAD_BYTES_MAX) -> str:
    return strict_json.encode(value, "payload", bytes_max)


def nested_lists(levels: int, innermost: Any) -> Any:
    for _ in range(levels):
        innermost = [innermost]
    return innermost


def nested_dicts(levels: int, innermost: Any) -> Any:
    for _ in range(levels):
        innermost = {"inner": innermost}
    return innermost


def reversed_keys(value: Any) -> Any:
    """Return an equal value whose dicts were filled in the opposite order."""
    if isinstance(value, dict):
        return {key: reversed_keys(value[key]) for key in reversed(value)}
    return [reversed_keys(item) for item in value] if isinstance(value, list) else value


class TestRoundTrip:
    @given(VALUES)
    def test_any_json_value_comes_back_exactly(self, value: Any) -> None:
        # The representation distinguishes 1 from 1.0 and True, and 0.0 from -0.0, which equality does not.
        assert repr(strict_json.decode(encode(value))) == repr(value)

    @pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 2**64, 10**999, 10**1000 - 1, -(10**1000) + 1])
    def test_integers_beyond_64_bits_come_back_exactly(self, value: int) -> None:
        assert strict_json.decode(encode({"n": value})) == {"n": value}

    @pytest.mark.parametrize("text", ["\\u0000", "\\\\u0000", "a\\", "\u2028", "\x01", "\x7f", "\u202e", "👩‍👩‍👧"])
    def test_strange_but_sound_text_comes_back_exactly(self, text: str) -> None:
        assert strict_json.decode(encode({text: [text]})) == {text: [text]}

    def test_a_tuple_is_stored_as_a_list(self) -> None:
        assert strict_json.decode(encode({"pair": (1, (2, 3))})) == {"pair": [1, [2, 3]]}

    def test_many_containers_beside_each_other_are_not_depth(self) -> None:
        wide = [{"item": [number]} for number in range(1_000)]
        assert strict_json.decode(encode(wide)) == wide


class Thing:
    """A type that JSON does not support."""


# With more brackets than this the encoder skips its fast comparison, so each invalid value is tried there too.
CROWD: list[Any] = [[] for _ in range(limits.JSON_DEPTH_MAX + 1)]

REFUSED: list[tuple[Any, str]] = [
    (float("nan"), "payload"),
    (float("inf"), "payload"),
    (-float("inf"), "payload"),
    ("\ud800", "payload"),
    ("a\udfffz", "payload"),
    ("\0", "payload"),
    ("\\\0", "payload"),
    (b"bytes", "payload"),
    ({1, 2}, "payload"),
    (frozenset(), "payload"),
    (Thing(), "payload"),
    (1j, "payload"),
    (range(3), "payload"),
    ({1: "a"}, "payload"),
    ({None: "a"}, "payload"),
    ({True: "a"}, "payload"),
    ({1.5: "a"}, "payload"),
    ({(1, 2): "a"}, "payload"),
    ({b"k": "a"}, "payload"),
    ({"1": "a", 1: "b"}, "payload"),
    ({"a\0": 1}, "payload (a key)"),
    ({"\udc00": 1}, "payload (a key)"),
    (10**1000, "payload"),
    (-(10**1000), "payload"),
    (10**5000, "payload"),
]


class TestRefusals:
    @pytest.mark.parametrize(("value", "field"), REFUSED, ids=[str(index) for index in range(len(REFUSED))])
    def test_what_is_not_strict_json_is_refused(self, value: Any, field: str) -> None:
        with pytest.raises(InvalidInput) as caught:
            encode(value)
        assert caught.value.field == field

    def test_another_type_is_named(self) -> None:
        with pytest.raises(InvalidInput, match="payload: a value of type object is not JSON; convert it"):
            encode(object())

    @pytest.mark.parametrize(("value", "field"), REFUSED, ids=[str(index) for index in range(len(REFUSED))])
    def test_it_is_refused_as_well_deep_in_a_crowd(self, value: Any, field: str) -> None:
        with pytest.raises(InvalidInput) as caught:
            encode({"crowd": CROWD, "items": [1, value]})
        assert caught.value.field == field.replace("payload", "payload.items[1]")

    @given(VALUES, st.sampled_from([float("nan"), "\0", "\ud800", b"", {2: 3}]))
    def test_one_fault_in_any_sound_value_is_found(self, value: Any, fault: Any) -> None:
        with pytest.raises(InvalidInput):
            encode([value, {"fault": fault}])

    def test_an_integer_just_under_the_limit_of_digits_is_taken_and_one_more_is_not(self) -> None:
        assert encode(10**limits.INTEGER_DIGITS_MAX - 1) == "9" * limits.INTEGER_DIGITS_MAX
        with pytest.raises(InvalidInput, match="digits"):
            encode(10**limits.INTEGER_DIGITS_MAX)


class TestDepth:
    @pytest.mark.parametrize("innermost", [1, [], {}], ids=["leaf", "empty-list", "empty-dict"])
    @pytest.mark.parametrize("nest", [nested_lists, nested_dicts])
    def test_sixty_four_levels_are_fine(self, nest: Any, innermost: Any) -> None:
        levels = limits.JSON_DEPTH_MAX - isinstance(innermost, list | dict)
        value = nest(levels, innermost)
        assert strict_json.decode(encode(value)) == value

    @pytest.mark.parametrize("innermost", [1, [], {}], ids=["leaf", "empty-list", "empty-dict"])
    @pytest.mark.parametrize("nest", [nested_lists, nested_dicts])
    def test_sixty_five_levels_are_refused(self, nest: Any, innermost: Any) -> None:
        levels = limits.JSON_DEPTH_MAX + 1 - isinstance(innermost, list | dict)
        with pytest.raises(InvalidInput, match="nested deeper") as caught:
            encode(nest(levels, innermost))
        assert caught.value.field == "payload"

    @pytest.mark.parametrize("nest", [nested_lists, nested_dicts])
    def test_a_hundred_thousand_levels_are_refused(self, nest: Any) -> None:
        with pytest.raises(InvalidInput, match="nested deeper"):
            encode(nest(100_000, 1))

    def test_a_value_that_contains_itself_is_refused(self) -> None:
        circle: list[Any] = []
        circle.append({"again": circle})
        with pytest.raises(InvalidInput, match="nested deeper"):
            encode(circle)


class TestSize:
    def test_the_limit_counts_bytes_of_utf8_and_is_inclusive(self) -> None:
        assert encode("é" * 4, bytes_max=10) == '"éééé"'
        with pytest.raises(InvalidInput, match="is 11 bytes of JSON; the limit is 10"):
            encode("é" * 4 + "e", bytes_max=10)


class TestCanonical:
    @given(VALUES)
    def test_the_order_of_keys_does_not_matter(self, value: Any) -> None:
        assert strict_json.canonical(reversed_keys(value)) == strict_json.canonical(value)

    @given(VALUES, VALUES)
    def test_values_that_read_differently_have_different_bytes(self, one: Any, other: Any) -> None:
        # Decoded from the same encoding, two values are equal only if their texts are.
        alike = repr(sorted_keys(one)) == repr(sorted_keys(other))
        assert (strict_json.canonical(one) == strict_json.canonical(other)) is alike

    @pytest.mark.parametrize(
        ("one", "other"), [(1, 1.0), (1, True), (0, False), ("1", 1), (None, "null"), ([], {}), ([1, 2], [2, 1])]
    )
    def test_lookalikes_are_told_apart(self, one: Any, other: Any) -> None:
        assert strict_json.canonical({"v": one}) != strict_json.canonical({"v": other})


def sorted_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: sorted_keys(value[key]) for key in sorted(value)}
    return [sorted_keys(item) for item in value] if isinstance(value, list) else value
