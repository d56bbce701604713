"""Ready jobs that no live worker takes, from the ready jobs, the registry of workers, and the paused lanes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

from holdfast.domain import limits
from holdfast.domain.results import Finding, WorkerInfo

UnservedReason: TypeAlias = Literal["lane_paused", "no_worker"]
"""Why no worker takes jobs."""
_LISTED_MAX: Final = 20


class ReadyCount(NamedTuple):
    """The number of ready jobs with the same lane, kind and required capabilities."""

    lane: str
    kind: str
    requires: frozenset[str]
    jobs: int
    """How many, counted up to 10,000."""


@dataclass(frozen=True, slots=True)
class Unserved:
    """Ready jobs that no live worker takes."""

    lane: str
    """Their lane."""
    kind: str
    """Their kind."""
    requires: tuple[str, ...]
    """The capabilities that they require."""
    jobs: int
    """How many, counted up to 10,000."""
    reason: UnservedReason
    """`lane_paused`, or `no_worker` if no live worker takes their lane, kind and requirements."""

    def text(self) -> str:
        """Return the finding as one sentence."""
        more = " or more" if self.jobs >= limits.BACKLOG_COUNTED_MAX else ""
        jobs = f"{self.jobs:,}{more} job{'' if self.jobs == 1 else 's'} of {self.kind} in lane {self.lane}"
        return f"{jobs}: {reason_text(self.reason, self.requires, self.jobs)}"


def unserved_reason(
    lane: str,
    kind: str,
    requires: Collection[str],
    workers: Iterable[WorkerInfo],
    paused: Collection[str],
) -> UnservedReason | None:
    """Return why no live worker takes jobs of *kind* in *lane* that require *requires*; None if one does."""
    if lane in paused:
        return "lane_paused"
    return None if any(_takes(worker, lane, kind, requires) for worker in workers) else "no_worker"


def takers(lane: str, kind: str, requires: Collection[str], workers: Iterable[WorkerInfo]) -> list[WorkerInfo]:
    """Return the live workers that take jobs of *kind* in *lane* that require *requires*."""
    return [worker for worker in workers if _takes(worker, lane, kind, requires)]


def reason_text(reason: UnservedReason, requires: Sequence[str], jobs: int) -> str:
    """Return the reason why *jobs* are not taken, as text."""
    if reason == "lane_paused":
        return "the lane is paused"
    them, they = ("it", "it requires") if jobs == 1 else ("them", "they require")
    required = f" ({they} {', '.join(requires)})" if requires else ""
    return f"no live worker takes {them}{required}"


def unserved(ready: Iterable[ReadyCount], workers: Sequence[WorkerInfo], paused: Collection[str]) -> list[Unserved]:
    """Return the ready jobs that no live worker takes, in order of lane and kind."""
    found: dict[tuple[str, str, tuple[str, ...], UnservedReason], int] = {}
    for waiting in ready:
        reason = unserved_reason(waiting.lane, waiting.kind, waiting.requires, workers, paused)
        if waiting.jobs and reason is not None:
            # Required capabilities are irrelevant while the lane is paused.
            requires = () if reason == "lane_paused" else tuple(sorted(waiting.requires))
            key = (waiting.lane, waiting.kind, requires, reason)
            found[key] = found.get(key, 0) + waiting.jobs
    return [Unserved(lane, kind, requires, jobs, why) for (lane, kind, requires, why), jobs in sorted(found.items())]


def unserved_findings(found: Sequence[Unserved]) -> list[Finding]:
    """Return the findings about jobs that no live worker takes."""
    name = "unserved jobs"
    if not found:
        return [Finding(name, "ok", "none")]
    findings = [
        Finding(name, "warning", one.text(), _remedy(one), f"{(one.lane, one.kind, one.requires)} {one.reason}")
        for one in found
    ]
    if len(findings) > _LISTED_MAX:
        left = len(findings) - _LISTED_MAX
        findings[_LISTED_MAX:] = [Finding(name, "warning", f"and {left} more lanes and kinds", "", "more")]
    return findings


def _takes(worker: WorkerInfo, lane: str, kind: str, requires: Collection[str]) -> bool:
    # A draining, stopping or silent worker takes no more jobs.
    takes = worker.state == "active" and lane in worker.lanes and (not worker.kinds or kind in worker.kinds)
    return takes and set(requires) <= set(worker.capabilities)


def _remedy(one: Unserved) -> str:
    if one.reason == "lane_paused":
        return f"`holdfast lanes set {one.lane} --state active` lets workers take them"
    having = f" and has {', '.join(one.requires)} (--capability)" if one.requires else ""
    return f"start a worker that takes lane {one.lane} and kind {one.kind}{having}, or enqueue where one does"
