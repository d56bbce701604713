"""Reading what was typed: durations, moments, pairs, and JSON from the command line, a file or standard input."""

from __future__ import annotations

import json
import re
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.errors import CommandError

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
    """A length of time that was given on the command line; as text it can be given there again."""

    def __str__(self) -> str:
        return f"{float(self)!r}s"


def duration(text: str) -> Seconds:
    """Return the seconds that *text* such as `30s`, `5m`, `2h`, `7d` or `0` means, or raise `ValueError`."""
    if text.strip() == "0":
        return Seconds(0)
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a duration; write a number and its unit, ms, s, m, h, d or w: 30s, 5m, 7d")
    return Seconds(float(found[1]) * _SECONDS[found[2]])


def size(text: str) -> int:
    """Return the bytes that *text* such as `500000000`, `512M` or `2G` means, or raise `ValueError`."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a size; write 512M or 2G, or a number of bytes")
    return int(float(found[1]) * _BYTES[(found[2] or "").upper()])


def moment(text: str) -> datetime:
    """Return the moment that *text* in ISO 8601 with a time zone means, or raise `ValueError`."""
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(f"{text!r} is not a moment; write 2030-01-31T09:00:00Z") from None
    if found.tzinfo is None:
        raise ValueError(f"{text!r} names no time zone; write {found.isoformat()}Z for UTC, or an offset like +02:00")
    return found


def duration_or_moment(text: str) -> float | datetime:
    """Return what *text* means, seconds from now or a moment, or raise `ValueError`."""
    try:
        return duration(text)
    except ValueError:
        pass
    try:
        return moment(text)
    except ValueError as error:
        raise ValueError(f"{error}, or a duration with its unit such as 30s, 5m, 2h or 7d") from None


class DurationType(_ParamType):
    """A length of time, in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Seconds:
        """Return the seconds."""
        try:
            return Seconds(value) if isinstance(value, int | float) else duration(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class SizeType(_ParamType):
    """An amount of memory, in bytes."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the bytes."""
        try:
            return value if isinstance(value, int) else size(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class MomentType(_ParamType):
    """A moment with its time zone."""

    name = "moment"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """Return the moment."""
        try:
            return value if isinstance(value, datetime) else moment(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class DeadlineType(_ParamType):
    """Seconds from now, or a moment."""

    name = "duration|moment"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float | datetime:
        """Return the seconds or the moment."""
        try:
            return duration_or_moment(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(str(error), param, ctx)


class PairType(_ParamType):
    """A name and its value, written NAME=VALUE."""

    name = "name=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        """Return the two halves."""
        if isinstance(value, tuple):
            return value
        name, separator, text = value.partition("=")
        if not separator or not name:
            self.fail(f"{value!r} is not a pair; write NAME=VALUE", param, ctx)
        return name, text


DURATION = DurationType()
SIZE = SizeType()
MOMENT = MomentType()
DEADLINE = DeadlineType()
PAIR = PairType()


def payload(text: str | None) -> Any:
    """Return the payload that was typed: JSON, `@FILE`, `-` for standard input, or None for no payload."""
    if text is None:
        return None
    if text == "-":
        return _payload_json(_decoded(sys.stdin.buffer.read(), "standard input"))
    if text.startswith("@"):
        return _payload_json(_decoded(_content(Path(text[1:])), text[1:]))
    return _payload_json(text)


def parse_json(text: str) -> Any:
    """Return the value of *text*, or raise `ValueError` saying where it stops being JSON."""
    try:
        return json.loads(text, object_pairs_hook=_without_repetition)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise ValueError(f"{error.msg} ({place})") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        # The standard parser keeps the last of them in silence: what is stored would not be what was written.
        raise ValueError("a key is given twice in one object")
    return found


def _payload_json(text: str) -> Any:
    try:
        return parse_json(text)
    except ValueError as error:
        raise CommandError(f"the payload is not JSON: {error}", hint=_QUOTING) from None


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise CommandError(f"cannot read {str(path)!r}: {why}") from None


def _decoded(content: bytes, source: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise CommandError(f"{source} is not UTF-8 text (byte {error.start})") from None
