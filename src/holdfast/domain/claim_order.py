"""The order in which ready jobs are claimed.

Among all ready jobs a claim may take: the listed kind (only if the claim drains by its list), then priority, then
affinity until its bound, then the tenant's fair_key, then the due time, then enqueue order. `claim_key` is the sort
key of a single choice; `choose` makes several choices, and each advances the fairness position.

The first three form a *level*. Each level has its own round-robin order of fair_keys: the tenant served last is
followed by the next one by name, and the last name by the first. With one order for all levels, a tenant with urgent
jobs would repeatedly reset the position of ordinary ones, and later tenants would never be served.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from itertools import groupby, islice, zip_longest
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

T = TypeVar("T")


class Preference(NamedTuple):
    """The affinities that the worker prefers, and whether it has preferred them for as long as it may."""

    affinities: frozenset[str] = frozenset()
    expired: bool = False
    held: frozenset[str] = frozenset()
    """The affinities of jobs that the worker already holds."""
    affinities_max: int | None = None
    """The maximum number of affinities of the jobs that the worker holds; None means no limit."""

    def admits(self, affinity: str | None) -> bool:
        """Return whether a worker that holds its current jobs may take one with *affinity*."""
        return (
            self.affinities_max is None
            or affinity is None
            or affinity in self.held
            or len(self.held | {affinity}) <= self.affinities_max
        )

    def holding(self, affinities: Iterable[str | None]) -> Preference:
        """Return the preference after jobs with these affinities were taken."""
        if self.affinities_max is None:
            return self
        return self._replace(held=self.held.union(affinity for affinity in affinities if affinity is not None))

    def rank(self, affinity: str | None) -> int:
        """Return 0 for jobs to take first, 1 for the others.

        Until the bound, jobs with a preferred affinity come first. After it they come last, so that waiting jobs with
        another affinity, or none, are served.
        """
        if not self.affinities:
            return 0
        return int((affinity in self.affinities) == self.expired)

    def after(self, affinity: str | None) -> Preference:
        """Return the preference for the rest of the claim after a job with *affinity* was taken.

        If the bound has passed, the new affinity becomes the preferred one.
        """
        if self.expired and affinity is not None and affinity not in self.affinities:
            return self._replace(affinities=frozenset((affinity,)), expired=False)
        return self


class ReadyCandidate(NamedTuple):
    """The properties of a ready job that determine the claim order."""

    listed: int
    priority: int
    affinity: str | None
    fair_key: str
    due_at_ms: int
    seq: int
    stream: Hashable = None
    """The stream of jobs it was read from, in order."""


_NONE: Final[Any] = object()
"""Fills the queues that are shorter than others."""
Level: TypeAlias = tuple[int, int, int]
"""Listed kind, inverted priority, affinity rank: the smallest comes first."""
LastFairKeys: TypeAlias = Mapping[Level, str]
"""The fair_key served last, by level."""
ClaimKey: TypeAlias = tuple[Level, tuple[bool, str], int, int]


def level_of(candidate: ReadyCandidate, preference: Preference) -> Level:
    """Return the level of *candidate*."""
    return (candidate.listed, -candidate.priority, preference.rank(candidate.affinity))


def fair_order_key(fair_key: str, last_fair_key: str | None) -> tuple[bool, str]:
    """Return the sort key of *fair_key* in the round-robin order that starts after *last_fair_key*."""
    return (last_fair_key is not None and fair_key <= last_fair_key, fair_key)


def claim_key(candidate: ReadyCandidate, preference: Preference, fair_keys: LastFairKeys) -> ClaimKey:
    """Return the sort key of *candidate*: the smallest is claimed first."""
    level = level_of(candidate, preference)
    return (level, fair_order_key(candidate.fair_key, fair_keys.get(level)), candidate.due_at_ms, candidate.seq)


def choose(
    candidates: Iterable[ReadyCandidate],
    limit: int,
    preference: Preference,
    fair_keys: LastFairKeys,
    unfinished: Collection[Hashable] = (),
) -> list[ReadyCandidate]:
    """Return up to *limit* candidates, each the smallest by `claim_key` when it is chosen.

    *unfinished* contains the streams that hold more jobs than were read. If one of them is exhausted, the choice
    stops when its fair_key is next, because its next job may come before all remaining candidates. The choice also
    stops before a job that the preference does not admit.
    """
    ordered = sorted(candidates, key=lambda candidate: claim_key(candidate, preference, fair_keys))
    remaining: dict[Hashable, int] = defaultdict(int)
    for candidate in ordered:
        remaining[candidate.stream] += 1
    chosen: list[ReadyCandidate] = []
    ranked = preference
    for _, level in groupby(ordered, key=lambda candidate: level_of(candidate, ranked)):
        waiting = _by_fair_key(level)
        while waiting:
            queue = waiting.popleft()
            if not queue:
                return chosen
            candidate = queue.popleft()
            if preference.affinities_max is not None:
                if not preference.admits(candidate.affinity):
                    return chosen
                preference = preference.holding((candidate.affinity,))
            chosen.append(candidate)
            if len(chosen) == limit:
                return chosen
            remaining[candidate.stream] -= 1
            if not remaining[candidate.stream] and candidate.stream in unfinished:
                # Further jobs of this fair_key must follow those that were not read: the choice stops when it is
                # next.
                queue.clear()
                waiting.append(queue)
            elif queue:
                waiting.append(queue)
    return chosen


def _by_fair_key(level: Iterable[ReadyCandidate]) -> deque[deque[ReadyCandidate]]:
    """Return the candidates of one level as one queue per fair_key, sorted by fair_key."""
    queues: dict[str, deque[ReadyCandidate]] = defaultdict(deque)
    for candidate in level:
        queues[candidate.fair_key].append(candidate)
    return deque(queues.values())


def take_turns(queues: Sequence[Sequence[T]], limit: int) -> list[T]:
    """Return up to *limit* entries of the queues of one level: the first of each in order, then the second of each.

    It is what `choose` does if the queues contain all jobs, or at least `limit / len(queues)` of each.
    """
    if len(queues) == 1:
        return list(queues[0][:limit])
    rounds = zip_longest(*queues, fillvalue=_NONE)
    return list(islice((entry for one in rounds for entry in one if entry is not _NONE), limit))


def take_turns_of(rows: Iterable[T], place: Callable[[T], int], order: Callable[[T], Any], limit: int) -> list[T]:
    """Do the same for *rows* in any order: *place* returns the place of a row's queue, *order* its sort key."""
    queues: defaultdict[int, list[T]] = defaultdict(list)
    for row in rows:
        queues[place(row)].append(row)
    for queue in queues.values():
        queue.sort(key=order)
    return take_turns([queues[at] for at in sorted(queues)], limit)
