"""Values as the server reads them.

Everything goes as text of no declared type: the statement alone says what each value is, and one plan serves all.
A list goes as an array; a list of rows, or a dict of pairs, as one array for each column.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from holdfast.stores.script import Row

_IN_ARRAY = str.maketrans({"\\": "\\\\", '"': '\\"'})
_IN_COPY = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"})


def bound(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return *values* as they are sent: `rows` that has many columns becomes `rows_0`, `rows_1` and so on."""
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
    """Return each column of *rows* as an array, named by its place."""
    return {f"{prefix}{place}": array(column) for place, column in enumerate(zip(*rows, strict=True))}


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


def copied(rows: Iterable[Row]) -> bytes:
    """Return *rows* as the lines of a COPY."""
    return "".join("\t".join(map(_field, row)) + "\n" for row in rows).encode()


def _field(value: Any) -> str:
    if type(value) is str:
        return value.translate(_IN_COPY) if not value.isalnum() else value
    if value is None:
        return "\\N"
    if type(value) is bytes:
        return f"\\\\x{value.hex()}"
    return str(value)
