"""How many jobs a worker claims ahead."""

from __future__ import annotations

from hypothesis import given, strategies as st

from holdfast.worker.claim_ahead import BATCH_MAX, HORIZON_SECONDS, ClaimAhead

SHORT = st.floats(0, HORIZON_SECONDS, exclude_max=True)
LONG = st.floats(HORIZON_SECONDS, 3600)
SLOTS = st.integers(1, 1_000)


def after(*batches: list[float]) -> ClaimAhead:
    ahead = ClaimAhead()
    for batch in batches:
        ahead.ended(batch)
    return ahead


def test_nothing_is_claimed_ahead_before_several_handlers_have_ended() -> None:
    assert ClaimAhead().count(8) == after([]).count(8) == after([0.0] * 79).count(8) == 0
    assert after([0.0] * 40, [0.0] * 40).count(8) > 0


def test_the_limit_is_reached_within_a_few_claims_if_handlers_are_short() -> None:
    ahead, claims, running = ClaimAhead(), 0, 8
    while ahead.count(8) < 2 * BATCH_MAX:
        ahead.ended([0.00001] * running)
        running, claims = 8 + ahead.count(8), claims + 1

    assert claims <= 14


def test_what_is_claimed_ahead_covers_the_horizon_and_not_more() -> None:
    assert after([0.005] * 400).count(8) == 8 * HORIZON_SECONDS / 0.005
    assert after([0.019] * 400).count(1) == 1


def test_one_handler_of_half_a_second_ends_claiming_ahead_and_short_ones_begin_it_again() -> None:
    ahead = after([0.0001] * 400, [0.5])
    assert ahead.count(8) == 0
    ahead.ended([0.0001] * 50)
    assert ahead.count(8) > 0


def test_a_handler_that_had_to_wait_for_a_processor_does_not_end_claiming_ahead() -> None:
    assert after([0.0001] * 400, [0.1], [0.0001]).count(1) > 0


@given(st.lists(LONG, min_size=20, max_size=50), SLOTS)
def test_nothing_is_claimed_ahead_while_all_handlers_are_long(seconds: list[float], slots: int) -> None:
    assert after(seconds).count(slots) == after(*([one] for one in seconds)).count(slots) == 0


@given(st.lists(st.lists(SHORT | LONG, max_size=50), max_size=20), SLOTS)
def test_the_number_is_never_above_its_limits(batches: list[list[float]], slots: int) -> None:
    ahead = after(*batches)

    assert 0 <= ahead.count(slots) <= min(2 * BATCH_MAX, 4 * sum(map(len, batches)))
    ahead.start_over()
    assert ahead.count(slots) == 0
