"""What a rate lets start, by the costs of starts in whole microseconds."""

from __future__ import annotations

from hypothesis import example, given, strategies as st

from holdfast.domain.gates import Gate, LimitRow, Room, corrected

_START_MS = 1_800_000_000_000


def _limit(rate: int, period_ms: int, burst: int, weight: str | None = None) -> LimitRow:
    return LimitRow(1, "api", ("call",), None, "all", None, rate, period_ms, burst, weight)


_rates = st.builds(_limit, st.integers(1, 1_000_000), st.integers(1_000, 60_000), st.integers(1, 100))
_weighted = st.builds(
    _limit, st.integers(1, 10_000_000), st.integers(1_000, 60_000), st.integers(100, 10_000), st.just("tokens")
)


@given(_rates, st.lists(st.integers(0, 3), max_size=20))
@example(_limit(9_805, 1_000, 100), [3] * 20)
@example(_limit(600_000, 1_000, 1_000), [1] * 5)
def test_a_burst_starts_at_once_and_then_no_more_than_the_rate(limit: LimitRow, pauses_ms: list[int]) -> None:
    assert limit.rate is not None
    assert limit.period_ms is not None
    assert limit.burst is not None
    gate, now_ms, started = Gate(1, 1, "all", 0, 0, "{}", 0), _START_MS, 0
    for pause_ms in [0, *pauses_ms]:
        now_ms += pause_ms
        room, starts = Room(limit, gate, 0, now_ms), 0
        assert room.left == room.free
        while room.admits():
            room.take()
            starts += 1
        gate = room.gate_after(starts)
        started += starts
        assert started >= limit.burst
        assert (started - limit.burst) * limit.period_ms <= limit.rate * (now_ms - _START_MS)


@given(_weighted, st.lists(st.tuples(st.integers(0, 3), st.integers(1, 100), st.integers(0, 100)), max_size=20))
@example(_limit(9_999_999, 1_000, 100, "tokens"), [(0, 1, 1)] * 2_000)
def test_weights_use_up_no_more_than_the_rate(limit: LimitRow, jobs: list[tuple[int, int, int]]) -> None:
    assert limit.rate is not None
    assert limit.period_ms is not None
    assert limit.burst is not None
    gate, now_ms, used = Gate(1, 1, "all", 0, 0, "{}", 0), _START_MS, 0
    for pause_ms, weight, usage in jobs:
        now_ms += pause_ms
        room = Room(limit, gate, 0, now_ms)
        if room.admits(weight):
            room.take(weight)
            used += min(usage, weight)
            gate = corrected(limit, room.gate_after(1), min(usage, weight) - weight, now_ms)
        assert (used - limit.burst) * limit.period_ms <= limit.rate * (now_ms - _START_MS)
