"""The benchmark of webhooks measures what it says, with small numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import webhooks


def test_a_thousand_subscriptions_read_the_log_as_often_as_one(tmp_path: Path) -> None:
    one, many = (webhooks.reads(tmp_path, number, 600) for number in (1, 200))

    assert one == many
    assert one["events_after"] == 2


@pytest.mark.slow("a receiver starts, and the sender sends to it")
def test_deliveries_are_counted_and_timed(tmp_path: Path) -> None:
    with webhooks.receiving() as port:
        measured = webhooks.rate(str(tmp_path / "rate.db"), port, 200)
        latency = webhooks.latency_beside_a_hanging_one(str(tmp_path / "latency.db"), port, 200, hanging=True)

    assert measured.deliveries == 200
    assert measured.per_second > 0
    assert measured.cpu_us > 0
    assert latency > 0
