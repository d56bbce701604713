"""Convert values to the form in which they are sent to the server.

Values are sent as text without a declared type: the statement determines the type of each value, and one plan serves
all calls. A list becomes an array; a list of rows, or a dict of pairs, becomes one array per column. Only the ids and
payloads of an enqueue of many are sent in binary format, which takes both sides less time.
"""

from collections.abc import Collection, Mapping, Sequence
from struct import Struct
from typing import Any, Final

# The header of an array in binary format: dimensions, whether it contains nulls, type, length, first index.
_TEXT_ARRAY: Final = Struct("!iiIii")
_TEXT_OID: Final = 25


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


def encoded(value: Any) -> bytes | None:
    """Return a value, or a list of values, as the bytes that are sent."""
    if value is None:
        return None
    if type(value) is str:
        return value.encode()
    if type(value) is bytes:
        return value
    return (array(value) if type(value) is list else str(value)).encode()


def columns(rows: Sequence[Sequence[Any]], prefix: str) -> dict[str, str]:
    """Return each column of *rows* as an array, named by its index."""
    return {f"{prefix}{index}": column(values) for index, values in enumerate(zip(*rows, strict=True))}


def array(values: Collection[Any]) -> str:
    """Return *values* as the text of an array."""
    first = next(iter(values), None)
    if type(first) is int and None not in values:
        return "{" + ",".join(map(str, values)) + "}"
    if type(first) is str and None not in values:
        # All values are escaped at once. None has a NUL, which the server refuses; if one has, it is refused.
        joined = "\0".join(values)
        if joined.count("\0") == len(values) - 1:
            escaped = joined.replace("\\", "\\\\").replace('"', '\\"')
            return '{"' + escaped.replace("\0", '","') + '"}'
    return "{" + ",".join(map(_element, values)) + "}"


def text_array(values: Sequence[str]) -> bytes:
    """Return *values* as an array in the server's binary format, whose values need no escapes."""
    sent = bytearray(_TEXT_ARRAY.pack(1, 0, _TEXT_OID, len(values), 1))
    for value in values:
        text = value.encode()
        sent += len(text).to_bytes(4, "big") + text
    return bytes(sent)


def column(values: Sequence[Any]) -> str:
    """Return the values of one column of many rows as an array; most columns have few distinct values."""
    texts = {value: _element(value) for value in set(values)}
    return "{" + ",".join([texts[value] for value in values]) + "}"


def _element(value: Any) -> str:
    if type(value) is str:
        # Not by `translate`, which takes ten times as long.
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if value is None:
        return "NULL"
    if type(value) is bytes:
        return f'"\\\\x{value.hex()}"'
    return str(value)
