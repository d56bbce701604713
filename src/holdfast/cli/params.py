"""Parameter types of the command line: durations, timestamps, sizes, pairs, and JSON payloads."""

import json
import re
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli import errors

if TYPE_CHECKING:
    _ParamType = click.ParamType[Any]
else:
    # Generic only in newer releases of click.
    _ParamType = click.ParamType

_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)", re.ASCII)
_BYTES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)(?:([KMGTkmgt])(?:i?B)?)?", re.ASCII)
_QUOTING = (
    """quote it for the shell: '{"to": "ada@example.org"}'; a plain string keeps its own quotes: '"hello"'; """
    "or use @FILE, or - for standard input"
)


class Seconds(float):
    """A duration from the command line. Its text is a valid value of the same option."""

    def __str__(self) -> str:
        return f"{float(self)!r}s"


def duration(text: str) -> Seconds:
    """Return the seconds of a duration such as `30s`, `5m`, `2h`, `7d` or `0`, or raise `ValueError`."""
    if text.strip() == "0":
        return Seconds(0)
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a duration; write a number and its unit, ms, s, m, h, d or w: 30s, 5m, 7d")
    return Seconds(float(found[1]) * _SECONDS[found[2]])


def size(text: str) -> int:
    """Return the bytes of a size such as `500000000`, `512M` or `2G`, or raise `ValueError`."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a size; write 512M or 2G, or a number of bytes")
    return int(float(found[1]) * _BYTES[(found[2] or "").upper()])


def timestamp(text: str) -> datetime:
    """Return the value of an ISO 8601 timestamp with a time zone, or raise `ValueError`."""
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(f"{text!r} is not a timestamp; write 2030-01-31T09:00:00Z") from None
    if found.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone; write {found.isoformat()}Z for UTC, or an offset like +02:00")
    return found


def duration_or_timestamp(text: str) -> float | datetime:
    """Return the value of *text*, a duration or a timestamp, or raise `ValueError`."""
    try:
        return duration(text)
    except ValueError:
        pass
    try:
        return timestamp(text)
    except ValueError as error:
        raise ValueError(f"{error}, or a duration with its unit such as 30s, 5m, 2h or 7d") from None


class DurationType(_ParamType):
    """A duration in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Seconds:
        """Return the seconds."""
        try:
            return Seconds(value) if isinstance(value, int | float) else duration(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class SizeType(_ParamType):
    """A size in bytes."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the bytes."""
        try:
            return value if isinstance(value, int) else size(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class TimestampType(_ParamType):
    """A timestamp with a time zone."""

    name = "timestamp"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """Return the timestamp."""
        try:
            return value if isinstance(value, datetime) else timestamp(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class DeadlineType(_ParamType):
    """Seconds from now, or a timestamp."""

    name = "duration|timestamp"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float | datetime:
        """Return the seconds or the timestamp."""
        try:
            return duration_or_timestamp(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(str(error), param, ctx)


class PairType(_ParamType):
    """A name and its value, written NAME=VALUE."""

    name = "name=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        """Return the name and the value."""
        if isinstance(value, tuple):
            return value
        name, separator, text = value.partition("=")
        if not separator or not name:
            self.fail(f"{value!r} is not a pair; write NAME=VALUE", param, ctx)
        return name, text


DURATION = DurationType()
SIZE = SizeType()
TIMESTAMP = TimestampType()
DEADLINE = DeadlineType()
PAIR = PairType()


def pairs(option: str, given: tuple[tuple[str, str], ...]) -> dict[str, str]:
    """Return the pairs of a repeated option as a dict, or raise if two have the same key."""
    found = dict(given)
    if len(found) < len(given):
        raise errors.CommandError(f"{option} names the same key twice")
    return found


def payload(text: str | None) -> Any:
    """Return the payload of an argument: JSON, `@FILE`, `-` for standard input, or None."""
    if text is None:
        return None
    if text == "-":
        return _payload_json(_decode(sys.stdin.buffer.read(), "standard input"))
    if text.startswith("@"):
        return _payload_json(_decode(_read_bytes(Path(text[1:])), text[1:]))
    return _payload_json(text)


def parse_json(text: str) -> Any:
    """Return the value of *text*, or raise `ValueError` with the position of the error."""
    try:
        return json.loads(text, object_pairs_hook=_unique_keys)
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if "\n" in text else ""
        raise ValueError(f"{error.msg} ({line}column {error.colno})") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        # The json module keeps only the last value and raises nothing.
        raise ValueError("a key is given twice in one object")
    return found


def _payload_json(text: str) -> Any:
    try:
        return parse_json(text)
    except ValueError as error:
        raise errors.CommandError(f"the payload is not JSON: {error}", hint=_QUOTING) from None


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise errors.CommandError(f"cannot read {str(path)!r}: {why}") from None


def _decode(content: bytes, source: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise errors.CommandError(f"{source} is not UTF-8 text (byte {error.start})") from None
