"""Convert values to the form in which they are sent to the server.

Values are sent as text without a declared type: the statement determines the type of each value, and one plan serves
all calls. A list becomes an array; a list of rows, or a dict of pairs, becomes one array per column.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from holdfast.storage.sql_queries import Row

_IN_ARRAY = str.maketrans({"\\": "\\\\", '"': '\\"'})
_COPIED_AT_ONCE = 250
_IN_COPY = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"})


def bound(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return *values* as they are sent: `rows` with several columns becomes `rows_0`, `rows_1` and so on."""
    sent: dict[str, Any] = {}
    for name, value in values.items():
        if type(value) is dict:
            sent[f"{name}_0"], sent[f"{name}_1"] = array(value), array(value.values())
        elif type(value) is not list:
            sent[name] = str(value) if type(value) is int else value
        elif value and type(value[0]) is list:
            sent.update(columns(value, f"{name}_"))
        else:
            sent[name] = array(value)
    return sent


def columns(rows: Sequence[Sequence[Any]], prefix: str) -> dict[str, str]:
    """Return each column of *rows* as an array, named by its index."""
    return {f"{prefix}{index}": array(column) for index, column in enumerate(zip(*rows, strict=True))}


def array(values: Iterable[Any]) -> str:
    """Return *values* as the text of an array."""
    return "{" + ",".join(map(_element, values)) + "}"


def _element(value: Any) -> str:
    if type(value) is str:
        return f'"{value.translate(_IN_ARRAY)}"' if '"' in value or "\\" in value else f'"{value}"'
    if value is None:
        return "NULL"
    if type(value) is bytes:
        return f'"\\\\x{value.hex()}"'
    return str(value)


def copied(rows: Sequence[Row]) -> Iterator[bytes]:
    """Yield *rows* as the lines of a COPY, in chunks: the server reads one while the next is prepared."""
    for start in range(0, len(rows), _COPIED_AT_ONCE):
        columns_in_text = map(_fields, zip(*rows[start : start + _COPIED_AT_ONCE], strict=True))
        yield ("\n".join(map("\t".join, zip(*columns_in_text, strict=True))) + "\n").encode()


def _fields(column: tuple[Any, ...]) -> list[str]:
    # Most columns have few distinct values, which need not be converted once per row.
    texts = {value: _field(value) for value in set(column)}
    return [texts[value] for value in column]


def _field(value: Any) -> str:
    if type(value) is str:
        special = "\\" in value or "\n" in value or "\t" in value or "\r" in value
        return value.translate(_IN_COPY) if special else value
    if value is None:
        return "\\N"
    if type(value) is bytes:
        return f"\\\\x{value.hex()}"
    return str(value)
