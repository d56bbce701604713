"""The filter line of the dashboard, within the tenant of the viewer."""

import re
import shlex
from typing import Any, Final

from holdfast.domain import errors, filter_line

parse = filter_line.parse
_PLAIN: Final = re.compile(r"[^\s'\"\\]+")


def options(line: str, tenant: str | None) -> dict[str, Any]:
    """Return the arguments of `queue.jobs`; *tenant* is that of the viewer."""
    found = filter_line.arguments(line)
    if tenant is not None:
        if found.get("tenant", tenant) != tenant:
            raise errors.InvalidInput("tenant", "you see the jobs of one tenant only")
        found["tenant"] = tenant
    return found


def state_of(line: str) -> str | None:
    """Return the state that a filter line selects, if it is one."""
    try:
        return dict(parse(line)).get("state")
    except errors.InvalidInput:
        return None


def with_state(line: str, state: str | None) -> str:
    """Return the line with another state, or with none."""
    try:
        rest = [(key, value) for key, value in parse(line) if key != "state"]
    except errors.InvalidInput:
        rest = []
    pairs = ([("state", state)] if state else []) + rest
    return " ".join(term(key, value) for key, value in pairs)


def term(key: str, value: str) -> str:
    """Return a part of a filter line, in quotation marks if the value needs them."""
    part = f"age>{value}" if key == "age" else f"{key}:{value}"
    return part if _PLAIN.fullmatch(part) else shlex.quote(part)
