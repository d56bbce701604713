"""The filter line: `state:failed kind:email.send lane:mail tag:team=sales`."""

import shlex
from typing import Any, Final

from holdfast.domain import errors
from holdfast.domain.job import STATES

KEYS: Final = ("state", "kind", "lane", "tenant", "session", "root", "tag", "class", "fingerprint")


def parse(line: str) -> list[tuple[str, str]]:
    """Return the pairs of a filter line, or raise `InvalidInput`."""
    try:
        parts = shlex.split(line)
    except ValueError:
        raise errors.InvalidInput("filter", "has a quotation mark without its counterpart") from None
    pairs = []
    for part in parts:
        key, separator, value = part.partition(":")
        if not separator or key not in KEYS or not value:
            raise errors.InvalidInput("filter", f"{part!r} is not understood; write key:value with {', '.join(KEYS)}")
        pairs.append((key, value))
    return pairs


def options(line: str, tenant: str | None) -> dict[str, Any]:
    """Return the arguments of `queue.jobs`; *tenant* is that of the viewer."""
    found: dict[str, Any] = {}
    for key, value in parse(line):
        match key:
            case "state":
                states = value.split(",")
                if unknown := [one for one in states if one not in STATES]:
                    raise errors.InvalidInput("state", f"{unknown[0]!r} is none of {', '.join(STATES)}")
                found["state"] = states
            case "tag":
                name, _, content = value.partition("=")
                found.setdefault("tags", {})[name] = content
            case "class":
                found["failure_class"] = value
            case _:
                found[key] = value
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
    return " ".join(shlex.quote(f"{key}:{value}") if " " in value else f"{key}:{value}" for key, value in pairs)
