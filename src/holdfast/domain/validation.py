"""Validation of single arguments: each function returns the stored form or raises `InvalidInput` with the field."""

import math
import re
from collections.abc import Iterable, Mapping, Set
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

from holdfast.domain import errors, limits

Duration: TypeAlias = float | timedelta
"""Seconds, or a timedelta."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
RESERVED_PREFIX = "holdfast:"
"""Callers cannot choose ids of jobs with this prefix."""
_UNWANTED = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_REASON = re.compile(r"[a-z0-9][a-z0-9_.:-]*")


def refuse_unknown(options: Iterable[str], valid: Set[str], owner: str) -> None:
    """Raise `InvalidInput` if an option is not one of the *valid* options of *owner*; suggest a similar one."""
    unknown = sorted(str(option) for option in options if option not in valid)
    if not unknown:
        return
    # Imported late: it is slow to import, and rarely needed.
    from difflib import get_close_matches  # noqa: PLC0415

    similar = get_close_matches(unknown[0], valid, n=1)
    suggestion = f"; did you mean {similar[0]!r}?" if similar else ""
    problem = f"unknown option{suggestion}; the options of {owner} are {', '.join(sorted(valid))}"
    raise errors.InvalidInput(unknown[0], problem)


def name(value: object, field: str, chars_max: int = limits.NAME_CHARS_MAX) -> str:
    """Return *value* if it is a valid name: not blank, not too long, no control characters."""
    if not isinstance(value, str):
        raise errors.InvalidInput(field, f"must be a string, not {type(value).__name__}")
    if not value or value.isspace():
        raise errors.InvalidInput(field, "must not be empty")
    if len(value) > chars_max:
        raise errors.InvalidInput(field, f"is {len(value)} characters long; the limit is {chars_max}", chars_max)
    if _UNWANTED.search(value):
        raise errors.InvalidInput(field, "contains a control character or half of a surrogate pair")
    return value


def optional_name(value: object, field: str, chars_max: int = limits.NAME_CHARS_MAX) -> str | None:
    """Return *value* validated as a name, or None."""
    return None if value is None else name(value, field, chars_max)


def chosen_id(value: object, field: str) -> str | None:
    """Return *value* if a caller may choose it as the id of a job, or None."""
    chosen = optional_name(value, field, limits.JOB_ID_CHARS_MAX)
    if chosen is not None and chosen.startswith(RESERVED_PREFIX):
        raise errors.InvalidInput(field, f"must not start with {RESERVED_PREFIX!r}, which is reserved")
    return chosen


def names(values: Iterable[str], field: str, count_max: int) -> tuple[str, ...]:
    """Return *values* without duplicates, in order, each validated as a name."""
    if isinstance(values, str):
        raise errors.InvalidInput(field, "must be a list of strings, not one string")
    if not isinstance(values, Iterable):
        raise errors.InvalidInput(field, f"must be a list of strings, not {type(values).__name__}")
    found = dict.fromkeys(name(value, f"{field}[{index}]") for index, value in enumerate(values))
    if len(found) > count_max:
        raise errors.InvalidInput(field, f"has {len(found)} entries; the limit is {count_max}", count_max)
    return tuple(found)


def string_map(value: Mapping[str, str], field: str, count_max: int, chars_max: int) -> dict[str, str]:
    """Return *value* if it is a small mapping from names to short strings."""
    if not isinstance(value, Mapping):
        raise errors.InvalidInput(field, f"must be a map of strings, not {type(value).__name__}")
    if len(value) > count_max:
        raise errors.InvalidInput(field, f"has {len(value)} entries; the limit is {count_max}", count_max)
    return {name(key, f"{field} (a key)"): _text(item, f"{field}.{key}", chars_max) for key, item in value.items()}


def _text(value: object, field: str, chars_max: int) -> str:
    if not isinstance(value, str):
        raise errors.InvalidInput(field, f"must be a string, not {type(value).__name__}")
    if len(value) > chars_max:
        raise errors.InvalidInput(field, f"is {len(value)} characters long; the limit is {chars_max}", chars_max)
    if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
        raise errors.InvalidInput(field, "contains U+0000 or half of a surrogate pair")
    return value


def reason(value: object, field: str) -> str:
    """Return *value* if it is a short code such as `smtp_refused`."""
    code = name(value, field, limits.REASON_CHARS_MAX)
    if not _REASON.fullmatch(code):
        raise errors.InvalidInput(field, "must be a short code of a-z, 0-9, '_', '.', ':' and '-'")
    return code


def integer(value: object, field: str, low: int, high: int) -> int:
    """Return *value* if it is an integer from *low* to *high*."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise errors.InvalidInput(field, f"must be an integer, not {type(value).__name__}")
    if not low <= value <= high:
        raise errors.InvalidInput(
            field, f"is out of range; it must be from {low} to {high}", high if value > high else low
        )
    return value


def number(value: object, field: str, low: float, high: float) -> float:
    """Return *value* if it is a finite number from *low* to *high*."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:  # noqa: PLR0124  # NaN
        raise errors.InvalidInput(
            field, f"must be a number, not {value if isinstance(value, float) else type(value).__name__}"
        )
    if not low <= value <= high:
        problem = f"is out of range; it must be from {low:.15g} to {high:.15g}"
        raise errors.InvalidInput(field, problem, high if value > high else low)
    return float(value)


def flag(value: object, field: str) -> bool:
    """Return *value* if it is true or false."""
    if not isinstance(value, bool):
        raise errors.InvalidInput(field, f"must be true or false, not {errors.shown(value)}")
    return value


def one_of(value: Any, field: str, allowed: tuple[Any, ...]) -> Any:
    """Return *value* if it is among *allowed*."""
    if value not in allowed:
        raise errors.InvalidInput(
            field, f"is {errors.shown(value)}; it must be one of {', '.join(map(repr, allowed))}"
        )
    return value


def duration_ms(value: Duration, field: str, low_ms: int = 0, high_ms: int = limits.PAUSE_MS_MAX) -> int:
    """Return *value*, seconds or a timedelta, as milliseconds, rounded up so that no wait is too short."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, str):
        raise errors.InvalidInput(field, "must be a number of seconds or a timedelta, not str")
    checked = number(seconds, field, low_ms / 1000, high_ms / 1000)
    return math.ceil(round(checked * 1000, 3))


def timestamp_ms(value: object, field: str) -> int:
    """Return *value*, an aware datetime, as milliseconds since 1970."""
    if not isinstance(value, datetime):
        raise errors.InvalidInput(field, f"must be a datetime, not {type(value).__name__}")
    if value.utcoffset() is None:
        raise errors.InvalidInput(field, "is a datetime without a time zone; add one, for example datetime.now(UTC)")
    since = value - _EPOCH
    # Rounded up, so that nothing happens too early.
    milliseconds = -(-since // timedelta(milliseconds=1))
    if not 0 <= milliseconds <= limits.TIMESTAMP_MS_MAX:
        raise errors.InvalidInput(field, "must lie between the years 1970 and 9999")
    return milliseconds


def datetime_of(milliseconds: int) -> datetime:
    """Return the time as an aware datetime in UTC."""
    return _EPOCH + timedelta(milliseconds=milliseconds)


def optional_datetime_of(milliseconds: int | None) -> datetime | None:
    """Return the time as an aware datetime in UTC, None if there is none."""
    return None if milliseconds is None else datetime_of(milliseconds)


def milliseconds_of(time: datetime) -> int:
    """Return *time* as milliseconds since 1970: the inverse of `datetime_of`."""
    return (time - _EPOCH) // timedelta(milliseconds=1)
