"""RetryPolicy: after which errors a call is repeated, how often, and after which pauses."""

from __future__ import annotations

from holdfast import InvalidInput, OutcomeUnknown
from holdfast.domain.backoff import RetryPolicy
from holdfast.errors import StoreBusy


def test_pauses_double_up_to_the_last_and_never_overflow() -> None:
    policy = RetryPolicy(first=0.1, last=5.0)

    pauses = [policy.pause_seconds(failures, 0.0) for failures in (1, 2, 3, 6, 7, 1_000_000)]

    assert pauses == [0.1, 0.2, 0.4, 3.2, 5.0, 5.0]


def test_the_jitter_is_the_random_share_of_a_pause() -> None:
    halves, whole, none = (RetryPolicy(first=1.0, last=1.0, jitter=jitter) for jitter in (0.5, 1.0, 0.0))

    assert [halves.pause_seconds(1, chance) for chance in (0.0, 0.5, 1.0)] == [1.0, 0.75, 0.5]
    assert [whole.pause_seconds(1, chance) for chance in (0.0, 1.0)] == [1.0, 0.0]
    assert none.pause_seconds(1, 1.0) == 1.0


def test_by_default_it_repeats_whenever_the_store_did_not_respond() -> None:
    policy = RetryPolicy(first=0.1, last=5.0)

    assert policy.repeats(StoreBusy("busy"), 1_000)
    assert policy.repeats(OutcomeUnknown("lost"), 1)
    assert not policy.repeats(InvalidInput("kind", "is empty"), 1)
    assert not policy.repeats(OSError(), 1)


def test_it_ends_after_the_given_number_of_calls_and_asks_which_errors_count() -> None:
    policy = RetryPolicy(first=0.1, last=5.0, calls=3, retryable=lambda error: isinstance(error, OSError))

    assert [policy.repeats(OSError(), failures) for failures in (1, 2, 3)] == [True, True, False]
    assert not policy.repeats(StoreBusy("busy"), 1)
