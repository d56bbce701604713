"""Values as arrays: as text, or in binary format."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest

from holdfast.storage.postgres import binding

TEXTS = ["", "NULL", 'a "quoted" one', "a\\b", '\\"', "{a,b}", " spaces ", "línea\n\t", "\U0001f40b"]


@pytest.mark.parametrize(
    ("values", "type_name"),
    [
        (TEXTS, "text"),
        ([*TEXTS, None], "text"),
        ([None, *TEXTS], "text"),
        (["only"], "text"),
        ([], "text"),
        ([1, -2, 9223372036854775807], "bigint"),
        ([1, None, 3], "bigint"),
        ([0.5, None, 1e300], "double precision"),
    ],
)
def test_the_server_reads_what_was_sent(url: str, values: list[Any], type_name: str) -> None:
    with psycopg.connect(url) as connection:
        for text in (binding.array(values), binding.column(values)):
            query = f"select %s::{type_name}[]"
            assert connection.execute(query.encode(), [text]).fetchone() == (values,)


@pytest.mark.parametrize("values", [TEXTS, ["only"], [], ["x" * 70_000]])
def test_the_server_reads_a_binary_array(url: str, values: list[str]) -> None:
    with psycopg.connect(url) as connection:
        found = connection.pgconn.exec_params(b"select to_json($1::text[])", [binding.text_array(values)], None, [1])
    assert json.loads(found.get_value(0, 0) or b"") == values


@pytest.mark.parametrize("values", [["a", "b\0c"], ["\0"], ["a\0", "b"]])
def test_a_nul_stays_in_its_element(values: list[str]) -> None:
    # The server refuses it; it must not become two elements.
    assert binding.array(values).count(",") == len(values) - 1
