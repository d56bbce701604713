"""What webhooks need of the event log: where the dispatcher starts, which events pruning keeps, and findings."""

from holdfast.domain import limits, results
from holdfast.storage.contract import EventPosition, StoreTransaction


async def start_reading(tx: StoreTransaction) -> None:
    """Move the dispatcher's position to the end of the log if nothing has needed events so far.

    The position is read first: if another transaction adds the first webhook at the same time, the move fails.
    """
    before = await tx.webhook_position()
    if not await tx.has_webhooks():
        end = max(await tx.event_horizon(), await tx.newest_event() or (0, 0))
        await tx.move_webhook_position(before, before._replace(transaction=end[0], event=end[1]))


async def events_needed_after(tx: StoreTransaction) -> EventPosition | None:
    """Return the position after which pruning keeps events for the dispatcher; None if nothing needs events."""
    if not await tx.has_webhooks():
        return None
    position = await tx.webhook_position()
    return position.transaction, position.event


async def findings(tx: StoreTransaction) -> list[results.Finding]:
    """Return findings about webhooks; none if there are no webhooks."""
    disabled = [one.webhook for one in await tx.newest_webhooks(None, limits.PAGE_MAX)]
    disabled = [one for one in disabled if one.state == "disabled"]
    found = [
        results.Finding(
            "webhooks",
            "warning",
            f"{one.id} ({one.url}) is disabled: {one.reason}; last answer: {(one.last_answer or 'none')[:200]}",
            f"`holdfast webhooks enable {one.id}` once the receiver works, then `holdfast webhooks replay {one.id}`",
            one.id,
        )
        for one in disabled
    ]
    if not await tx.has_webhooks():
        return found
    position, now = await tx.webhook_position(), await tx.now()
    if position.holder is None or position.until_ms <= now.lease_ms:
        remedy = "start a worker or `holdfast serve` where the extra `webhooks` is installed"
        found.append(
            results.Finding("webhooks", "warning", "no running worker or server sends webhooks", remedy, "sender")
        )
    elif await tx.events_held_back((position.transaction, position.event)):
        detail = "deliveries wait for a transaction that is open on the server"
        found.append(results.Finding("webhooks", "warning", detail, "end long transactions", "held back"))
    return found or [results.Finding("webhooks", "ok", "deliveries are being sent")]
