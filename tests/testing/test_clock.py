"""A manual clock stands still and moves only when a test moves it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

import holdfast
from holdfast import LeaseLost
from holdfast.testing import ManualClock
from holdfast.types import Now

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


def test_it_stands_still_at_the_moment_it_was_given() -> None:
    clock = ManualClock(NOON)

    assert clock.time == NOON
    assert clock.now() == clock.now() == Now(round(NOON.timestamp() * 1000), round(NOON.timestamp() * 1000))


def test_without_a_moment_it_starts_now() -> None:
    assert abs(ManualClock().time - datetime.now(UTC)) < timedelta(minutes=1)


def test_time_passes_for_due_moments_and_leases_alike() -> None:
    clock = ManualClock(NOON)
    with holdfast.connect(":memory:", clock=clock) as queue:
        queue.enqueue("work", delay=60)
        assert queue.claim() is None
        clock.advance(timedelta(minutes=1))
        held = queue.claim(lease=10)
        assert held is not None
        clock.travel_to(NOON + timedelta(seconds=71))
        with pytest.raises(LeaseLost):
            queue.heartbeat(held)


def test_a_wall_clock_set_by_hand_expires_no_lease() -> None:
    clock = ManualClock(NOON)
    with holdfast.connect(":memory:", clock=clock) as queue:
        queue.enqueue("work")
        held = queue.claim(lease=10)
        assert held is not None
        clock.shift_wall_clock(3600)
        queue.heartbeat(held)
    assert clock.time == NOON + timedelta(hours=1)


@pytest.mark.parametrize("moment", [NOON - timedelta(seconds=1), NOON.replace(tzinfo=None)])
def test_it_does_not_travel_back_nor_to_a_moment_without_a_zone(moment: datetime) -> None:
    with pytest.raises(holdfast.InvalidInput, match="time"):
        ManualClock(NOON).travel_to(moment)
