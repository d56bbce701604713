"""The filter line: `state:failed kind:email.send tag:order=42 age>1h`, for the command line and the dashboard."""

import re
import shlex
from typing import Any, Final

from holdfast.domain import errors
from holdfast.domain.job import STATES

KEYS: Final = ("state", "kind", "lane", "tenant", "session", "root", "group", "tag", "class", "fingerprint")
_AGE: Final = re.compile(r"age>=?(.+)")
_SECONDS: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_DURATION: Final = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)(ms|s|m|h|d|w)", re.ASCII)


def parse(line: str) -> list[tuple[str, str]]:
    """Return the pairs of a filter line, the age as `("age", "1h")`; raise `InvalidInput` if it has none."""
    try:
        parts = shlex.split(line)
    except ValueError:
        raise errors.InvalidInput("filter", "has a quotation mark without its counterpart") from None
    pairs = []
    for part in parts:
        if age := _AGE.fullmatch(part):
            pairs.append(("age", age[1]))
            continue
        key, separator, value = part.partition(":")
        if not separator or key not in KEYS or not value:
            known = f"{', '.join(KEYS)}, or age>1h"
            raise errors.InvalidInput("filter", f"{part!r} is not understood; write key:value with {known}")
        pairs.append((key, value))
    return pairs


def arguments(line: str) -> dict[str, Any]:
    """Return the arguments of `queue.jobs` that a filter line means, or raise `InvalidInput`."""
    found: dict[str, Any] = {}
    for key, value in parse(line):
        match key:
            case "state":
                states = value.split(",")
                if unknown := [one for one in states if one not in STATES]:
                    raise errors.InvalidInput("state", f"{unknown[0]!r} is none of {', '.join(STATES)}")
                found["state"] = [*found.get("state", ()), *states]
            case "tag":
                name, separator, content = value.partition("=")
                if not separator:
                    raise errors.InvalidInput("tag", f"{value!r} is not a tag; write tag:order=42")
                found.setdefault("tags", {})[name] = content
            case "class":
                found["failure_class"] = value
            case "age":
                found["older_than"] = _seconds(value)
            case _:
                found[key] = value
    return found


def _seconds(text: str) -> float:
    duration = _DURATION.fullmatch(text)
    if duration is None:
        raise errors.InvalidInput("age", f"{text!r} is not a duration; write age>30m, age>1h or age>7d")
    return float(duration[1]) * _SECONDS[duration[2]]
