"""Reading the event log by cursor."""

from __future__ import annotations

from holdfast.domain.errors import EventsPruned, InvalidInput
from holdfast.domain.events import EventPage
from holdfast.storage.contract import EventPosition, Transaction, cursor_of


async def page(tx: Transaction, after: str | None, limit: int, tenant: str | None) -> tuple[EventPage, bool]:
    """Return the events after a cursor, or from the oldest stored one, and whether more are held back.

    Events are held back while an open transaction may still add events before them.
    """
    horizon = await tx.event_horizon()
    position = horizon if after is None else _position(after)
    if position < horizon:
        raise EventsPruned(cursor_of(horizon))
    found = await tx.events_after(position, limit)
    last = found[-1][0] if found else position
    held_back = len(found) < limit and await tx.events_held_back(last)
    events = tuple(event for _, event in found if tenant in {None, event.tenant})
    return EventPage(events, cursor_of(last)), held_back


def _position(cursor: str) -> EventPosition:
    scheme, *numbers = cursor.split("-")
    if all(number.isascii() and number.isdigit() and len(number) < 19 for number in numbers):
        if scheme == "e1" and len(numbers) == 1:
            return 0, int(numbers[0])
        if scheme == "e2" and len(numbers) == 2:
            return int(numbers[0]), int(numbers[1])
    raise InvalidInput("after", f"{cursor!r} is not a cursor of the event log")
