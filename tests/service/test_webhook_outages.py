"""A receiver that is down for three days, in injected time: everything is delivered, and arrivals are bounded."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

import holdfast
from holdfast import Done
from holdfast.domain import webhooks
from holdfast.webhooks.sender import WebhookSender
from tests.support.clock import ManualClock
from tests.support.job_states import start
from tests.support.receivers import NO_CONTENT, Receiver, receiver, sender, status, until
from tests.support.stores import DURABLE_ENGINES, Harness

EVENTS = 30
HOURS = 72
STEP_HOURS = 6


@pytest.mark.slow("the sender looks for due deliveries every second")
@pytest.mark.parametrize("engine", DURABLE_ENGINES)
def test_a_receiver_that_was_down_for_72_hours_gets_everything(engine: str, tmp_path: Path) -> None:
    with closing(Harness(engine, tmp_path)) as harness, receiver(status(503)) as target:
        queue, clock = harness.open(), harness.clock
        with sender(queue) as sending:
            _deliver_after_an_outage(queue, clock, target, sending)


def _deliver_after_an_outage(
    queue: holdfast.Queue, clock: ManualClock, target: Receiver, sending: WebhookSender
) -> None:
    webhook_id = queue.webhooks.add(target.url, types=["job.done"]).webhook.id
    for _ in range(EVENTS):
        job = queue.enqueue("mail").job
        queue.settle(start(queue, job), Done())

    def at_rest() -> bool:
        """Return whether no delivery is due or on its way, and all answers are recorded."""
        found = queue.webhooks.deliveries(webhook_id)
        return (
            len(found) == EVENTS
            and not sending._tasks
            and all(
                one.state == "scheduled" and one.next_try_at is not None and one.next_try_at > clock.time
                for one in found
            )
        )

    until(at_rest)
    for _ in range(HOURS // STEP_HOURS):
        before = len(target.requests)
        clock.advance(STEP_HOURS * 3_600)
        until(lambda before=before: len(target.requests) > before)  # type: ignore[misc]
        # An answer that is recorded when the time has gone on closes the endpoint for longer.
        until(at_rest)
    tried = len(target.requests)
    target.answering = NO_CONTENT

    def nothing_is_due() -> bool:
        left = [one for one in queue.webhooks.deliveries(webhook_id) if one.state != "done"]
        return all(one.next_try_at is not None and one.next_try_at > clock.time for one in left)

    rounds = 0
    while {one.state for one in queue.webhooks.deliveries(webhook_id)} != {"done"}:
        clock.advance(24 * 3_600)
        until(nothing_is_due)
        rounds += 1
        assert rounds < 5
    found = queue.webhooks.deliveries(webhook_id)

    assert len(found) == EVENTS
    assert max(one.tries for one in found) <= webhooks.TRIES
    # At first as many as are sent at once, then one for each time that the endpoint may be open again.
    assert tried <= 2 * 8 + HOURS // STEP_HOURS * 2
