"""The expected result of a claim, by brute force: look at every ready job, take the smallest key, repeat.

Of the order itself it uses only `claim_key`, which a table test checks. Filters, fairness and the switch of affinity
are implemented here a second time, as simply as possible.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from holdfast import Job
from holdfast.domain.claim_order import Level, Preference, ReadyCandidate, claim_key, level_of
from holdfast.domain.validation import milliseconds_of
from holdfast.types import ClaimOptions

Subscription: TypeAlias = tuple[tuple[str, ...], tuple[str, ...] | None, frozenset[str]]
Scope: TypeAlias = tuple[Subscription, int, int, Preference]


class Oracle:
    """The ready jobs of a store, and the tenant served last in each scope."""

    def __init__(self, *, strict_lanes: frozenset[str] = frozenset()) -> None:
        self._strict_lanes = strict_lanes
        self._ready: dict[str, tuple[Job, set[str]]] = {}
        self._last_fair_keys: dict[Scope, str] = {}

    def add(self, job: Job) -> None:
        """Make *job* ready. What it requires is decoded once."""
        self._ready[job.id] = job, set(job.requires)

    @property
    def empty(self) -> bool:
        """Whether no job is ready."""
        return not self._ready

    def claim(self, limit: int, options: ClaimOptions) -> list[str]:
        """Take up to *limit* jobs, as a claim with these options must, and return their ids."""
        preference = _preference(options)
        capabilities = set(options.get("capabilities", ()))
        fitting = {
            self._candidate(job, options): job
            for job, requires in self._ready.values()
            if requires <= capabilities and _fits(job, options)
        }
        chosen: list[str] = []
        while len(chosen) < limit and fitting:
            best = self._best(fitting, options, preference)
            job = fitting.pop(best)
            del self._ready[job.id]
            chosen.append(job.id)
            if not options.get("tenant"):
                self._last_fair_keys[_scope(options, preference, level_of(best, preference))] = self._fair_key(job)
            preference = preference.after(job.affinity)
        return chosen

    def _best(
        self, fitting: Iterable[ReadyCandidate], options: ClaimOptions, preference: Preference
    ) -> ReadyCandidate:
        turns: dict[Level, str] = {}
        for level in {level_of(candidate, preference) for candidate in fitting}:
            last_fair_key = self._last_fair_keys.get(_scope(options, preference, level))
            if last_fair_key is not None and not options.get("tenant"):
                turns[level] = last_fair_key
        return min(fitting, key=lambda candidate: claim_key(candidate, preference, turns))

    def _fair_key(self, job: Job) -> str:
        return "" if job.lane in self._strict_lanes else job.tenant

    def _candidate(self, job: Job, options: ClaimOptions) -> ReadyCandidate:
        kinds = options.get("kinds")
        listed = list(kinds).index(job.kind) if kinds and options.get("drain") == "listed" else 0
        # If a claim names the tenant, tenants do not alternate.
        fair_key = "" if options.get("tenant") else self._fair_key(job)
        return ReadyCandidate(listed, job.priority, job.affinity, fair_key, milliseconds_of(job.due_at), job.number)


def _scope(options: ClaimOptions, preference: Preference, level: Level) -> Scope:
    """Return the scope of a level: jobs that a preference puts first have their own."""
    listed, priority, rank = level
    return (_subscription(options), listed, priority, Preference() if rank else preference)


def _subscription(options: ClaimOptions) -> Subscription:
    kinds = options.get("kinds")
    return (
        tuple(options.get("lanes", ("default",))),
        None if kinds is None else tuple(kinds),
        frozenset(options.get("capabilities", ())),
    )


def _preference(options: ClaimOptions) -> Preference:
    affinity = options.get("affinity")
    preferred = (affinity,) if isinstance(affinity, str) else tuple(affinity or ())
    return Preference(frozenset(preferred), expired=bool(preferred) and options.get("hold_left") == 0)


def _fits(job: Job, options: ClaimOptions) -> bool:
    kinds, tenant = options.get("kinds"), options.get("tenant")
    return (
        job.lane in options.get("lanes", ("default",))
        and (kinds is None or job.kind in kinds)
        and (tenant is None or job.tenant == tenant)
    )
