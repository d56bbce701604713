"""The order in which ready jobs are claimed, written once.

Among all ready jobs a claim may take: the listed kind (only if the claim drains by its list), then priority, then
affinity within its bound, then the tenant's turn, then the due moment, then enqueue order. `claim_key` says so for
one choice; `choose` makes many choices in a row, the turn moving on with each.

Turns go round: after the tenant served last comes the next one by name, and after the last name the first.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterable
from itertools import groupby
from typing import NamedTuple, TypeAlias


class Preference(NamedTuple):
    """What the worker has at hand, and whether it has favoured that for as long as it may."""

    affinities: frozenset[str] = frozenset()
    expired: bool = False

    def rank(self, affinity: str | None) -> int:
        """Return 0 for jobs to take first, 1 for the others.

        Within the bound, jobs beside what is loaded go first. Past it they go last, so that whatever has been
        kept waiting, with another affinity or with none, gets its turn.
        """
        if not self.affinities:
            return 0
        return int((affinity in self.affinities) == self.expired)

    def after(self, affinity: str | None) -> Preference:
        """Return the preference for the rest of a batch once a job with *affinity* was taken.

        A switch past the bound makes the new affinity the favoured one.
        """
        if self.expired and affinity is not None and affinity not in self.affinities:
            return Preference(frozenset((affinity,)))
        return self


class Candidate(NamedTuple):
    """What the order needs to know of one ready job."""

    listed: int
    priority: int
    affinity: str | None
    turn: str
    due_at_ms: int
    seq: int
    route: int = 0

    @property
    def stream(self) -> Stream:
        """The run of jobs it stands in, within which the due moment alone decides."""
        return (self.route, self.priority, self.affinity, self.turn)


Stream: TypeAlias = tuple[int, int, str | None, str]
ClaimKey: TypeAlias = tuple[int, int, int, tuple[bool, str], int, int]


def claim_key(candidate: Candidate, preference: Preference, last_turn: str | None) -> ClaimKey:
    """Return the sort key of *candidate*: the smallest is claimed first."""
    return (
        candidate.listed,
        -candidate.priority,
        preference.rank(candidate.affinity),
        turn_key(candidate.turn, last_turn),
        candidate.due_at_ms,
        candidate.seq,
    )


def turn_key(turn: str, last_turn: str | None) -> tuple[bool, str]:
    """Return the key of *turn* in the round that starts after *last_turn*."""
    return (last_turn is not None and turn <= last_turn, turn)


def choose(
    candidates: Iterable[Candidate],
    limit: int,
    preference: Preference,
    last_turn: str | None,
    unfinished: Collection[Stream] = (),
) -> list[Candidate]:
    """Return up to *limit* candidates, each the smallest by `claim_key` at its moment.

    *unfinished* names streams that hold more jobs than were offered. The choice stops when it has used up such a
    stream, because the next job of it may come before all that is left.
    """
    chosen: list[Candidate] = []
    offered = sorted(candidates, key=lambda candidate: claim_key(candidate, preference, None))
    left: dict[Stream, int] = defaultdict(int)
    for candidate in offered:
        left[candidate.stream] += 1
    for _, level in groupby(offered, key=lambda candidate: claim_key(candidate, preference, None)[:3]):
        turns: dict[str, deque[Candidate]] = defaultdict(deque)
        for candidate in level:
            turns[candidate.turn].append(candidate)
        round_ = deque(sorted(turns, key=lambda turn: turn_key(turn, last_turn)))
        while round_:
            turn = round_.popleft()
            candidate = turns[turn].popleft()
            chosen.append(candidate)
            last_turn = turn
            left[candidate.stream] -= 1
            if turns[turn]:
                round_.append(turn)
            if len(chosen) == limit or (not left[candidate.stream] and candidate.stream in unfinished):
                return chosen
    return chosen
