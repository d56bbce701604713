"""The order in which ready jobs are claimed, written once.

Among all ready jobs a claim may take: the listed kind (only if the claim drains by its list), then priority, then
affinity within its bound, then the tenant's fair_key, then the due moment, then enqueue order. `claim_key` says so
for one choice; `choose` makes many choices in a row, the fair_key moving on with each.

The first three make a *level*. Turns go round within each level by itself: after the tenant served last there comes
the next one by name, and after the last name the first. One round for all levels would let a tenant with urgent work
set the ordinary round back to its start time and again, and those behind would never be reached.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Hashable, Iterable, Mapping
from itertools import groupby
from typing import NamedTuple, TypeAlias


class Preference(NamedTuple):
    """What the worker has at hand, and whether it has favoured that for as long as it may."""

    affinities: frozenset[str] = frozenset()
    expired: bool = False
    held: frozenset[str] = frozenset()
    """The affinities of jobs that it has in its hands already."""
    most: int | None = None
    """How many affinities the jobs in its hands may have together; none means any number."""

    def admits(self, affinity: str | None) -> bool:
        """Whether a job with *affinity* may come to those in the worker's hands."""
        return (
            self.most is None or affinity is None or affinity in self.held or len(self.held | {affinity}) <= self.most
        )

    def holding(self, affinities: Iterable[str | None]) -> Preference:
        """Return the preference once jobs with these affinities were taken."""
        if self.most is None:
            return self
        return self._replace(held=self.held.union(affinity for affinity in affinities if affinity is not None))

    def rank(self, affinity: str | None) -> int:
        """Return 0 for jobs to take first, 1 for the others.

        Within the bound, jobs beside what is loaded go first. Past it they go last, so that whatever has been
        kept waiting, with another affinity or with none, gets its fair_key.
        """
        if not self.affinities:
            return 0
        return int((affinity in self.affinities) == self.expired)

    def after(self, affinity: str | None) -> Preference:
        """Return the preference for the rest of a batch once a job with *affinity* was taken.

        A switch past the bound makes the new affinity the favoured one.
        """
        if self.expired and affinity is not None and affinity not in self.affinities:
            return self._replace(affinities=frozenset((affinity,)), expired=False)
        return self


class ReadyCandidate(NamedTuple):
    """What the order needs to know of one ready job."""

    listed: int
    priority: int
    affinity: str | None
    fair_key: str
    due_at_ms: int
    seq: int
    stream: Hashable = None
    """Names the run of jobs it was offered from, in their order."""


Level: TypeAlias = tuple[int, int, int]
"""Listed kind, inverted priority, affinity rank: the smallest goes first."""
Turns: TypeAlias = Mapping[Level, str]
"""The fair_key served last, by level."""
ClaimKey: TypeAlias = tuple[Level, tuple[bool, str], int, int]


def level_of(candidate: ReadyCandidate, preference: Preference) -> Level:
    """Return the level on which *candidate* takes its fair_key."""
    return (candidate.listed, -candidate.priority, preference.rank(candidate.affinity))


def fair_order_key(fair_key: str, last_fair_key: str | None) -> tuple[bool, str]:
    """Return the key of *fair_key* in the round that starts after *last_fair_key*."""
    return (last_fair_key is not None and fair_key <= last_fair_key, fair_key)


def claim_key(candidate: ReadyCandidate, preference: Preference, fair_keys: Turns) -> ClaimKey:
    """Return the sort key of *candidate*: the smallest is claimed first."""
    level = level_of(candidate, preference)
    return (level, fair_order_key(candidate.fair_key, fair_keys.get(level)), candidate.due_at_ms, candidate.seq)


def choose(
    candidates: Iterable[ReadyCandidate],
    limit: int,
    preference: Preference,
    fair_keys: Turns,
    unfinished: Collection[Hashable] = (),
) -> list[ReadyCandidate]:
    """Return up to *limit* candidates, each the smallest by `claim_key` at its moment.

    *unfinished* names streams that hold more jobs than were offered. Where one of them is used up, the choice stops
    as soon as its fair_key comes again, because the next job of it may come before all that is left. It also stops
    before a job that the preference does not admit.
    """
    offered = sorted(candidates, key=lambda candidate: claim_key(candidate, preference, fair_keys))
    left: dict[Hashable, int] = defaultdict(int)
    for candidate in offered:
        left[candidate.stream] += 1
    chosen: list[ReadyCandidate] = []
    ranked = preference
    for _, level in groupby(offered, key=lambda candidate: level_of(candidate, ranked)):
        waiting = _by_fair_key(level)
        while waiting:
            queue = waiting.popleft()
            if not queue:
                return chosen
            candidate = queue.popleft()
            if preference.most is not None:
                if not preference.admits(candidate.affinity):
                    return chosen
                preference = preference.holding((candidate.affinity,))
            chosen.append(candidate)
            if len(chosen) == limit:
                return chosen
            left[candidate.stream] -= 1
            if not left[candidate.stream] and candidate.stream in unfinished:
                # What else this fair_key has must wait for what was not offered: it stops here when it comes round.
                queue.clear()
                waiting.append(queue)
            elif queue:
                waiting.append(queue)
    return chosen


def _by_fair_key(level: Iterable[ReadyCandidate]) -> deque[deque[ReadyCandidate]]:
    """Return the candidates of one level, sorted by fair_key, as one queue for each fair_key."""
    queues: dict[str, deque[ReadyCandidate]] = defaultdict(deque)
    for candidate in level:
        queues[candidate.fair_key].append(candidate)
    return deque(queues.values())
