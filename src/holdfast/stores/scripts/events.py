"""Reading the event log by cursor."""

from __future__ import annotations

from typing import Any, Final

from holdfast.domain import strict_json
from holdfast.domain.errors import EventsPruned, InvalidInput
from holdfast.domain.event import Event, EventPage
from holdfast.stores.script import Script, Statement

_SCHEME = "e1-"


def page(after: str | None, limit: int, tenant: str | None) -> Script[EventPage]:
    """Return the events after a cursor, or from the oldest kept one."""
    [[horizon]] = yield Statement("event_horizon")
    position = horizon if after is None else _position(after)
    if position < horizon:
        raise EventsPruned(_cursor(horizon))
    rows = yield Statement("events_after", {"after": position, "limit": limit})
    events = tuple(_event(*row) for row in rows)
    last = rows[-1][0] if rows else position
    return EventPage(tuple(event for event in events if tenant in {None, event.tenant}), _cursor(last))


_DETAILS: Final = ("state", "attempt", "epoch", "worker", "due_at_ms", "failure_class", "failure_reason")


def _event(position: int, *row: Any) -> Event:
    known = row[: -len(_DETAILS)]
    details = {name: value for name, value in zip(_DETAILS, row[len(known) :], strict=True) if value is not None}
    return Event._make((_cursor(position), *known, strict_json.compact(details)))


def _cursor(position: int) -> str:
    return f"{_SCHEME}{position}"


def _position(cursor: str) -> int:
    digits = cursor.removeprefix(_SCHEME) if cursor.startswith(_SCHEME) else ""
    if not (digits.isascii() and digits.isdigit() and len(digits) < 19):
        raise InvalidInput("after", f"{cursor!r} is not a cursor that this log gave")
    return int(digits)
