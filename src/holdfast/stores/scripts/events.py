"""Reading the event log by cursor."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from holdfast.domain import strict_json
from holdfast.domain.errors import EventsPruned, InvalidInput
from holdfast.domain.event import Event, EventPage
from holdfast.stores.script import Script, Statement

Position: TypeAlias = tuple[int, int]
"""The transaction that wrote an event, 0 where an engine has but one writer, and the event's number."""


def page(after: str | None, limit: int, tenant: str | None) -> Script[tuple[EventPage, bool]]:
    """Return the events after a cursor, or from the oldest kept one, and whether more are held back.

    They are while a transaction is open that may yet add an event before them.
    """
    [horizon] = yield Statement("event_horizon")
    position = horizon if after is None else _position(after)
    if position < horizon:
        raise EventsPruned(_cursor(horizon))
    rows = yield Statement("events_after", {**_values(position), "limit": limit})
    events = tuple(_event(*row) for row in rows)
    last = rows[-1][:2] if rows else position
    held_back = len(rows) < limit and (yield from _held_back(last))
    return EventPage(tuple(event for event in events if tenant in {None, event.tenant}), _cursor(last)), held_back


def _held_back(last: Position) -> Script[bool]:
    [[held_back]] = yield Statement("events_held_back", _values(last))
    return bool(held_back)


_DETAILS: Final = ("state", "attempt", "epoch", "worker", "due_at_ms", "failure_class", "failure_reason")


def _event(transaction: int, number: int, *row: Any) -> Event:
    known = row[: -len(_DETAILS)]
    details = {name: value for name, value in zip(_DETAILS, row[len(known) :], strict=True) if value is not None}
    return Event._make((_cursor((transaction, number)), *known, strict_json.compact(details)))


def _values(position: Position) -> dict[str, int]:
    return {"transaction": position[0], "event": position[1]}


def _cursor(position: Position) -> str:
    transaction, number = position
    return f"e2-{transaction}-{number}" if transaction else f"e1-{number}"


def _position(cursor: str) -> Position:
    scheme, *numbers = cursor.split("-")
    if all(number.isascii() and number.isdigit() and len(number) < 19 for number in numbers):
        if scheme == "e1" and len(numbers) == 1:
            return 0, int(numbers[0])
        if scheme == "e2" and len(numbers) == 2:
            return int(numbers[0]), int(numbers[1])
    raise InvalidInput("after", f"{cursor!r} is not a cursor that this log gave")
