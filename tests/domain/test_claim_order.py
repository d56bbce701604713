"""The claim order: one table over all combinations, and `choose` compared with repeated single choices."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from itertools import permutations, product
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given, strategies as st

from holdfast.domain.claim_order import LastFairKeys, Level, Preference, ReadyCandidate, choose, claim_key, level_of

WITHIN = Preference(frozenset(("warm",)))
EXPIRED = Preference(frozenset(("warm",)), expired=True)
NO_PREFERENCE = Preference()

# --- the table -----------------------------------------------------------------------------------------------------

CANDIDATES = [
    ReadyCandidate(listed, priority, affinity, turn, due_at_ms, seq)
    for listed, priority, affinity, turn, due_at_ms, seq in product(
        (0, 1), (0, 5), (None, "warm", "cold"), ("ada", "max", "zoe"), (1_000, 2_000), (1, 2)
    )
]

# Which tenant comes after which: written out, so that the table shares no arithmetic with the code.
ROUNDS: dict[str | None, list[str]] = {
    None: ["ada", "max", "zoe"],
    "": ["ada", "max", "zoe"],
    "ada": ["max", "zoe", "ada"],
    "bob": ["max", "zoe", "ada"],
    "max": ["zoe", "ada", "max"],
    "zoe": ["ada", "max", "zoe"],
    "zzz": ["ada", "max", "zoe"],
}

AFFINITY_RANKS: dict[Preference, dict[str | None, int]] = {
    WITHIN: {"warm": 1, "cold": 2, None: 2},
    EXPIRED: {"warm": 2, "cold": 1, None: 1},
    NO_PREFERENCE: {"warm": 1, "cold": 1, None: 1},
}


class Case(NamedTuple):
    """The parameters of one claim."""

    preference: Preference
    last_fair_key: str | None


def goes_first(one: ReadyCandidate, other: ReadyCandidate, case: Case) -> bool:
    """Return whether *one* is claimed before *other*, by the rules applied one after the other."""
    if one.listed != other.listed:
        return one.listed < other.listed
    if one.priority != other.priority:
        return one.priority > other.priority
    ranks = AFFINITY_RANKS[case.preference]
    if ranks[one.affinity] != ranks[other.affinity]:
        return ranks[one.affinity] < ranks[other.affinity]
    if one.fair_key != other.fair_key:
        turns = ROUNDS[case.last_fair_key]
        return turns.index(one.fair_key) < turns.index(other.fair_key)
    if one.due_at_ms != other.due_at_ms:
        return one.due_at_ms < other.due_at_ms
    return one.seq < other.seq


def turns_everywhere(preference: Preference, last_fair_key: str | None) -> LastFairKeys:
    """Return the same last fair_key for every level."""
    levels = {level_of(candidate, preference) for candidate in CANDIDATES}
    return {} if last_fair_key is None else dict.fromkeys(levels, last_fair_key)


@pytest.mark.parametrize("last_fair_key", ROUNDS)
@pytest.mark.parametrize("preference", AFFINITY_RANKS, ids=["within", "expired", "no preference"])
def test_every_pair_of_candidates_is_claimed_in_the_order_of_the_rules(
    preference: Preference, last_fair_key: str | None
) -> None:
    case = Case(preference, last_fair_key)
    turns = turns_everywhere(preference, last_fair_key)
    keys = {candidate: claim_key(candidate, preference, turns) for candidate in CANDIDATES}
    wrong = [
        (one, other)
        for one, other in permutations(CANDIDATES, 2)
        if (keys[one] < keys[other]) != goes_first(one, other, case)
    ]
    assert not wrong


def test_each_level_has_a_round_of_its_own() -> None:
    urgent, ordinary = [
        [ReadyCandidate(0, priority, None, turn, 1_000, 1) for turn in ("ada", "max", "zoe")] for priority in (5, 0)
    ]
    turns: dict[Level, str] = {level_of(urgent[0], WITHIN): "ada", level_of(ordinary[0], WITHIN): "max"}
    chosen = choose([*urgent, *ordinary], 6, WITHIN, turns)
    assert [candidate.fair_key for candidate in chosen] == ["max", "zoe", "ada", "zoe", "ada", "max"]


def test_the_table_holds_every_combination_once() -> None:
    assert len(set(CANDIDATES)) == 2 * 2 * 3 * 3 * 2 * 2


# --- a switch after the bound of an affinity -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("preference", "taken", "left"),
    [
        (EXPIRED, "cold", Preference(frozenset(("cold",)))),
        (EXPIRED, "warm", EXPIRED),
        (EXPIRED, None, EXPIRED),
        (WITHIN, "cold", WITHIN),
        (WITHIN, None, WITHIN),
        (NO_PREFERENCE, "cold", NO_PREFERENCE),
    ],
)
def test_only_a_switch_past_the_bound_changes_what_is_favoured(
    preference: Preference, taken: str | None, left: Preference
) -> None:
    assert preference.after(taken) == left


# --- several choices -----------------------------------------------------------------------------------------------

PREFERENCES = st.sampled_from([WITHIN, EXPIRED, NO_PREFERENCE])
LEVELS = st.tuples(st.integers(0, 1), st.integers(-1, 0), st.integers(0, 1))
TURNS = st.dictionaries(LEVELS, st.sampled_from(["", "ada", "max", "zoe"]))


@st.composite
def candidate_lists(draw: st.DrawFn) -> list[ReadyCandidate]:
    """Draw candidates with few distinct values, so that most of them are equal in most respects."""
    properties = st.tuples(
        st.integers(0, 1),
        st.integers(0, 1),
        st.sampled_from([None, "warm", "cold"]),
        st.sampled_from(["", "ada", "max", "zoe"]),
        st.integers(0, 2),
    )
    drawn = draw(st.lists(properties, max_size=24))
    by_affinity = draw(st.booleans())
    # Candidates come from streams sorted by due time: of one kind, priority and fair_key, perhaps one affinity.
    return [
        ReadyCandidate(
            route, priority, affinity, turn, due_at_ms, seq, (route, priority, turn, affinity if by_affinity else "")
        )
        for seq, (route, priority, affinity, turn, due_at_ms) in enumerate(drawn)
    ]


def one_by_one(
    candidates: list[ReadyCandidate], limit: int, preference: Preference, turns: LastFairKeys
) -> list[ReadyCandidate]:
    left, chosen, moved = list(candidates), list[ReadyCandidate](), dict(turns)
    while left and len(chosen) < limit:
        best = left[0]
        for candidate in left[1:]:
            if claim_key(candidate, preference, moved) < claim_key(best, preference, moved):
                best = candidate
        left.remove(best)
        chosen.append(best)
        moved[level_of(best, preference)] = best.fair_key
    return chosen


@given(candidate_lists(), st.integers(1, 26), PREFERENCES, TURNS)
def test_a_batch_is_what_single_choices_give_one_after_the_other(
    candidates: list[ReadyCandidate], limit: int, preference: Preference, turns: LastFairKeys
) -> None:
    assert choose(candidates, limit, preference, turns) == one_by_one(candidates, limit, preference, turns)


@given(candidate_lists(), st.randoms(use_true_random=False), PREFERENCES, TURNS)
def test_the_order_in_which_candidates_are_offered_does_not_matter(
    candidates: list[ReadyCandidate], random: Random, preference: Preference, turns: LastFairKeys
) -> None:
    shuffled = list(candidates)
    random.shuffle(shuffled)
    assert choose(shuffled, 30, preference, turns) == choose(candidates, 30, preference, turns)


@given(candidate_lists(), st.integers(1, 4), st.integers(1, 26), TURNS)
def test_with_unfinished_streams_the_choice_is_a_prefix_of_the_full_one(
    candidates: list[ReadyCandidate], depth: int, limit: int, turns: LastFairKeys
) -> None:
    # Without a preference the due time alone orders a stream, so its first jobs are read.
    offered, unfinished = first_of_each_stream(candidates, depth)
    chosen = choose(offered, limit, NO_PREFERENCE, turns, unfinished)
    full = choose(candidates, limit, NO_PREFERENCE, turns)
    assert chosen == full[: len(chosen)]
    assert len(chosen) >= min(depth, len(full))


def first_of_each_stream(candidates: list[ReadyCandidate], depth: int) -> tuple[list[ReadyCandidate], set[Hashable]]:
    """Return the first *depth* candidates of each stream, and the streams that hold more."""
    streams: dict[Hashable, list[ReadyCandidate]] = defaultdict(list)
    for candidate in sorted(candidates, key=lambda candidate: (candidate.due_at_ms, candidate.seq)):
        streams[candidate.stream].append(candidate)
    offered = [candidate for stream in streams.values() for candidate in stream[:depth]]
    return offered, {name for name, stream in streams.items() if len(stream) > depth}
